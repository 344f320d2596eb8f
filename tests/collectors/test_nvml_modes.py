"""Whatever NVML may do, and what becomes of it: one test a row of the table in docs/collectors.md.

To add a mode: a function here, named as its row, and the row.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.nvml import NvmlStub, bus_id, gpu_uuid, synthetic

from collectors import Reading
from collectors.nvml.collector import Nvml
from collectors.nvml.patience import Patience
from telemetry.errors import SourceHangs, SourceUnavailable
from telemetry.records import Event

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectors.md"
QUICK = Patience(
    late_s=1.0,
    tick_s=4.0,
    reopen_s=2.5,
    open_s=1.0,
    start_s=20.0,
    hang_s=1.2,
    retry_s=(0.3, 1.0),
    settle=3,
    renew_s=600.0,
)
ALL = frozenset(range(8))
MODES: dict[str, Callable[["Node"], None]] = {}


def mode(function: Callable[["Node"], None]) -> Callable[["Node"], None]:
    """The function is the test of the row with its name."""
    MODES[function.__name__.replace("_", " ")] = function
    return function


class Node:
    """A node with the stub as its NVML, and the collector over it, in a hurry."""

    def __init__(self, nvml: NvmlStub) -> None:
        self.nvml = nvml
        self.collector = self.make(QUICK)
        self.events: list[Event] = []
        self.rejected: Counter[str] = Counter()
        self.inventory = None

    def make(self, patience: Patience) -> Nvml:
        """A collector over the stub, without the log of the machine's own kernel."""
        kernel_log = self.nvml.folder / "no-kernel-log"
        return Nvml(node="n1", patience=patience, environment=self.nvml.environment, kernel_log=kernel_log)

    def again(self, **patience: float) -> None:
        """Another agent in place of the first."""
        self.collector.close()
        self.collector = self.make(replace(QUICK, **patience))  # type: ignore[arg-type]

    def tick(self) -> Reading:
        """One reading."""
        reading = self.collector.collect()
        self.events += reading.events
        self.rejected.update(reading.rejected)
        self.inventory = reading.inventory[0] if reading.inventory else self.inventory
        return reading

    def sampled(self, reading: Reading | None = None) -> frozenset[int]:
        """Places of the GPUs with a sample in a reading, by default a new one."""
        places = {gpu_uuid(place): place for place in ALL}
        found = reading or self.tick()
        return frozenset(places[gpu] for batch in found.samples for gpu in batch.gpus)

    def until(self, places: frozenset[int]) -> None:
        """Read until exactly these GPUs give samples."""
        self.wait(lambda: self.sampled() == places)

    def wait(self, done: Callable[[], bool], patience_s: float = 15.0) -> None:
        """Do something until it is true."""
        deadline = time.monotonic() + patience_s
        while not done():
            assert time.monotonic() < deadline, f"not in {patience_s} s; events: {self.told()}"
            time.sleep(0.05)

    def told(self) -> list[tuple[str, str]]:
        """Kind and GPU of every event so far."""
        return [(event.kind, event.gpu_uuid) for event in self.events]

    def values(self, place: int, metric: str) -> set[object]:
        """What the next reading has for a GPU and metric."""
        found = {
            batch.columns[metric][i]
            for batch in self.tick().samples
            for i, gpu in enumerate(batch.gpu)
            if batch.gpus[gpu] == gpu_uuid(place) and metric in batch.columns
        }
        return found - {None}


@pytest.fixture
def node(nvml: NvmlStub) -> Iterator[Node]:
    """Eight GPUs, seen once."""
    one = Node(nvml)
    try:
        yield one
    finally:
        children = [psutil.Process(pid) for pid in one.collector.pids if psutil.pid_exists(pid)]
        one.collector.close()
        assert not any(child.is_running() for child in children)


@mode
def all_is_well(node: Node) -> None:
    readings = [node.tick() for _ in range(5)]
    assert [node.sampled(reading) for reading in readings] == [ALL] * 5
    assert (node.events, dict(node.rejected)) == ([], {})
    assert len(node.collector.pids) == 1


@mode
def a_GPU_hangs_in_one_call(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, hang="nvmlDeviceGetPowerUsage", buffers=None)
    assert node.sampled() == ALL - {3}  # in the very same tick
    node.wait(lambda: node.sampled() == ALL - {3} and node.told() == [("collector_hang", gpu_uuid(3))])
    assert "nvmlDeviceGetPowerUsage" in str(node.events[0].detail)
    node.nvml.set(3, hang=None)
    node.until(ALL)
    assert node.told() == [("collector_hang", gpu_uuid(3))] * 2
    assert "answers again" in str(node.events[-1].detail)
    node.wait(lambda: node.sampled() == ALL and len(node.collector.pids) == 1)


@mode
def a_GPU_hangs_when_the_agent_starts(node: Node) -> None:
    node.again(start_s=4.0)
    node.nvml.set(3, hang="all")
    node.until(ALL - {3})
    node.wait(lambda: node.sampled() == ALL - {3} and len(node.events) == 2)
    assert node.told() == [("missing_gpu", ""), ("collector_hang", "")]
    node.nvml.set(3, hang=None)
    node.until(ALL)


@mode
def every_GPU_hangs(node: Node) -> None:
    node.again(reopen_s=0.3)
    assert node.sampled() == ALL
    node.nvml.set(hang="all")
    with pytest.raises(SourceHangs, match="no GPU answers"):
        node.wait(lambda: not node.tick().samples and False)
    node.nvml.set(hang=None)
    node.until(ALL)
    assert not any(kind == "gpu_lost" for kind, _ in node.told())


@mode
def a_GPU_is_slow(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, slow_ms=60)
    assert ALL - {3} <= node.sampled()
    seen = []
    for _ in range(30):
        started = time.monotonic()
        seen.append(node.sampled())
        assert time.monotonic() - started < 1.9  # the others do not wait for it
        time.sleep(0.1)
    assert all(ALL - {3} <= places for places in seen)
    assert 1 <= sum(3 in places for places in seen) < 30
    assert node.events == []


@mode
def a_GPU_is_lost(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, fail=15)
    assert [node.sampled() for _ in range(3)] == [ALL - {3}] * 3
    assert node.told() == [("gpu_lost", gpu_uuid(3))]
    assert node.inventory is not None
    assert gpu_uuid(3) not in {gpu.gpu_uuid for gpu in node.inventory.gpus}
    node.nvml.set(3, fail=None)
    node.until(ALL)
    assert gpu_uuid(3) in {gpu.gpu_uuid for gpu in node.inventory.gpus}


@mode
def a_GPU_is_gone_from_the_bus(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, missing=1)
    assert node.sampled() == ALL - {3}
    assert node.told() == [("gpu_lost", gpu_uuid(3))]


@mode
def a_GPU_is_lost_before_the_agent_starts(node: Node) -> None:
    node.nvml.set(3, fail=15)
    assert node.sampled() == ALL - {3}
    assert node.told() == [("missing_gpu", "")]
    assert node.inventory is not None
    assert (node.inventory.expected_gpus, len(node.inventory.gpus)) == (8, 7)


@mode
def a_GPU_has_to_be_reset(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, fail=16)
    assert node.values(3, "recovery_action") == {1}
    assert node.values(3, "sm_clock_mhz") == set()
    node.nvml.set(3, fail=None)
    node.wait(lambda: node.values(3, "recovery_action") == {0})
    assert node.events == []


@mode
def some_metrics_are_not_supported(node: Node) -> None:
    node.nvml.set(gpm=None, field__83=None, margin=None, buffers=None)
    reading = [node.tick() for _ in range(2)][-1]
    columns = reading.samples[0].columns
    assert {"tensor_active_ratio", "energy_mj", "temperature_margin_c"} & columns.keys() == set()
    assert "sm_clock_mhz" in columns
    assert (node.events, dict(node.rejected)) == ([], {})


@mode
def an_older_driver_has_older_calls(node: Node) -> None:
    node.nvml.set(
        reasons=None,
        reasons_old=4,
        field__3=None,
        ecc_corrected_old=7,
        field__83=None,
        energy_old=123_456,
        field__74=None,
    )
    node.nvml.set(temperature=None, temperature_old=61, violation_power=9_000_000, field__252=None, violation_thermal=5)
    assert node.sampled() == ALL
    found = {name: node.values(0, name) for name in ("clock_event_reasons", "ecc_corrected_total", "energy_mj")}
    assert found == {"clock_event_reasons": {4}, "ecc_corrected_total": {7}, "energy_mj": {123_456}}
    assert node.values(0, "temperature_c") == {61}
    assert node.values(0, "power_violation_ns") == {9_000_000}
    assert node.values(0, "thermal_violation_ns") == {5}
    assert node.values(0, "sw_power_cap_ns") == set()


@mode
def a_value_needs_more_permission(node: Node) -> None:
    node.nvml.set(3, power_limit="!4")
    reading = node.tick()
    assert node.sampled(reading) == ALL
    samples = sum(batch.gpus[gpu] == gpu_uuid(3) for batch in reading.samples for gpu in batch.gpu)
    assert node.rejected == {"power_limit_w:no_permission": samples}  # a slow machine may read twice before it tells
    assert node.values(3, "power_limit_w") == set()
    assert node.events == []


@mode
def a_GPU_may_not_be_used(node: Node) -> None:
    node.nvml.set(3, fail=4)
    assert node.sampled() == ALL - {3}
    assert node.events == []
    assert node.inventory is not None
    assert node.inventory.expected_gpus is None


@mode
def a_value_is_nonsense(node: Node) -> None:
    node.nvml.set(3, utilization=2619, buffers=None, field__3=10**12, mem_clock=4_294_967_295, power="!999")
    assert node.sampled() == ALL
    assert node.rejected == {
        "utilization_ratio:out_of_range": 1,
        "ecc_corrected_total:out_of_range": 1,
        "memory_clock_mhz:out_of_range": 1,
        "power_w:unknown_error": 1,
    }
    assert node.values(3, "memory_clock_mhz") == set()
    assert node.values(2, "memory_clock_mhz") == {2619}
    assert node.events == []


@mode
def a_GPU_talks_only_nonsense(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.garble(3)
    assert node.sampled() == ALL - {3}
    assert node.told() == [("collector_failed", gpu_uuid(3))]
    node.nvml.profile([synthetic(place) for place in range(8)])
    node.until(ALL)


@mode
def the_counters_of_a_GPU_fall_back(node: Node) -> None:
    node.nvml.set(field__83=10**9, field__74=10**12)
    node.tick()
    node.nvml.set(3, field__83=5, field__74=7, field__94=0)
    assert node.sampled() == ALL
    assert node.told() == [("gpu_reset", gpu_uuid(3))]


@mode
def the_driver_is_loaded_anew(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.about(epoch=2, driver="590.10.01").set(field__83=5, field__74=7)
    with pytest.raises(SourceUnavailable, match="access to the GPUs was lost"):
        node.tick()
    assert node.sampled() == ALL
    assert node.told() == [("driver_reload", "")]
    assert node.inventory is not None
    assert node.inventory.driver_version == "590.10.01"


@mode
def the_driver_is_changed_under_the_agent(node: Node) -> None:
    node.again(renew_s=0.3)
    assert node.sampled() == ALL
    node.nvml.about(init=18)
    node.wait(lambda: node.sampled() == ALL and bool(node.events))  # the process that is there still answers
    assert node.told() == [("collector_failed", "")]
    assert "reboot is due" in str(node.events[0].detail)
    node.again()
    with pytest.raises(SourceUnavailable, match="reboot is due"):
        node.tick()


@mode
def the_driver_is_not_loaded(node: Node) -> None:
    node.nvml.about(init=9)
    with pytest.raises(SourceUnavailable, match="driver is not loaded"):
        node.tick()
    node.nvml.about(init="")
    assert node.sampled() == ALL


@mode
def the_library_is_not_there(node: Node) -> None:
    node.collector.close()
    node.collector = Nvml(node="n1", patience=QUICK, environment={"LD_LIBRARY_PATH": str(node.nvml.folder)})
    with pytest.raises(SourceUnavailable, match=r"libnvidia-ml\.so\.1 is not found"):
        node.tick()


@mode
def access_to_every_GPU_is_lost(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(fail=999)
    for _ in range(3):
        with pytest.raises(SourceUnavailable, match="access to the GPUs was lost"):
            node.tick()
    node.nvml.set(fail=None)
    assert node.sampled() == ALL
    assert node.events == []


@mode
def indices_change(node: Node) -> None:
    clocks = {place: 1_500 + place for place in ALL}
    for place, clock in clocks.items():
        node.nvml.set(place, sm_clock=clock, buffers=None)
    node.tick()
    node.nvml.about(order="7,6,5,4,3,2,1,0", epoch=2)
    with pytest.raises(SourceUnavailable):
        node.tick()
    assert {place: node.values(place, "sm_clock_mhz") for place in ALL} == {p: {c} for p, c in clocks.items()}
    assert node.events == []


@mode
def another_GPU_is_in_the_slot(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, uuid=gpu_uuid(99), serial="1").about(epoch=2)
    with pytest.raises(SourceUnavailable):
        node.tick()
    assert gpu_uuid(99) in node.tick().samples[0].gpus
    assert node.told() == [("new_gpu", gpu_uuid(99))]


@mode
def MIG_is_on(node: Node) -> None:
    node.nvml.set(3, mig=1, utilization=None, buffers=None)
    for _ in range(2):
        assert node.sampled() == ALL
    assert node.inventory is not None
    assert {gpu.slot: gpu.mig_enabled for gpu in node.inventory.gpus} == {p + 1: p == 3 for p in ALL}
    assert node.values(3, "utilization_ratio") | node.values(3, "sm_active_ratio") == set()
    assert node.values(2, "sm_active_ratio")
    assert node.events == []


@mode
def an_NVLink_goes_down(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.set(3, field__221=5_000, field__59=40, gpm__60=0, gpm__61=0).xid(3, 74)
    node.tick()
    assert node.values(3, "nvlink_recovery_errors_total") == {40}
    assert node.values(3, "nvlink_symbol_errors_total") == {5_000}
    assert node.values(3, "nvlink_rx_bytes_per_s") == {0.0}
    assert [(event.kind, event.gpu_uuid, event.code) for event in node.events] == [("xid", gpu_uuid(3), 74)]


@mode
def XIDs_come_in_a_burst(node: Node) -> None:
    assert node.sampled() == ALL
    node.nvml.xid(3, 31, count=40).xid(5, 94)
    node.tick()
    node.tick()
    assert Counter((event.gpu_uuid, event.code) for event in node.events) == {
        (gpu_uuid(3), 31): 10,
        (gpu_uuid(5), 94): 1,
    }
    assert len({(event.time_ns, event.gpu_uuid, event.code) for event in node.events}) == 11
    assert any("30 more" in str(event.detail) for event in node.events)


@mode
def the_fabric_is_degraded(node: Node) -> None:
    well = {"fabric_state": 3, "fabric_status": 0, "fabric_summary": 1, "fabric_cluster": "ab" * 16, "fabric_clique": 7}
    node.nvml.set(**well)
    assert node.sampled() == ALL
    assert node.inventory is not None
    domain = "abababab-abab-abab-abab-abababababab.7"
    assert dict(node.inventory.place) == {"nvlink_domain": domain}
    node.nvml.set(3, fabric_summary=2, fabric_mask=5).set(4, fabric_status=23)
    node.wait(lambda: node.sampled() == ALL and len(node.events) == 2)
    assert set(node.told()) == {("fabric_fault", gpu_uuid(3)), ("fabric_fault", gpu_uuid(4))}
    assert {gpu.slot: gpu.fabric for gpu in node.inventory.gpus}[5] is None


@pytest.mark.parametrize("name", list(MODES))
def test_what_becomes_of(name: str, node: Node) -> None:
    """What the row of this name in docs/collectors.md says."""
    MODES[name](node)


def rows() -> Mapping[str, str]:
    """The rows of the page's table."""
    part = PAGE.read_text(encoding="utf-8").partition("### What NVML does, and what becomes of it")[2]
    lines = part.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    found = [re.split(r"\s*\|\s*", line.strip("| ")) for line in lines]
    return {row[0]: row[1] for row in found}


def test_the_table_is_whole() -> None:
    """Every mode of the stub is a row of docs/collectors.md, and every row a test."""
    assert list(rows()) == list(MODES)


def test_bus_ids_and_slots_are_the_catalogue_s(node: Node) -> None:
    """The inventory spells bus ids as everywhere else, and takes module ids for slots."""
    node.tick()
    assert node.inventory is not None
    assert {gpu.slot: gpu.bus_id for gpu in node.inventory.gpus} == {place + 1: bus_id(place) for place in ALL}
