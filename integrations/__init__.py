"""Schedulers and alert channels: they only translate.

To add one: one file here and one line in its registry.
"""
