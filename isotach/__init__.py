"""The public face: the command `isotach`, the settings, and what wires collectors, streams, analytics and API together.

To add a command: one module in `isotach/commands`, one line in `isotach/cli.py`.
"""

__version__ = "0.1.0"
