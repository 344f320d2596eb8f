"""The collector over NVML: its calls run in child processes (`collectors/nvml_child`), here is who asks them and when.

To change how a GPU that does not answer is treated: `crew.py`.
"""
