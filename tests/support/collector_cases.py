"""One working example of every collector, for the contract tests and the page that lists what each one fills.

To add a collector: one function here, under its name in `COLLECTORS`.
"""

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from support.dcgm import Exporters, page, serves
from support.nvidia_smi import gpu_xml, listing_xml
from support.nvml import NvmlStub, build, synthetic
from support.recording import START_NS, batch

from collectors import Collector
from collectors.dcgm.collector import Dcgm
from collectors.dcgm.targets import sources_of
from collectors.nvidia_smi import NvidiaSmi
from collectors.nvml.collector import Nvml
from collectors.replay import Replay
from collectors.simulated import Simulated


class _OverHttp(Dcgm):
    """A collector with the server of its example, which ends with it."""

    def __init__(self) -> None:
        self._servers = Exporters()
        ticks = itertools.count()
        host = self._servers.add(serves(lambda: page(2, tick=next(ticks))))
        super().__init__(sources_of([host]), node="here", interval_s=0.05, wait_s=2.0)

    def close(self) -> None:
        super().close()
        self._servers.close()
        self._servers.servers.clear()


def dcgm(folder: Path) -> Collector:
    """Two GPUs of an exporter on loopback."""
    return _OverHttp()


def nvidia_smi(folder: Path) -> Collector:
    """Two GPUs from a synthetic capture."""
    capture = folder / "n1.xml"
    capture.write_text(listing_xml([gpu_xml(1), gpu_xml(2)]), encoding="utf-8")
    return NvidiaSmi(node="n1", files=[capture], clock_ns=lambda: START_NS)


def nvml(folder: Path) -> Collector:
    """Two synthetic GPUs of the NVML stub."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the NVML stub with")
    stub = NvmlStub(folder, build(folder)).profile([synthetic(0), synthetic(1)])
    return Nvml(node="n1", kernel_log=folder / "kmsg", environment=stub.environment)


def replay(folder: Path) -> Collector:
    """Three batches of a synthetic recording."""
    return Replay(batches=[batch(start_ns=START_NS + i * 10**10, samples=10) for i in range(3)])


def simulated(folder: Path) -> Collector:
    """The small built-in fleet."""
    return Simulated(fleet="small", start_ns=START_NS, duration_s=30.0)


CASES: Mapping[str, Callable[[Path], Collector]] = MappingProxyType(
    {"dcgm": dcgm, "nvidia_smi": nvidia_smi, "nvml": nvml, "replay": replay, "simulated": simulated}
)
"""How to make each collector; the folder is for its input."""
