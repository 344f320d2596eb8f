"""The collector over dcgm-exporter: pages of many exporters, read by one thread, without touching a node.

To read another dialect of labels: `labels.py`; another kind of list of targets: `targets.py`.
"""
