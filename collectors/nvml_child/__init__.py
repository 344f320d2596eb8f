"""The child process that speaks to NVML: it may hang in the driver and be killed, the agent never.

To add something that is read: `calls.py`, `fields.py`. It imports nothing of the agent, so that it starts fast.
"""
