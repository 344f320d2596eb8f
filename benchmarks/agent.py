"""What an agent costs its node: CPU and memory of `isotach agent` over a stand-in for nvidia-smi.

To cost another collector: its name in place of `nvidia_smi` in `figures`.
"""

import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks import Figure, NotHere
from benchmarks.product import running, url_of

CAPTURE = Path(__file__).resolve().parents[2] / "shared" / "data" / "nvidia_smi" / "h100.xml"
_PARTS = 5  # figures of as many equal parts of the time


def figures(*, quick: bool) -> Iterator[Figure]:
    """At the default interval, once it has settled; it posts to `isotach up`. The stand-in's own cost is not in it."""
    if not CAPTURE.is_file():
        raise NotHere(f"a capture of a node with 8 GPUs is needed: {CAPTURE}")
    seconds = 15 if quick else 60
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        tool = folder / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(CAPTURE))}\n")
        tool.chmod(0o755)
        log = folder / "up.txt"
        store = ("--port", "0", "--store", str(folder / "isotach.duckdb"))
        server = parts.enter_context(running("up", "--collector", "none", *store, log=log))
        agent = parts.enter_context(
            running(
                "agent",
                "--collector",
                "nvidia_smi",
                "--node",
                "n1",
                "--server",
                url_of(server, log),
                log=folder / "agent.txt",
                environment={"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
            )
        )
        watched = psutil.Process(agent.pid)
        time.sleep(5)
        shares, sizes = _watch(watched, seconds)
        if agent.poll() is not None:
            raise RuntimeError((folder / "agent.txt").read_text())
        yield Figure(
            name=f"agent with nvidia-smi, 8 GPUs, default interval, {seconds} s",
            unit="% of a core",
            values=shares,
            more_is_better=False,
        )
        yield Figure(
            name="its resident memory",
            unit="MB",
            values=sizes,
            more_is_better=False,
            reference=32.0,
            reference_of="imports alone, with Kafka and NVML",
        )


def _watch(process: psutil.Process, seconds: float) -> tuple[Sequence[float], Sequence[float]]:
    shares, sizes = [], []
    for _ in range(_PARTS):
        before = sum(process.cpu_times()[:2])
        time.sleep(seconds / _PARTS)
        shares.append(100 * (sum(process.cpu_times()[:2]) - before) / (seconds / _PARTS))
        sizes.append(process.memory_info().rss / 1e6)
    return shares, sizes
