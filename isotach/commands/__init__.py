"""The commands of `isotach`, one module each; nothing heavy is imported before a command runs.

To add a command: a module here with a click command named `command`, and its line in `isotach/cli.py`.
"""
