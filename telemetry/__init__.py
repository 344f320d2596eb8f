"""The shared vocabulary: metrics, records, tables, wire format, errors. Standard library, nanoarrow, zstandard.

To add a metric: one line in `metrics.py`. To add a column to a published table: one line in `tables.py`.
"""
