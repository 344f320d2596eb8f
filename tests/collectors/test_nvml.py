"""The nvml collector: real captures through the stub, identity, units, XIDs from two sources, and the traps of NVML."""

import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nvml import NvmlStub, bus_id, captured, gpu_uuid, synthetic

from collectors import Reading
from collectors.cells import Missing
from collectors.nvidia_smi import NvidiaSmi
from collectors.nvml.codes import CODES, meaning
from collectors.nvml.collector import Nvml
from collectors.nvml.kernel_log import KernelLog
from collectors.nvml.patience import Patience
from collectors.nvml.values import check
from collectors.nvml.xids import XidLedger
from collectors.nvml_child.buffers import KINDS
from collectors.nvml_child.calls import CALLS, INSTEAD
from collectors.nvml_child.fields import FIELDS, slowdown_fields
from collectors.nvml_child.gpm import METRICS as GPM
from collectors.nvml_child.number import number
from collectors.nvml_child.wire import PROGRESS_BYTES, Doing, Inbox, doing, mark, pack
from telemetry.errors import SourceUnavailable
from telemetry.metrics import METRICS, SAMPLED

SECOND = 10**9
Make = Callable[..., Nvml]


@pytest.fixture
def collector(nvml: NvmlStub) -> Iterator[Make]:
    """Makes collectors over the stub, and closes them."""
    made: list[Nvml] = []

    def make(**more: object) -> Nvml:
        settings = {"node": "n1", "environment": nvml.environment, "kernel_log": nvml.folder / "none"} | more
        made.append(Nvml(**settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows(reading: Reading) -> dict[str, dict[str, object]]:
    """The values that each GPU has, by UUID."""
    return {
        batch.gpus[gpu]: {name: values[i] for name, values in batch.columns.items() if values[i] is not None}
        for batch in reading.samples
        for i, gpu in enumerate(batch.gpu)
    }


@pytest.mark.parametrize("name", ["a100", "h100", "gb200"])
def test_nvml_reads_what_nvidia_smi_showed(name: str, nvml: NvmlStub, collector: Make, shared_data: Path) -> None:
    """Fed with a real node's values in NVML's units, both collectors say the same of every GPU, field by field."""
    path = shared_data / "nvidia_smi" / f"{name}.xml"
    driver, gpus = captured(path)
    nvml.profile(gpus, driver=driver)
    found = rows(collector().collect())
    shown = rows(NvidiaSmi(node="n1", files=[path]).collect())
    assert len(found) == len(shown) == len(gpus)
    only_there = {"pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"}  # a measurement of 20 ms each in NVML: GPM has it free
    for place, there in enumerate(shown.values()):
        here = found[gpu_uuid(place)]
        assert {metric: here.get(metric) for metric in there.keys() - only_there} == {
            metric: pytest.approx(value, abs=0.011) for metric, value in there.items() if metric not in only_there
        }


@pytest.mark.parametrize("name", ["a100", "h100", "gb200"])
def test_nvml_lists_what_nvidia_smi_listed(name: str, nvml: NvmlStub, collector: Make, shared_data: Path) -> None:
    """Slots, bus ids, models, limits and the NVLink domain are the same from both."""
    path = shared_data / "nvidia_smi" / f"{name}.xml"
    driver, gpus = captured(path)
    nvml.profile(gpus, driver=driver)
    [here] = collector().collect().inventory
    [there] = NvidiaSmi(node="n1", files=[path], nodes=["n1"]).collect().inventory
    assert (here.driver_version, here.place) == (there.driver_version, there.place)
    facts = ("slot", "bus_id", "model", "serial", "memory_total_bytes", "power_limit_w", "power_limit_default_w")
    more = ("max_sm_clock_mhz", "max_memory_clock_mhz", "mig_enabled", "fabric")
    for ours, theirs in zip(here.gpus, there.gpus, strict=True):
        assert {f: getattr(ours, f) for f in facts + more} == {f: getattr(theirs, f) for f in facts + more}


def test_the_child_fills_what_the_catalogue_says() -> None:
    """Every metric with an NVML call is filled by the child's tables, and no other."""
    filled = {metric for _, _, metric, _ in (*FIELDS, *slowdown_fields("580.1"))}
    filled |= {metric for call in (*CALLS, *(call for _, call in INSTEAD)) for metric in call.metrics}
    filled |= {metric for _, metric, _ in (*GPM, *KINDS)} | {"fabric_health_mask"}
    assert filled == {metric.name for metric in SAMPLED if metric.nvml is not None}


def test_activity_and_means_come_with_the_second_reading(nvml: NvmlStub, collector: Make) -> None:
    """GPM needs two samples; the driver's buffers give means of what lies between two readings."""
    nvml.set(sm_clock="1500~400", gpm__60=1_000)
    one = collector()
    first = rows(one.collect())[gpu_uuid(0)]
    assert "sm_active_ratio" not in first
    time.sleep(0.5)
    second = rows(one.collect())[gpu_uuid(0)]
    assert 0.8 < float(str(second["sm_active_ratio"])) <= 1
    assert second["nvlink_rx_bytes_per_s"] == 1_000 * 2**20
    assert abs(int(str(second["sm_clock_mhz"])) - 1_500) < 250  # of 25 samples; a single one may be off by 400


def test_time_slowed_has_other_ids_in_newer_drivers() -> None:
    """251 to 253 up to 580, 269 to 271 from 615, none in between: those numbers mean other things there."""
    ids = {driver: [field[0] for field in slowdown_fields(driver)] for driver in ("535.9", "580.2", "595.1", "615.7")}
    assert ids == {"535.9": [251, 252, 253], "580.2": [251, 252, 253], "595.1": [], "615.7": [269, 270, 271]}


def test_a_flag_is_not_taken_for_a_counter(nvml: NvmlStub, collector: Make) -> None:
    """A field that reads 1 where nanoseconds belong is another field: null, and the older counter stands in."""
    nvml.set(field__252=1, violation_thermal=77)
    one = collector()
    for _ in range(2):
        found = rows(one.collect())[gpu_uuid(0)]
        assert "hw_thermal_ns" not in found
        assert found["thermal_violation_ns"] == 77


def test_no_child_is_left_behind(nvml: NvmlStub, collector: Make) -> None:
    """Closing ends the children, also one that hangs; closing twice is harmless, and a closed one says so."""
    one = collector(patience=Patience(late_s=0.2, tick_s=1.0, hang_s=30.0))
    one.collect()
    nvml.set(2, hang="all")
    one.collect()
    children = [psutil.Process(pid) for pid in one.pids]
    assert len(children) == 2
    one.close()
    one.close()
    assert not any(child.is_running() for child in children)
    with pytest.raises(SourceUnavailable, match="closed"):
        one.collect()


def test_memory_stays_flat_over_many_readings(nvml: NvmlStub, collector: Make) -> None:
    """Neither side grows with the number of readings."""
    one = collector(patience=Patience(late_s=10.0, tick_s=20.0))
    for _ in range(300):
        one.collect()
    [child] = [psutil.Process(pid) for pid in one.pids]
    before = child.memory_info().rss
    for _ in range(600):
        one.collect()
    assert child.memory_info().rss <= before + 500_000


def test_xids_of_the_kernel_s_log_have_their_own_time(nvml: NvmlStub, collector: Make, tmp_path: Path) -> None:
    """A line of the log is an event of the GPU at that bus id; the same XID from NVML is not told again."""
    kernel = tmp_path / "kmsg"
    kernel.write_text("6,1,1000,-;NVRM: Xid (PCI:0000:10:00): 13, from before\n")
    one = collector(kernel_log=kernel)
    one.collect()
    nvml.xid(1, 79)
    with kernel.open("a") as log:
        log.write("6,2,5000000,-;usb 1-1: new device\n")
        log.write(f"6,3,{time.monotonic_ns() // 1000 - 2_000_000},-;NVRM: Xid (PCI:0000:11:00): 79, pid=7, fell off\n")
        log.write("6,4,5000000,-;NVRM: Xid (PCI:0000:ee:00): 79, of no GPU here\n")
    events = [event for _ in range(3) for event in one.collect().events]
    assert [(event.kind, event.gpu_uuid, event.code, event.detail) for event in events] == [
        ("xid", gpu_uuid(1), 79, "pid=7, fell off")
    ]
    assert 1 < (time.time_ns() - events[0].time_ns) / SECOND < 10


def test_a_kernel_log_that_may_not_be_read_is_no_failure(tmp_path: Path) -> None:
    """It says so and finds nothing."""
    log = KernelLog(tmp_path / "none")
    assert not log.readable
    assert log.read() == []


@given(st.lists(st.tuples(st.sampled_from(["nvml", "kernel"]), st.integers(0, 3)), max_size=30))
def test_each_xid_is_told_once(heard: list[tuple[str, int]]) -> None:
    """However two sources interleave, an XID is told as often as the source that saw it more often."""
    ledger = XidLedger("n1")
    told = 0
    for place, (source, count) in enumerate(heard):
        found = [(SECOND + place, "GPU-a", 31, "")] * count
        told += len(ledger.tell(source, found))
    counts = {source: sum(count for s, count in heard if s == source) for source in ("nvml", "kernel")}
    assert told == max(counts.values())


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_error_of_nvml_has_a_meaning(code: int) -> None:
    """A failed value is missing for a reason; an unknown code is an unknown error."""
    _, missing = check({}, {"power_w": code})
    assert missing == {"power_w": CODES[code][1]}
    assert meaning(12_345) is Missing.UNKNOWN_ERROR


@pytest.mark.parametrize("metric", [m for m in METRICS.values() if m.type != "string"], ids=lambda m: str(m.name))
def test_markers_for_no_value_are_no_values(metric: object) -> None:
    """All ones of 32 and 64 bits, DCGM's blanks, NaN and infinity pass for no metric that cannot be that large."""
    name = str(getattr(metric, "name", ""))
    for marker in (2**64 - 1, 2**63 - 1, 9_223_372_036_854_775_792, -1e30, float("nan"), float("inf")):
        good, missing = check({name: marker}, {})
        assert (good, missing) == ({}, {name: Missing.OUT_OF_RANGE})
    good, missing = check({name: "85.12 W"}, {})
    assert (good, missing) == ({}, {name: Missing.UNREADABLE})


def test_numbers_are_read_by_their_type() -> None:
    """Eight bytes and a type; of an unknown type, a number that no metric can have."""
    assert number(1, b"\xff\xff\xff\xff\0\0\0\0") == 2**32 - 1
    assert number(5, b"\xff\xff\xff\xff\0\0\0\0") == -1
    assert number(0, bytes(6) + b"\xf0\x3f") == 1.0
    assert check({"energy_mj": number(99, bytes(8))}, {})[0] == {}


def test_half_an_entry_of_progress_is_none() -> None:
    """A child that is stopped while it writes down its call is not taken for one that hangs since the year 1970."""
    page = mmap.mmap(-1, PROGRESS_BYTES)
    mark(page, 1, 5, 4, 2, 3, b"nvmlDeviceGetName")
    assert doing(page) == Doing(5, 4, 2, 3, "nvmlDeviceGetName")
    whole = page[:]
    mark(page, 2, 0, 0, 2, -1, b"")
    assert doing(page) is None
    for cut in range(8, PROGRESS_BYTES - 8):
        page[:cut], page[cut:] = whole[:cut], page[cut:]
        assert doing(page) is None
        mark(page, 2, 0, 0, 2, -1, b"")


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.none()), max_size=5), st.integers(1, 50))
def test_messages_survive_any_cutting_of_the_stream(messages: list[dict[str, int | None]], size: int) -> None:
    """What goes into the pipe comes out, in whatever pieces."""
    data = b"".join(pack(message) for message in messages)
    inbox, found = Inbox(), []
    for start in range(0, len(data), size):
        found += inbox.feed(data[start : start + size])
    assert found == messages


def test_a_child_that_dies_is_replaced(nvml: NvmlStub, collector: Make) -> None:
    """Killed by whomever, it costs one reading, and says so."""
    one = collector()
    one.collect()
    os.kill(one.pids[0], 9)
    psutil.Process(one.pids[0]).wait(5) if psutil.pid_exists(one.pids[0]) else None
    with pytest.raises(SourceUnavailable, match="ended by itself"):
        one.collect()
    assert len(rows(one.collect())) == 8


def test_two_gpus_that_hang_at_once_cost_only_themselves(nvml: NvmlStub, collector: Make) -> None:
    """The one that takes over may hang too: the other six go on."""
    one = collector(
        patience=Patience(late_s=0.2, tick_s=0.9, reopen_s=0.3, start_s=5.0, hang_s=0.5, retry_s=(60.0, 60.0))
    )
    assert len(rows(one.collect())) == 8
    nvml.set(1, hang="all").set(6, hang="all")
    deadline = time.monotonic() + 40
    kinds: list[str] = []
    while kinds.count("collector_hang") < 2:
        assert time.monotonic() < deadline
        reading = one.collect()
        kinds += [event.kind for event in reading.events]
        time.sleep(0.05)
    assert rows(one.collect()).keys() == {gpu_uuid(place) for place in range(8) if place not in (1, 6)}
    assert set(kinds) == {"collector_hang"}


def test_slots_are_bus_order_where_there_are_no_modules(nvml: NvmlStub, collector: Make) -> None:
    """As for nvidia-smi: module ids only if every GPU has one of its own."""
    nvml.set(module=None).about(order="3,1,2,0,4,5,6,7")
    [inventory] = collector().collect().inventory
    assert {gpu.bus_id: gpu.slot for gpu in inventory.gpus} == {bus_id(place): place for place in range(8)}


def test_the_numa_node_is_the_host_s(nvml: NvmlStub, collector: Make, tmp_path: Path) -> None:
    """As Linux says for the PCI slot; null where it knows none, which it writes as -1."""
    for place, text in ((0, "1\n"), (1, "-1\n")):
        device = tmp_path / "pci" / bus_id(place)[4:]
        device.mkdir(parents=True)
        (device / "numa_node").write_text(text)
    [inventory] = collector(pci_devices=tmp_path / "pci").collect().inventory
    assert [gpu.numa_node for gpu in inventory.gpus[:3]] == [1, None, None]


def test_large_numbers_of_the_platform_are_read(nvml: NvmlStub, collector: Make) -> None:
    """A slot above 127 is a number, not half a letter; the chassis is a level of the topology."""
    nvml.profile([synthetic(0)]).set(0, platform_slot=200, platform_chassis="1820125000123", platform_module=2)
    [inventory] = collector().collect().inventory
    assert inventory.place == (("chassis", "1820125000123"),)
