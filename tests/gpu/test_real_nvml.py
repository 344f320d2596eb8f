"""The nvml collector against nvidia-smi on a real GPU, and what it costs a running kernel. Skipped where there is none.

To compare another metric: nothing here; whatever both sources have is compared.
"""

import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from collectors import Reading
from collectors.nvidia_smi import NvidiaSmi
from collectors.nvml.collector import Nvml
from isotach.roles import nvml_loads
from telemetry.metrics import METRICS, Kind
from telemetry.records import NodeInventory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not nvml_loads(), reason="no NVML on this machine"),
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi on this machine"),
]

# What moves between two readings, and by how much: as a share of the value, and in the metric's unit.
MOVES: Mapping[str, tuple[float, float]] = {
    "sm_clock_mhz": (0.3, 300),
    "memory_clock_mhz": (0.3, 300),
    "temperature_c": (0, 5),
    "memory_temperature_c": (0, 5),
    "temperature_margin_c": (0, 5),
    "power_w": (0.3, 30),
    "power_instant_w": (0.5, 60),
    "utilization_ratio": (0, 1),
    "memory_utilization_ratio": (0, 1),
    "memory_used_bytes": (0.01, 1 << 30),
}
UNSTEADY = ("clock_event_reasons", "performance_state", "pcie_link_gen", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
"""Depends on the very moment: an idle GPU that is asked wakes up."""


def rows(reading: Reading) -> dict[str, dict[str, float]]:
    """The last values of each GPU by UUID, without nulls."""
    return {
        batch.gpus[gpu]: {name: float(values[i]) for name, values in batch.columns.items() if values[i] is not None}
        for batch in reading.samples
        for i, gpu in enumerate(batch.gpu)
    }


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[list[Reading], Reading]]:
    """Some readings of NVML, and one of nvidia-smi right after."""
    nvml, smi = Nvml(node="n1"), NvidiaSmi(node="n1")
    try:
        readings = []
        for _ in range(3):
            readings.append(nvml.collect())
            time.sleep(0.5)
        yield readings, smi.collect()
    finally:
        nvml.close()
        smi.close()


def test_values_agree_field_by_field(both: tuple[list[Reading], Reading]) -> None:
    """Whatever both have is the same, as far as it stands still; counters have not gone back."""
    ours, theirs = rows(both[0][-1]), rows(both[1])
    assert ours.keys() == theirs.keys()
    wrong = []
    for gpu, there in theirs.items():
        for name, value in there.items():
            here = ours[gpu].get(name)
            if name in UNSTEADY:
                continue
            share, unit = MOVES.get(name, (0.0, 0.011))
            if METRICS[name].kind is Kind.COUNTER and here is not None and here <= value:
                continue
            if here is None or abs(here - value) > share * abs(value) + unit:
                wrong.append((gpu, name, here, value))
    assert not wrong


def test_inventory_agrees(both: tuple[list[Reading], Reading]) -> None:
    """The same GPUs in the same slots with the same limits."""
    ours: NodeInventory = both[0][0].inventory[0]
    theirs: NodeInventory = both[1].inventory[0]
    assert ours.driver_version == theirs.driver_version
    for name in (
        "gpu_uuid",
        "slot",
        "bus_id",
        "model",
        "serial",
        "power_limit_w",
        "max_sm_clock_mhz",
        "mig_enabled",
        "fabric",
    ):
        assert [getattr(gpu, name) for gpu in ours.gpus] == [getattr(gpu, name) for gpu in theirs.gpus], name
    for here, there in zip(ours.gpus, theirs.gpus, strict=True):  # nvidia-smi cuts to MiB
        assert abs((here.memory_total_bytes or 0) - (there.memory_total_bytes or 0)) <= 1 << 20


def test_a_healthy_node_gives_no_event(both: tuple[list[Reading], Reading]) -> None:
    """No event and no rejected value, however the driver answers."""
    assert [event for reading in both[0] for event in reading.events] == []
    assert not any("out_of_range" in reason for reading in both[0] for reason in reading.rejected)


def test_sampling_costs_a_running_kernel_next_to_nothing() -> None:
    """A matrix product takes as long with ten readings a second as without, to 2 %."""
    torch = pytest.importorskip("torch", reason="no torch to run a kernel with")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))

    def seconds() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(200):
            torch.matmul(left, right)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds()
    collector, stop = Nvml(node="n1", interval_s=0.1), threading.Event()
    collector.collect()

    def sample() -> None:
        while not stop.wait(0.1):
            collector.collect()

    quiet = [seconds() for _ in range(10)]
    thread = threading.Thread(target=sample)
    thread.start()
    try:
        sampled = [seconds() for _ in range(10)]
    finally:
        stop.set()
        thread.join()
        collector.close()
    assert statistics.median(sampled) < 1.02 * statistics.median(quiet)
