"""`python -m isotach`: the same as the command `isotach`.

To add a command: see `isotach/cli.py`.
"""

from isotach.cli import main

main()
