"""What an agent costs its node: CPU and memory of `isotach agent` and its children, over stand-ins for the driver.

To cost another collector: a function that prepares its stand-in, one line in `_COLLECTORS`.
"""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil

from benchmarks import Figure, NotHere
from benchmarks.product import PATIENCE_S, asked, running, url_of

CAPTURE = Path(__file__).resolve().parents[2] / "shared" / "data" / "nvidia_smi" / "h100.xml"
_TESTS = str(Path(__file__).resolve().parents[1] / "tests")
_PARTS = 5  # figures of as many equal parts of the time
_SETTLED_S = 15.0  # the first tick comes at a random time, and the first readings ask for more


def figures(*, quick: bool) -> Iterator[Figure]:
    """How soon it shows the GPUs; then what it costs at the default interval, once it has settled.

    It posts to `isotach up`. The stand-ins' own cost is small.
    """
    yield from _start(quick=quick)
    seconds = 15 if quick else 60
    for collector, (stand_in, cpu_target, memory_target) in _COLLECTORS.items():
        with ExitStack() as parts:
            folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
            environment = stand_in(folder)
            log = folder / "up.txt"
            store = ("--port", "0", "--store", str(folder / "isotach.duckdb"))
            server = parts.enter_context(running("up", "--collector", "none", *store, log=log))
            words = ("agent", "--collector", collector, "--node", "n1", "--server", url_of(server, log))
            agent = parts.enter_context(running(*words, log=folder / "agent.txt", environment=environment))
            watched = psutil.Process(agent.pid)
            time.sleep(_SETTLED_S)
            shares, resident, once = _watch(watched, seconds)
            if agent.poll() is not None:
                raise RuntimeError((folder / "agent.txt").read_text())
        name = collector.replace("_", "-")
        yield Figure(
            name=f"agent with {name}, 8 GPUs, default interval, {seconds} s",
            unit="% of a core",
            values=shares,
            more_is_better=False,
            reference=cpu_target,
            reference_of="the most it may cost" if cpu_target else "",
        )
        yield Figure(name="its resident memory, all processes", unit="MB", values=resident, more_is_better=False)
        yield Figure(
            name="the same, pages that processes share counted once",
            unit="MB",
            values=once,
            more_is_better=False,
            reference=memory_target,
            reference_of="the most it may cost" if memory_target else "",
        )


def _start(*, quick: bool) -> Iterator[Figure]:
    """From the start of `isotach up` on a node with eight GPUs until all of them are listed; nothing is configured."""
    seconds = []
    for _ in range(1 if quick else 5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = ("up", "--port", "0", "--node", "n1", "--store", str(folder / "isotach.duckdb"))
            log, began = folder / "up.txt", time.monotonic()
            with running(*words, log=log, environment=_nvml(folder)) as server:
                url = url_of(server, log)
                while (asked(f"{url}/v1/gpus?limit=1") or {"total": 0})["total"] < 8:
                    if time.monotonic() - began > PATIENCE_S:
                        raise RuntimeError(f"the GPUs are not listed: {log.read_text()[-2_000:]}")
                    time.sleep(0.02)
                seconds.append(time.monotonic() - began)
    yield Figure(
        name="start of `isotach up` to eight GPUs listed, nothing configured",
        unit="s",
        values=seconds,
        more_is_better=False,
    )


def _nvidia_smi(folder: Path) -> Mapping[str, str]:
    if not CAPTURE.is_file():
        raise NotHere(f"a capture of a node with 8 GPUs is needed: {CAPTURE}")
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(CAPTURE))}\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def _nvml(folder: Path) -> Mapping[str, str]:
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
    from support.nvml import NvmlStub, build, synthetic

    try:
        library = build(folder)
    except OSError as error:
        raise NotHere(f"a C compiler is needed for the NVML stub: {error.strerror}") from None
    return NvmlStub(folder, library).profile([synthetic(place) for place in range(8)]).environment


_COLLECTORS: Mapping[str, tuple[Callable[[Path], Mapping[str, str]], float | None, float | None]] = {
    "nvml": (_nvml, 0.5, 50.0),
    "nvidia_smi": (_nvidia_smi, None, None),
}


def _watch(process: psutil.Process, seconds: float) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Per part of the time: share of a core, resident memory and proportional memory in MB, children included.

    Processes that nvidia-smi's collector starts live for a moment and are the tool's; only those that stay count.
    """
    shares, resident, once = [], [], []
    for _ in range(_PARTS):
        family = [process, *(child for child in process.children() if child.cmdline()[:1] == [sys.executable])]
        before = sum(sum(one.cpu_times()[:2]) for one in family)
        time.sleep(seconds / _PARTS)
        shares.append(100 * (sum(sum(one.cpu_times()[:2]) for one in family) - before) / (seconds / _PARTS))
        resident.append(sum(one.memory_info().rss for one in family) / 1e6)
        once.append(sum(one.memory_full_info().pss for one in family) / 1e6)
    return shares, resident, once
