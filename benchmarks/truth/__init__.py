"""Figures against real measurements: what the scores say, and what later or other measurements said.

To add a set: a module with `figures(path)`, one option in `__main__.py`.
"""
