"""Every kind of fault does what it says, to its targets, in its time, and to nobody else.

To test a new kind: one function in `CHECKS`; a test fails while it has none.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_run import START_NS, Run, S, fleet

from collectors.simulated.faults import FAULTS, WHOLE_NODE
from telemetry.codec import Encoder, check_body, decompress
from telemetry.metrics import METRICS, SAMPLED, Kind

START, END, SECONDS = 60, 160, 200


class Case:
    """A run with one fault on GPU n1/1 (or all of n1), from second 60 to 160 of 200, and the same run without it."""

    def __init__(self, kind: str, **fault: Any) -> None:
        select = {"node": "n1"} if kind in WHOLE_NODE else {"gpu": "n1/1"}
        changes = {key: fault.pop(key) for key in ("model", "interval_s") if key in fault}
        described = {"kind": kind, "start_s": START, "end_s": END, "select": select} | fault
        self.run = Run(_with_model(fleet(described), changes.get("model")), seconds=SECONDS)
        self.well = Run(_with_model(fleet(), changes.get("model")), seconds=SECONDS)
        self.uuid = self.run.uuid("n1", 1)

    def before(self, metric: str) -> Any:
        """The target's values before the fault."""
        return self.run.between(self.uuid, metric, 20, START)

    def during(self, metric: str) -> Any:
        """The target's values while it lasts, once the heat has settled."""
        return self.run.between(self.uuid, metric, START + 50, END)

    def after(self, metric: str) -> Any:
        """The target's values when it is over."""
        return self.run.between(self.uuid, metric, END + 1, SECONDS)

    def grown(self, metric: str) -> float:
        """How much a counter grew a second while the fault lasted."""
        values = self.run.between(self.uuid, metric, START - 1, END)
        return float(int(values[-1]) - int(values[0])) / (END - START)

    def ratio(self, metric: str) -> float:
        """Mean while it lasts, relative to before."""
        return float(np.mean(self.during(metric)) / np.mean(self.before(metric)))

    def bits(self, mask: int) -> float:
        """Share of the samples during the fault with all of these clock-event reasons."""
        return float(np.mean((self.during("clock_event_reasons").astype(np.int64) & mask) == mask))

    def events(self) -> list[tuple[str, int]]:
        """(kind, code) of all events, in order."""
        return [(event.kind, event.code) for event in self.run.events]

    def lost(self) -> float:
        """Share of the target's samples that are missing while the fault lasts."""
        times = self.run.times(self.uuid)
        return 1 - np.count_nonzero((times >= START) & (times < END)) / (END - START)

    def seen(self, node: str) -> list[int]:
        """How many GPUs each inventory of a node has."""
        return [len(inventory.gpus) for inventory in self.run.inventory if inventory.node == node]


def _with_model(description: dict[str, Any], model: str | None) -> dict[str, Any]:
    if model is not None:
        rack = description["sites"][0]["racks"][0]
        rack["nodes"][0]["model"] = model
        rack["nvlink_domain"] = True
    return description


def slow_silicon(case: Case) -> None:
    """Less work at equal clock, power and temperature."""
    assert case.ratio("tensor_active_ratio") == pytest.approx(0.92, abs=0.01)
    assert case.ratio("sm_clock_mhz") == pytest.approx(1, abs=0.003)
    assert case.ratio("power_w") == pytest.approx(1, abs=0.003)


def drift(case: Case) -> None:
    """The loss grows evenly."""
    tensor = [np.mean(case.run.between(case.uuid, "tensor_active_ratio", t, t + 20)) for t in (40, 80, 100, 120, 140)]
    assert all(a > b for a, b in pairwise(tensor))
    assert tensor[-1] / tensor[0] == pytest.approx(1 - 0.3 * 90 / 100, abs=0.02)


def low_clock(case: Case) -> None:
    """The clock is held at a setting, and 0x2 says so."""
    assert case.during("sm_clock_mhz").max() <= 0.7 * 1980
    assert case.bits(0x2) == 1
    assert case.bits(0x4) == 0


def power_cap(case: Case) -> None:
    """Power and clock fall to the wrong limit, which samples and inventory show."""
    assert case.during("power_limit_w").tolist() == pytest.approx([490] * 50)
    assert case.during("power_w").max() < 495
    assert 0.7 < case.ratio("sm_clock_mhz") < 0.95
    limits = [v.gpus[1].power_limit_w for v in case.run.inventory if v.node == "n1"]
    assert limits == pytest.approx([700, 490, 700])


def power_brake(case: Case) -> None:
    """0x80 with 0x8, clock at 40 %, the counter of the brake runs; the capping one stands."""
    assert case.bits(0x88) == 1
    assert case.during("sm_clock_mhz").max() <= 0.4 * 1980
    assert case.grown("hw_power_brake_ns") == pytest.approx(S, rel=0.02)
    assert case.grown("sw_power_cap_ns") < 0.02 * S


def hw_slowdown(case: Case) -> None:
    """0x8 alone."""
    assert case.bits(0x8) == 1
    assert case.bits(0x80) == 0
    assert case.during("sm_clock_mhz").max() <= 0.5 * 1980


def cooling(case: Case) -> None:
    """Hotter at equal or less power; throttled for heat where that is not enough."""
    assert np.mean(case.during("temperature_c")) > np.mean(case.before("temperature_c")) + 12
    assert case.ratio("power_w") <= 1.002
    assert case.ratio("sm_clock_mhz") < 0.97
    assert case.grown("sw_thermal_ns") > 0.02 * S


def rack_cooling(case: Case) -> None:
    """Warm air heats all that stand in it."""
    assert np.mean(case.during("temperature_c")) > np.mean(case.before("temperature_c")) + 10


def room_warm(case: Case) -> None:
    """A few degrees, and hardly a per cent of clock."""
    assert 2 < np.mean(case.during("temperature_c")) - np.mean(case.before("temperature_c")) < 6
    assert case.ratio("sm_clock_mhz") > 0.99


def ecc_corrected_storm(case: Case) -> None:
    """17,700 errors a second, and half of the samples gone under load."""
    assert case.grown("ecc_corrected_total") == pytest.approx(17_700, rel=0.03)
    assert 0.3 < case.lost() < 0.7


def ecc_uncorrected(case: Case) -> None:
    """XID 48, two errors, one row remapped, the driver asks for a reset; a reset at the end."""
    assert case.events() == [("xid", 48), ("gpu_reset", 0)]
    assert case.during("ecc_uncorrected_total")[0] - case.before("ecc_uncorrected_total")[0] == 2
    assert set(case.during("recovery_action").tolist()) == {1}


def row_remap_pending(case: Case) -> None:
    """XID 63 and the flag until the reset."""
    assert case.events() == [("xid", 63), ("gpu_reset", 0)]
    assert set(case.during("row_remap_pending").tolist()) == {1}
    assert set(case.after("row_remap_pending").tolist()) == {0}


def row_remap_failed(case: Case) -> None:
    """XID 64 and the flag."""
    assert case.events() == [("xid", 64)]
    assert set(case.during("row_remap_failed").tolist()) == {1}


def xid(case: Case) -> None:
    """One event at its time, on its GPU, and nothing in the samples."""
    (event,) = case.run.events
    assert (event.kind, event.code, event.gpu_uuid, event.node) == ("xid", 62, case.uuid, "n1")
    assert event.time_ns == START_NS + START * S


def fallen_off_bus(case: Case) -> None:
    """XID 79, lost, no samples; the node sees one GPU less than it should."""
    assert case.events() == [("xid", 79), ("gpu_lost", 0)]
    assert case.lost() == 1
    assert case.seen("n1") == [4, 3, 4]
    assert {inventory.expected_gpus for inventory in case.run.inventory} == {4}


def silent_loss(case: Case) -> None:
    """The same without a word."""
    assert case.events() == []
    assert case.lost() == 1
    assert case.seen("n1") == [4, 3, 4]


def pcie_width(case: Case) -> None:
    """Eight lanes."""
    assert set(case.before("pcie_link_width").tolist()) == {16}
    assert set(case.during("pcie_link_width").tolist()) == {8}


def pcie_gen(case: Case) -> None:
    """Generation 1 instead of 5."""
    assert set(case.before("pcie_link_gen").tolist()) == {5}
    assert set(case.during("pcie_link_gen").tolist()) == {1}


def pcie_replay_storm(case: Case) -> None:
    """Fifty replays a second."""
    assert case.grown("pcie_replay_total") == pytest.approx(50, rel=0.05)


def nvlink_errors(case: Case) -> None:
    """CRC errors, half as many replays, few recoveries."""
    assert case.grown("nvlink_crc_errors_total") == pytest.approx(200, rel=0.03)
    assert case.grown("nvlink_replay_errors_total") == pytest.approx(100, rel=0.03)
    assert case.grown("nvlink_recovery_errors_total") == pytest.approx(1, rel=0.5)


def fabric_fault(case: Case) -> None:
    """An event of the node, a health mask, and no domain in the inventory."""
    assert case.events() == [("fabric_fault", 0)]
    assert case.run.events[0].gpu_uuid == ""
    assert set(case.during("fabric_health_mask").tolist()) == {1}
    domains = [{gpu.fabric for gpu in v.gpus} for v in case.run.inventory if v.node == "n1"]
    assert domains == [{"s-r.1"}, {None}, {"s-r.1"}]


def noisy_neighbour(case: Case) -> None:
    """Less activity at a clock that is not lower."""
    assert case.ratio("sm_active_ratio") == pytest.approx(0.85, abs=0.02)
    assert case.ratio("sm_clock_mhz") > 0.995


def power_cap_flapping(case: Case) -> None:
    """0x4 and 0x0 in turn."""
    capped = (case.during("clock_event_reasons").astype(np.int64) & 0x4) // 4
    assert np.array_equal(capped[1:], 1 - capped[:-1])


def frozen_values(case: Case) -> None:
    """One reading with ever new times, then life again; counters jump to where they are."""
    times = case.run.times(case.uuid)
    assert np.array_equal(times, np.arange(SECONDS))
    for metric in ("power_w", "energy_mj", "sm_active_ratio"):
        assert len(set(case.during(metric).tolist())) == 1
    assert len(set(case.after("power_w").tolist())) > 5
    assert case.after("energy_mj")[-1] == case.well.values(case.uuid, "energy_mj")[-1]


def missing_samples(case: Case) -> None:
    """Half of them."""
    assert 0.35 < case.lost() < 0.65
    assert len(case.after("power_w")) == SECONDS - END - 1


def late_batches(case: Case) -> None:
    """Everything comes, twenty seconds later than that of the other node."""
    assert case.lost() == 0
    late = {
        (batch.time_ns[0] - START_NS) // S: step
        for batch, step in zip(case.run.batches, case.run.arrivals, strict=True)
        if batch.node == "n1"
    }
    assert late[50] == 5
    assert late[100] == 12


def clock_skew(case: Case) -> None:
    """An hour ahead while it lasts."""
    times = case.run.times(case.uuid)
    assert np.count_nonzero(times >= 3_600) == END - START
    assert times[times >= 3_600].min() == 3_600 + START


def garbage_values(case: Case) -> None:
    """Impossible numbers among the right ones."""
    utilization = case.during("utilization_ratio")
    assert 0 < np.count_nonzero(utilization > METRICS["utilization_ratio"].high) < 0.7 * len(utilization)
    assert case.during("ecc_corrected_total").max() == 10**12
    assert case.after("utilization_ratio").max() <= 1


def unsupported_metrics(case: Case) -> None:
    """Null for one GPU; the neighbours keep theirs."""
    assert set(case.during("power_w").tolist()) == {None}
    assert None not in case.run.values(case.run.uuid("n1", 0), "power_w")


def driver_reload(case: Case) -> None:
    """A pause, an event when the node is back, counters from zero."""
    assert case.events() == [("driver_reload", 0)]
    assert case.run.events[0].time_ns == START_NS + (START + 20) * S
    times = case.run.times(case.uuid)
    assert not np.count_nonzero((times >= START) & (times < START + 20))
    energy = case.run.values(case.uuid, "energy_mj")
    assert energy[times == START + 20][0] < 700_000 * 25 < energy[0]


def gpu_swap(case: Case) -> None:
    """After a pause another UUID, with another nature and counters from zero; the neighbours keep theirs."""
    assert case.events() == [("driver_reload", 0), ("new_gpu", 0)]
    inventories = [v for v in case.run.inventory if v.node == "n1"]
    old, new = (inventory.gpus[1].gpu_uuid for inventory in inventories)
    assert old == case.uuid != new == case.run.events[1].gpu_uuid
    assert inventories[0].gpus[0].gpu_uuid == inventories[1].gpus[0].gpu_uuid
    assert case.run.times(old).max() == START - 1
    assert np.array_equal(case.run.times(new), np.arange(START + 60, SECONDS))


CHECKS: Mapping[str, tuple[Callable[[Case], None], dict[str, Any]]] = {
    "slow_silicon": (slow_silicon, {}),
    "drift": (drift, {"size": 0.3, "ramp_s": 100}),
    "low_clock": (low_clock, {}),
    "power_cap": (power_cap, {}),
    "power_brake": (power_brake, {}),
    "hw_slowdown": (hw_slowdown, {}),
    "cooling": (cooling, {}),
    "rack_cooling": (rack_cooling, {}),
    "room_warm": (room_warm, {}),
    "ecc_corrected_storm": (ecc_corrected_storm, {}),
    "ecc_uncorrected": (ecc_uncorrected, {}),
    "row_remap_pending": (row_remap_pending, {}),
    "row_remap_failed": (row_remap_failed, {}),
    "xid": (xid, {}),
    "fallen_off_bus": (fallen_off_bus, {}),
    "silent_loss": (silent_loss, {}),
    "pcie_width": (pcie_width, {}),
    "pcie_gen": (pcie_gen, {}),
    "pcie_replay_storm": (pcie_replay_storm, {}),
    "nvlink_errors": (nvlink_errors, {}),
    "fabric_fault": (fabric_fault, {"model": "GB200"}),
    "noisy_neighbour": (noisy_neighbour, {}),
    "power_cap_flapping": (power_cap_flapping, {}),
    "frozen_values": (frozen_values, {}),
    "missing_samples": (missing_samples, {}),
    "late_batches": (late_batches, {}),
    "clock_skew": (clock_skew, {}),
    "garbage_values": (garbage_values, {"size": 0.5}),
    "unsupported_metrics": (unsupported_metrics, {"metrics": ["power_w"]}),
    "driver_reload": (driver_reload, {}),
    "gpu_swap": (gpu_swap, {"end_s": None}),
}


def test_every_kind_of_fault_has_a_check() -> None:
    """A new kind is noticed the moment it is listed."""
    assert set(CHECKS) == set(FAULTS)


@pytest.mark.parametrize("kind", CHECKS)
def test_a_fault_does_what_it_says_and_only_to_its_targets(kind: str) -> None:
    """The effect is there, in its time, and the other node tells exactly what it tells without the fault."""
    check, fault = CHECKS[kind]
    case = Case(kind, **fault)
    check(case)
    for slot in range(4):
        other = case.run.uuid("n2", slot)
        for metric in case.run.batches[0].columns:
            assert np.array_equal(case.run.values(other, metric), case.well.values(other, metric)), metric
        earlier = case.run.between(case.run.uuid("n1", slot), "power_w", 0, START)
        assert np.array_equal(earlier, case.well.between(case.run.uuid("n1", slot), "power_w", 0, START))


def test_a_storm_loses_nothing_while_the_gpu_is_idle() -> None:
    """Samples go missing under load only."""
    storm = {"kind": "ecc_corrected_storm", "select": {"gpu": "n1/1"}}
    run = Run(fleet(storm, workloads=[{"name": "w", "select": {"node": "n2"}}]), seconds=60)
    assert len(run.times(run.uuid("n1", 1))) == 60


@pytest.mark.parametrize("code", [13, 31, 43, 45, 48, 79, 94])
def test_an_xid_of_an_application_is_expected_to_change_nothing(code: int) -> None:
    """The truth knows which XIDs speak of hardware."""
    run = Run(fleet({"kind": "xid", "size": code, "select": {"gpu": "n1/1"}}), seconds=10)
    (fault,) = run.source.truth()["faults"]
    assert fault["tiers"] == (["premium", "standard"] if code in (13, 31, 43, 45) else ["quarantine"])


def test_a_whole_node_that_lacks_a_metric_has_no_such_column() -> None:
    """Unsupported everywhere is absent, not null."""
    fault = {"kind": "unsupported_metrics", "metrics": ["activity"], "select": {"node": "n1"}}
    run = Run(fleet(fault), seconds=10)
    columns = {batch.node: set(batch.columns) for batch in run.batches}
    assert columns["n2"] - columns["n1"] >= {"sm_active_ratio", "tensor_active_ratio"}


def test_a_gpu_that_falls_off_the_bus_stops_no_counter_of_its_neighbours() -> None:
    """Seven keep every sample while the eighth is gone."""
    run = Run(fleet({"kind": "fallen_off_bus", "start_s": 15, "select": {"gpu": "n1/3"}}, gpus=8), seconds=40)
    for slot in range(8):
        assert len(run.times(run.uuid("n1", slot))) == (15 if slot == 3 else 40)
    for name in run.batches[0].columns:
        if METRICS[name].kind is Kind.COUNTER:
            assert (np.diff(run.values(run.uuid("n1", 2), name).astype(np.int64)) >= 0).all()


FAULT = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(sorted(FAULTS)),
        "start_s": st.integers(0, 30),
        "end_s": st.integers(31, 60) | st.none(),
        "ramp_s": st.integers(1, 50),
        "select": st.sampled_from([{"node": "n1"}, {"node": "n2"}, {}]),
    }
)


@settings(max_examples=25, deadline=None)
@given(faults=st.lists(FAULT, min_size=1, max_size=5), step=st.sampled_from([1, 7, 45]))
def test_any_faults_together_give_messages_that_can_be_sent(faults: list[dict[str, Any]], step: int) -> None:
    """Nothing crashes, every batch encodes, every GPU has each time once, inventory names whom the samples name."""
    described = [
        fault | ({"metrics": ["activity", "power_w"]} if fault["kind"] == "unsupported_metrics" else {})
        for fault in faults
    ]
    run = Run(fleet(*described, gpus=2, workloads=[{"name": "w", "select": {"node": "n1"}}]), seconds=45, step_s=step)
    encoder = Encoder()
    for batch in run.batches:
        body = decompress(encoder.encode(batch).value)
        assert check_body(body, sum(1 << i for i, m in enumerate(SAMPLED) if m.name in batch.columns)) == len(batch) > 0
        assert set(np.asarray(batch.gpu).tolist()) == set(range(len(batch.gpus)))
    named = {gpu.gpu_uuid for inventory in run.inventory for gpu in inventory.gpus}
    sampled = {uuid for batch in run.batches for uuid in batch.gpus}
    assert sampled <= named | {event.gpu_uuid for event in run.events}
    skewed = any(fault["kind"] == "clock_skew" for fault in faults)
    for uuid in sampled:
        times = run.times(uuid)
        assert len(set(times.tolist())) == len(times)
        assert skewed or set(times.tolist()) <= set(range(45))
