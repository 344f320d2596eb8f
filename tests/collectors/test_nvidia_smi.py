"""nvidia-smi: real captures, and every way in which its output has misled other tools."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.nvidia_smi import gpu_uuid, gpu_xml, listing_xml, program

from collectors import Reading
from collectors.cells import Missing, parse
from collectors.listing import normal_bus_id
from collectors.nvidia_smi import NvidiaSmi
from collectors.nvidia_smi_csv import QUERY
from telemetry.codec import Encoder
from telemetry.errors import SettingsError, SourceHangs, SourceUnavailable
from telemetry.metrics import METRICS, SAMPLED
from telemetry.records import NodeInventory

DATA = Path(__file__).resolve().parents[1] / "data" / "nvidia_smi"
NOW_NS = 1_767_225_600 * 10**9


def rows(reading: Reading) -> list[dict[str, object]]:
    """The samples as one mapping a row; a column that is absent is absent here too."""
    return [
        {"gpu_uuid": batch.gpus[batch.gpu[i]], "node": batch.node}
        | {name: values[i] for name, values in batch.columns.items() if values[i] is not None}
        for batch in reading.samples
        for i in range(len(batch))
    ]


def from_file(*paths: Path, **more: object) -> NvidiaSmi:
    return NvidiaSmi(node="unused", files=paths, clock_ns=lambda: NOW_NS, **more)  # type: ignore[arg-type]


def inventory_of(reading: Reading) -> NodeInventory:
    [record] = reading.inventory
    return record


class Stage:
    """A node whose nvidia-smi says what a test puts on the stage."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.folder = folder
        self.answer = folder / "answer"
        self.time_ns = NOW_NS
        command = program(folder, f'cat "{self.answer}"')
        self.collector = NvidiaSmi(
            node="n1",
            command=command,
            clock_ns=lambda: self.time_ns,
            driver_listing=folder / "driver",
            **more,  # type: ignore[arg-type]
        )

    def show(self, *gpus: str, driver: str = "580.00.00") -> Reading:
        """What the collector makes of this listing."""
        self.answer.write_text(listing_xml(gpus, driver=driver), encoding="utf-8")
        self.time_ns += 10**9
        return self.collector.collect()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


GOLDEN: Mapping[str, Mapping[str, object]] = {
    "h100": {
        "sm_clock_mhz": 345,
        "memory_clock_mhz": 2619,
        "temperature_c": 29,
        "memory_temperature_c": 37,
        "temperature_margin_c": 58,
        "power_w": 68.57,
        "power_instant_w": 68.92,
        "power_limit_w": 700.0,
        "utilization_ratio": 0.0,
        "clock_event_reasons": 1,
        "performance_state": 0,
        "memory_used_bytes": 0,
        "sw_power_cap_ns": 7_015_662_857_000,
        "hw_power_brake_ns": 0,
        "ecc_corrected_total": 0,
        "ecc_uncorrected_total": 0,
        "row_remap_pending": 0,
        "pcie_replay_total": 150,
        "pcie_link_gen": 5,
        "pcie_link_width": 16,
        "pcie_tx_bytes_per_s": 502_000.0,
        "pcie_rx_bytes_per_s": 578_000.0,
        "recovery_action": 0,
    },
    "gb200": {
        "sm_clock_mhz": 120,
        "memory_clock_mhz": 3996,
        "temperature_c": 27,
        "temperature_margin_c": 60,
        "power_w": 165.93,
        "power_limit_w": 1200.0,
        "sw_power_cap_ns": 2_354_613_000,
        "pcie_link_gen": 5,
    },
    "a100": {
        "sm_clock_mhz": 210,
        "memory_clock_mhz": 1215,
        "temperature_c": 33,
        "memory_temperature_c": 34,
        "power_instant_w": 49.68,
        "power_limit_w": 400.0,
        "pcie_link_gen": 4,
        "pcie_tx_bytes_per_s": 350_000.0,
    },
}


@pytest.mark.parametrize(("name", "gpus"), [("h100", 8), ("gb200", 4), ("a100", 1)])
def test_a_real_capture_is_read_completely(shared_data: Path, name: str, gpus: int) -> None:
    """Every GPU of the capture is a row, with the values that the file shows."""
    reading = from_file(shared_data / "nvidia_smi" / f"{name}.xml").collect()
    found = rows(reading)
    assert len(found) == gpus
    assert found[0].items() >= GOLDEN[name].items()
    assert not reading.rejected
    assert not reading.events
    [batch] = reading.samples
    assert (batch.node, set(batch.time_ns)) == (name, {NOW_NS})
    assert Encoder().encode(batch).value


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("h100", set()),
        ("gb200", set()),
        (
            "a100",
            {
                "temperature_margin_c",
                "power_w",
                *(f"{reason}_ns" for reason in ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal")),
                "hw_power_brake_ns",
            },
        ),
    ],
)
def test_a_metric_is_null_only_where_the_capture_has_none(shared_data: Path, name: str, absent: set[str]) -> None:
    """Of the metrics with an XML path only those are missing that the file gives as N/A or does not have."""
    reading = from_file(shared_data / "nvidia_smi" / f"{name}.xml").collect()
    [batch] = reading.samples
    assert {metric.name for metric in SAMPLED if metric.smi_xml} - set(batch.columns) == absent
    assert all(None not in values for values in batch.columns.values())


def test_inventory_of_a_rack_scale_node(shared_data: Path) -> None:
    """A GB200 tray: slots are module ids, the NVLink domain and the chassis are its place."""
    record = inventory_of(
        from_file(shared_data / "nvidia_smi" / "gb200.xml", place=(("leaf", "l3"),), expected_gpus=4).collect()
    )
    domain = "00000001-0000-0000-0000-000000000001.2"
    assert record.place == (("nvlink_domain", domain), ("chassis", "1820000000001"), ("leaf", "l3"))
    assert [gpu.slot for gpu in record.gpus] == [2, 1, 4, 3]
    gpu = record.gpus[0]
    assert (gpu.model, gpu.bus_id, gpu.serial) == ("NVIDIA GB200", "00000000:29:00.0", "1650000000001")
    assert (gpu.memory_total_bytes, gpu.power_limit_w, gpu.max_sm_clock_mhz) == (189_471 << 20, 1200.0, 2062)
    assert (gpu.driver_version, gpu.mig_enabled, gpu.fabric) == ("580.173.02", False, domain)


def test_a_zero_cluster_uuid_is_no_domain(shared_data: Path) -> None:
    """An HGX H100 reports success and a UUID of zeros: no multi-node domain, and nothing is wrong."""
    reading = from_file(shared_data / "nvidia_smi" / "h100.xml").collect()
    assert inventory_of(reading).place == ()
    assert {gpu.fabric for gpu in inventory_of(reading).gpus} == {None}


def test_scrubbed_uuids_never_merge_two_nodes(shared_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two nodes made of the same scrubbed capture have sixteen GPUs, the same ones at every reading."""
    capture = shared_data / "nvidia_smi" / "h100.xml"
    collector = from_file(capture, capture, nodes=("n1", "n2"))
    with caplog.at_level(logging.WARNING):
        first, second = collector.collect(), collector.collect()
    names = [row["gpu_uuid"] for row in rows(first)]
    assert len(set(names)) == 16
    assert names == [row["gpu_uuid"] for row in rows(second)]
    assert sum("scrubbed" in record.message for record in caplog.records) == 1


def test_inventory_is_given_once(shared_data: Path) -> None:
    """A second, equal listing is no news."""
    collector = from_file(*sorted((shared_data / "nvidia_smi").glob("*.xml")))
    assert [record.node for record in collector.collect().inventory] == ["a100", "gb200", "h100"]
    assert not collector.collect().inventory


def test_an_old_driver_s_names_are_read() -> None:
    """Before driver 535 reasons were called throttle reasons, power had one reading, SRAM errors one count."""
    reading = from_file(DATA / "driver_510.xml").collect()
    [row] = rows(reading)
    assert row["clock_event_reasons"] == 0x4 | 0x8 | 0x80
    assert (row["power_w"], row["power_limit_w"]) == (287.31, 290.0)
    assert "power_instant_w" not in row
    assert (row["ecc_corrected_total"], row["ecc_uncorrected_total"]) == (31, 6)
    assert (row["utilization_ratio"], row["pcie_link_width"], row["performance_state"]) == (0.97, 8, 2)
    [gpu] = inventory_of(reading).gpus
    assert (gpu.power_limit_w, gpu.power_limit_default_w, gpu.mig_enabled, gpu.slot) == (290.0, 300.0, None, 0)
    assert not reading.rejected


def test_average_and_instant_power_are_kept_apart(stage: Stage) -> None:
    """Driver 570 has no power_draw any more: both of its readings arrive, each under its own name."""
    power = (
        "<gpu_power_readings><average_power_draw>412.10 W</average_power_draw>"
        "<instant_power_draw>431.55 W</instant_power_draw></gpu_power_readings>"
    )
    [row] = rows(stage.show(gpu_xml(1, cells=power)))
    assert (row["power_w"], row["power_instant_w"]) == (412.10, 431.55)


def test_one_lost_gpu_costs_its_neighbours_nothing(stage: Stage) -> None:
    """Three GPUs keep their samples, the fourth is reported lost under its last UUID, once; one value alone is null."""
    stage.show(*(gpu_xml(number) for number in (0x1A, 0x2A, 0x3A, 0x4A)))
    stage.answer.write_bytes((DATA / "one_lost.xml").read_bytes())
    reading = stage.collector.collect()
    assert [row.get("temperature_c") for row in rows(reading)] == [51, None, 53]
    assert reading.rejected == {"temperature_c:unknown_error": 1}
    lost = [event for event in reading.events if event.kind == "gpu_lost"]
    assert [(event.gpu_uuid, event.detail) for event in lost] == [(gpu_uuid(0x4A), "GPU is lost")]
    assert not [event for event in stage.collector.collect().events if event.kind == "gpu_lost"]


def test_a_gpu_that_is_no_longer_listed_is_lost(stage: Stage) -> None:
    """It does not vanish: an event names it, and it may come back without one."""
    both = (gpu_xml(1), gpu_xml(2))
    stage.show(*both)
    [event] = stage.show(gpu_xml(1)).events
    assert (event.kind, event.gpu_uuid, event.node) == ("gpu_lost", gpu_uuid(2), "n1")
    assert not stage.show(gpu_xml(1)).events
    assert not stage.show(*both).events
    assert [event.kind for event in stage.show(gpu_xml(2)).events] == ["gpu_lost"]


def test_the_others_are_asked_when_the_driver_refuses_the_listing(tmp_path: Path) -> None:
    """nvidia-smi that gives up at the lost GPU is asked for each of the others."""
    (tmp_path / "1.xml").write_text(listing_xml([gpu_xml(1)]), encoding="utf-8")
    (tmp_path / "driver" / "0000:01:00.0").mkdir(parents=True)
    (tmp_path / "driver" / "0000:02:00.0").mkdir()
    command = program(
        tmp_path,
        f"""case "$*" in
        *"-i 00000000:01:00.0") cat "{tmp_path}/1.xml";;
        *) echo "Unable to determine the device handle for GPU0000:02:00.0: GPU is lost.  Reboot the system."; exit 15;;
        esac""",
    )
    collector = NvidiaSmi(node="n1", command=command, driver_listing=tmp_path / "driver", expected_gpus=2)
    reading = collector.collect()
    assert [row["gpu_uuid"] for row in rows(reading)] == [gpu_uuid(1)]
    assert [(event.kind, event.gpu_uuid) for event in reading.events] == [("missing_gpu", "")]


def test_a_listing_that_breaks_off_proves_no_loss(stage: Stage) -> None:
    """Output cut in the middle keeps the GPUs before the cut and declares nobody lost."""
    stage.show(gpu_xml(1), gpu_xml(2))
    whole = listing_xml([gpu_xml(1), gpu_xml(2)])
    stage.answer.write_text(whole[: whole.index("</gpu>") + 60], encoding="utf-8")
    reading = stage.collector.collect()
    assert len(rows(reading)) == 1
    assert not reading.events
    assert reading.rejected == {"listing:truncated": 1}


def test_fewer_gpus_than_expected_is_told_once(tmp_path: Path) -> None:
    """A GPU can be absent from the start and without any XID: the expected count shows it."""
    stage = Stage(tmp_path, expected_gpus=3)
    [event] = stage.show(gpu_xml(1), gpu_xml(2)).events
    assert (event.kind, event.gpu_uuid, event.detail) == ("missing_gpu", "", "2 of 3 GPUs answer")
    assert not stage.show(gpu_xml(1), gpu_xml(2)).events


def test_another_uuid_at_a_place_is_a_new_gpu(stage: Stage) -> None:
    """A swapped GPU is announced under its own UUID; the old one is replaced, not lost."""
    stage.show(gpu_xml(1), gpu_xml(2))
    [event] = stage.show(gpu_xml(1), gpu_xml(2, uuid="GPU-new")).events
    assert (event.kind, event.gpu_uuid) == ("new_gpu", "GPU-new")


def counters(cap_us: int, ecc: int) -> str:
    return (
        "<clocks_event_reasons_counters><clocks_event_reasons_counters_sw_power_cap>"
        f"{cap_us} us</clocks_event_reasons_counters_sw_power_cap></clocks_event_reasons_counters>"
        f"<ecc_errors><volatile><sram_correctable>0</sram_correctable><dram_correctable>{ecc}</dram_correctable>"
        "</volatile></ecc_errors>"
    )


def test_a_driver_reload_is_seen_by_version_and_by_counters(stage: Stage) -> None:
    """A new version, or all counters of all GPUs falling back; counters that grow say nothing."""
    stage.show(gpu_xml(1, cells=counters(500, 7)), gpu_xml(2, cells=counters(900, 0)))
    assert not stage.show(gpu_xml(1, cells=counters(600, 7)), gpu_xml(2, cells=counters(950, 0))).events
    [fell] = stage.show(gpu_xml(1, cells=counters(3, 0)), gpu_xml(2, cells=counters(4, 0))).events
    assert (fell.kind, fell.gpu_uuid) == ("driver_reload", "")
    [changed] = stage.show(gpu_xml(1), gpu_xml(2), driver="590.00.00").events
    assert (changed.kind, changed.detail) == ("driver_reload", "driver 580.00.00 is now 590.00.00")


def test_one_gpu_s_counters_falling_back_is_its_reset(stage: Stage) -> None:
    """The others went on counting: that GPU alone was reset."""
    stage.show(gpu_xml(1, cells=counters(500, 7)), gpu_xml(2, cells=counters(900, 0)))
    [event] = stage.show(gpu_xml(1, cells=counters(600, 7)), gpu_xml(2, cells=counters(1, 0))).events
    assert (event.kind, event.gpu_uuid) == ("gpu_reset", gpu_uuid(2))


def test_a_broken_fabric_is_a_fault_and_no_domain() -> None:
    """Completed but not successful: a fault for each GPU, told once, and never two nodes in one domain of zeros."""
    collector = from_file(DATA / "fabric.xml")
    reading = collector.collect()
    assert [(event.kind, event.gpu_uuid[-1], event.detail) for event in reading.events] == [
        ("fabric_fault", "1", "fabric state Completed, status Insufficient Resources"),
        ("fabric_fault", "2", "fabric state Completed, status Unknown Error"),
    ]
    assert {gpu.fabric for gpu in inventory_of(reading).gpus} == {None}
    assert inventory_of(reading).place == ()
    assert not collector.collect().events


def test_one_unknown_error_costs_one_value(caplog: pytest.LogCaptureFixture) -> None:
    """The row keeps its other values, the next row is whole, and the log says it once."""
    collector = from_file(DATA / "unknown_error.csv")
    with caplog.at_level(logging.WARNING):
        reading = collector.collect()
        collector.collect()
    first, second = rows(reading)
    assert first == {
        "gpu_uuid": "GPU-aa",
        "node": "unknown_error",
        "temperature_c": 61,
        "power_w": 402.10,
        "performance_state": 0,
    }
    assert second["memory_clock_mhz"] == 2619
    assert reading.rejected == {"memory_clock_mhz:unknown_error": 1}
    assert sum("memory_clock_mhz:unknown_error" in record.message for record in caplog.records) == 1


def test_unified_memory_is_null_not_zero() -> None:
    """A GPU without memory of its own has none, in samples and inventory, and keeps its other values."""
    reading = from_file(DATA / "unified_memory.csv").collect()
    [row] = rows(reading)
    assert "memory_used_bytes" not in row
    assert (row["memory_utilization_ratio"], row["utilization_ratio"], row["power_w"]) == (0.0, 0.96, 61.2)
    assert inventory_of(reading).gpus[0].memory_total_bytes is None
    assert not reading.rejected


def test_csv_cells_are_converted_once_and_garbage_is_counted() -> None:
    """Units come from the cell, else from the heading; what is out of range or no number is null and counted."""
    reading = from_file(DATA / "units.csv").collect()
    a, b, c, d = rows(reading)
    assert (a["sm_clock_mhz"], a["memory_used_bytes"], a["clock_event_reasons"]) == (1980, 512 << 20, 4)
    assert (a["sw_power_cap_ns"], a["recovery_action"], a["utilization_ratio"]) == (7_015_662_857_000, 0, 0.29)
    assert "power_w" not in a
    assert a["power_instant_w"] == 49.68
    assert {name: a[name] for name in ("sm_clock_mhz", "memory_used_bytes", "sw_power_cap_ns")} == {
        name: b[name] for name in ("sm_clock_mhz", "memory_used_bytes", "sw_power_cap_ns")
    }
    assert (b["clock_event_reasons"], b["recovery_action"], b["row_remap_pending"]) == (0x84, 1, 1)
    assert (c["sm_clock_mhz"], c["memory_used_bytes"], c["recovery_action"]) == (1980, 512 << 20, 3)
    assert d["recovery_action"] == 4
    assert d["power_instant_w"] == pytest.approx(0.43155)
    assert reading.rejected == {
        "utilization_ratio:out_of_range": 1,
        "power_instant_w:no_permission": 1,
        "sm_clock_mhz:out_of_range": 1,
        "memory_used_bytes:out_of_range": 1,
        "clock_event_reasons:unreadable": 1,
        "pcie_link_width:unreadable": 1,
        "power_w:reset_required": 1,
    }
    assert [gpu.bus_id for gpu in inventory_of(reading).gpus] == [f"00000000:0{i}:00.0" for i in (1, 2, 3, 4)]


def test_the_first_alternative_with_a_value_counts(tmp_path: Path) -> None:
    """A field that is there but N/A gives way to the metric's next one."""
    path = tmp_path / "n1.csv"
    path.write_text("uuid, power.draw.average [W], power.draw [W]\nGPU-a, [N/A], 49.68 W\nGPU-b, 60.00 W, 61.00 W\n")
    reading = from_file(path).collect()
    assert [row["power_w"] for row in rows(reading)] == [49.68, 60.0]
    assert not reading.rejected


def test_a_sum_with_a_failed_part_is_unknown(stage: Stage) -> None:
    """A lower sum would look like counters falling back; a part that the model lacks is simply left out."""
    ecc = (
        "<ecc_errors><volatile><sram_correctable>{}</sram_correctable>"
        "<dram_correctable>7</dram_correctable></volatile></ecc_errors>"
    )
    reading = stage.show(gpu_xml(1, cells=ecc.format("[Unknown Error]")), gpu_xml(2, cells=ecc.format("N/A")))
    assert [row.get("ecc_corrected_total") for row in rows(reading)] == [None, 7]
    assert reading.rejected == {"ecc_corrected_total:unknown_error": 1}


def test_fields_that_an_older_nvidia_smi_refuses_are_dropped_and_remembered(tmp_path: Path) -> None:
    """It names one unknown field at a time; the rest is read, and the next reading asks for the rest at once."""
    calls = tmp_path / "calls"
    command = program(
        tmp_path,
        f"""echo "$1" >> "{calls}"
        case "$1" in
        *power.draw.average*) echo 'Field "power.draw.average" is not a valid field to query.'; exit 2;;
        *fabric.state*) echo 'Field "fabric.state" is not a valid field to query.' >&2; exit 2;;
        esac
        fields=${{1#--query-gpu=}}
        echo "$fields" | sed 's/,/, /g'
        echo "$fields" | sed 's/^uuid/GPU-ee/; s/power\\.draw,/301.5 W,/; s/,[a-z][A-Za-z_.]*/,[N\\/A]/g; s/,/, /g'""",
    )
    collector = NvidiaSmi(node="n1", mode="csv", command=command)
    [row] = rows(collector.collect())
    assert row == {"gpu_uuid": "GPU-ee", "node": "n1", "power_w": 301.5}
    assert len(calls.read_text().splitlines()) == 3
    collector.collect()
    assert len(calls.read_text().splitlines()) == 4
    assert calls.read_text().count("power.draw.average") == 1
    assert "power.draw.average" in QUERY


@pytest.mark.parametrize(
    ("says", "status", "meaning"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", 18, "a reboot is due"),
        ("Failed to initialize NVML: Unknown Error", 255, "access to the GPUs was lost"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "driver is not loaded"),
        ("No devices were found", 6, "no GPU is found"),
        ("", 1, "no output"),
    ],
)
def test_a_refusal_is_about_the_whole_source(tmp_path: Path, says: str, status: int, meaning: str) -> None:
    """What concerns the node is one SourceUnavailable with its meaning, never as many sick GPUs."""
    collector = NvidiaSmi(node="n1", command=program(tmp_path, f'echo "{says}"; exit {status}'))
    with pytest.raises(SourceUnavailable, match=meaning):
        collector.collect()


def test_all_gpus_failing_at_once_is_a_trouble_of_the_node(stage: Stage) -> None:
    """Eight times Unknown Error in the same second is lost access, not eight bad GPUs."""
    stage.show(*(gpu_xml(number) for number in range(1, 9)))
    with pytest.raises(SourceUnavailable, match="no GPU of n1 gives a value: unknown_error"):
        stage.show(*(gpu_xml(number, clock="[Unknown Error]") for number in range(1, 9)))


def test_a_missing_program_is_said_clearly(tmp_path: Path) -> None:
    """A node without nvidia-smi gets one sentence, not a trace."""
    collector = NvidiaSmi(node="n1", command=(str(tmp_path / "nvidia-smi"),))
    with pytest.raises(SourceUnavailable, match="cannot be run: No such file"):
        collector.collect()


def test_a_query_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    """A hanging query ends at its deadline, and no process of it stays."""
    pids = tmp_path / "pids"
    command = program(tmp_path, f'trap "" TERM; sleep 300 & echo $! > "{pids}"; echo $$ >> "{pids}"; wait')
    collector = NvidiaSmi(node="n1", command=command, timeout_s=0.5)
    started = time.monotonic()
    with pytest.raises(SourceHangs, match="query hangs"):
        collector.collect()
    assert time.monotonic() - started < 3
    for pid in map(int, pids.read_text().split()):
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().split()[2] in "ZX"


def test_a_query_stuck_in_the_driver_is_never_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot be killed stays the one outstanding call; once it has gone, readings go on."""
    calls, answer, gate = tmp_path / "calls", tmp_path / "answer", tmp_path / "gate"
    os.mkfifo(gate)
    answer.write_text(listing_xml([gpu_xml(1)]), encoding="utf-8")
    script = f'echo x >> "{calls}"; [ -e "{tmp_path}/free" ] || read line < "{gate}"; cat "{answer}"'
    collector = NvidiaSmi(node="n1", command=program(tmp_path, script), timeout_s=0.3)
    with monkeypatch.context() as patched:
        patched.setattr("os.killpg", lambda pid, number: None)  # what state D amounts to
        for expected in ("gave no answer", "is stuck", "is stuck"):
            with pytest.raises(SourceHangs, match=expected):
                collector.collect()
    assert calls.read_text() == "x\n"
    (tmp_path / "free").touch()
    with gate.open("w") as writer:
        writer.write("go\n")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert len(rows(collector.collect())) == 1
            break
        except SourceHangs:
            time.sleep(0.05)
    else:
        pytest.fail("the collector did not come back")
    collector.close()


def test_a_bad_capture_does_not_cost_the_good_one(tmp_path: Path) -> None:
    """Of two files one is garbage: the other node is read, the garbage counted; both bad is a failure."""
    good, bad = tmp_path / "good.xml", tmp_path / "bad.xml"
    good.write_text(listing_xml([gpu_xml(1)]), encoding="utf-8")
    bad.write_bytes(b"\x00\xff<nvidia_smi_log><gpu>")
    reading = from_file(good, bad, tmp_path / "absent.csv").collect()
    assert [batch.node for batch in reading.samples] == ["good"]
    assert reading.rejected == {"capture:truncated": 1, "capture:unreadable": 1}
    with pytest.raises(SourceUnavailable, match=r"bad\.xml"):
        from_file(bad).collect()


def test_entities_are_refused(tmp_path: Path) -> None:
    """XML that would grow without end is no listing."""
    path = tmp_path / "n1.xml"
    path.write_text('<!DOCTYPE a [<!ENTITY b "bb">]><nvidia_smi_log><gpu/></nvidia_smi_log>', encoding="utf-8")
    with pytest.raises(SourceUnavailable, match="xml_entity"):
        from_file(path).collect()


def test_captures_with_one_name_are_refused(tmp_path: Path) -> None:
    """Two files of the same stem would be one node: the settings are wrong, and it says so."""
    with pytest.raises(SettingsError, match="different node names"):
        from_file(tmp_path / "a" / "n1.xml", tmp_path / "b" / "n1.xml")


def test_one_uuid_twice_in_a_node_stays_two_gpus(stage: Stage) -> None:
    """A repeated UUID is counted, and the second GPU is told apart by its bus id."""
    reading = stage.show(gpu_xml(1, uuid="GPU-x"), gpu_xml(2, uuid="GPU-x"))
    assert len({row["gpu_uuid"] for row in rows(reading)}) == 2
    assert reading.rejected == {"gpu:repeated_uuid": 1}


@pytest.mark.parametrize("text", ["0000:9B:00", "00000000:9B:00.0", "0000:9b:00.0", "9b:00.0", " 00000000:9B:00.0 "])
def test_bus_ids_are_spelled_one_way(text: str) -> None:
    """Whatever the source, one bus id has one spelling."""
    assert normal_bus_id(text) == "00000000:9b:00.0"


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30), name=st.sampled_from(sorted(m.name for m in SAMPLED)), unit=st.text(max_size=4))
def test_any_text_is_a_value_in_range_or_a_reason(text: str, name: str, unit: str) -> None:
    """No cell can raise, and no value leaves the metric's range."""
    metric = METRICS[name]
    value = parse(metric, text, unit=unit)
    if not isinstance(value, Missing):
        assert value >= (metric.low if metric.low is not None else 0)
        assert metric.high is None or value <= metric.high


@settings(max_examples=100, deadline=None)
@given(cut=st.integers(0, 3000), noise=st.binary(max_size=20))
def test_a_damaged_listing_never_crashes_the_collector(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    """Cut or overwritten anywhere, it is read in part or refused in words."""
    content = (DATA / "driver_510.xml").read_bytes()
    path = tmp_path_factory.getbasetemp() / "damaged.xml"
    path.write_bytes(content[:cut] + noise + content[cut + len(noise) :])
    try:
        reading = from_file(path).collect()
    except SourceUnavailable:
        return
    assert all(Encoder().encode(batch).value for batch in reading.samples)
