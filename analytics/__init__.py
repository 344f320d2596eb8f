"""Pure frames and the store: a frame in, a frame out.

To add a score, a cause or a feature: one function in the module of its noun; the store alone imports duckdb.
"""
