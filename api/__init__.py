"""The HTTP face of the store; it never reads a stream.

To add an endpoint: a function in the module of its noun, its model in `models.py`, its page in docs/api.md.
"""
