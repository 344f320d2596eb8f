"""What the figures were measured on, as far as the system tells it.

To name another library: one entry in `LIBRARIES`.
"""

import os
import platform
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
        "load average at the start": load,
    }


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
