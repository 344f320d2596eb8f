"""What the figures were measured on, as far as the system tells it.

To name another library: one entry in `LIBRARIES`.
"""

import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

LIBRARIES = (
    "polars", "duckdb", "numpy", "pyarrow", "confluent-kafka", "nanoarrow", "zstandard", "fastapi", "uvicorn", "orjson",
)  # fmt: skip


def machine() -> Mapping[str, str]:
    """Processor, cores, memory, Python, libraries, and how busy it was: call it before anything is measured."""
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return {
        "processor": processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "memory": f"{_memory_bytes() / 2**30:.0f} GiB",
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": ", ".join(f"{name} {_version(name)}" for name in LIBRARIES),
        "yardstick at the start": yardstick(),
        "load average at the start": load,
    }


def yardstick() -> str:
    """What two plain things take now: shared machines differ by half from one hour to the next, without any load."""
    start = time.process_time()
    total = 0
    for number in range(10_000_000):
        total += number
    added = time.process_time()
    source = bytearray(200_000_000)
    filled = time.process_time()
    bytes(source)
    copied = time.process_time()
    return f"ten million additions in Python {added - start:.2f} s, a copy of 200 MB {copied - filled:.2f} s"


def processor() -> str:
    """The processor's own name for itself, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
