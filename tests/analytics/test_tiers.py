"""Tiers and their reasons, driven as the score job drives them: window after window.

To add a reason's test: a fleet, one GPU that is different, what must be said of it and of the others.
"""

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from support.samples import IDLE, START_NS, WINDOW_NS
from support.scorer import Scorer, busy_rows, fleet

from analytics.frames import frame
from analytics.reasons import REASONS
from telemetry.tables import ACTIONS, NODES, TIERS


def run(
    odd: Mapping[str, Any], *, windows: int = 5, usual: Mapping[str, Any] | None = None, **settings: float
) -> Scorer:
    """Four nodes of eight GPUs; GPU g0-0 is different."""
    scorer = Scorer(fleet(4), **settings)
    for at in range(windows):
        rows = busy_rows(scorer.gpus, **(usual or {}))
        rows[0] |= odd
        scorer.window(rows, at=at)
    return scorer


def others(scorer: Scorer) -> set[str]:
    """Tiers of all GPUs but the first."""
    return set(scorer.scores.filter(pl.col("gpu_uuid") != "g0-0")["tier"])


def test_every_reason_names_a_tier_and_an_action_that_exist() -> None:
    """The table cannot say what the published columns do not know."""
    for reason in REASONS.values():
        assert reason.tier in TIERS
        assert reason.action in ACTIONS


@pytest.mark.parametrize(
    ("odd", "tier", "code", "cause"),
    [
        ({"effective_clock_mhz": 1330.0}, "degraded", "slow", None),
        ({"effective_clock_mhz": 900.0}, "quarantine", "very_slow", None),
        ({"hw_thermal_ratio": 0.4}, "degraded", "thermal_throttling", "cooling"),
        ({"sw_thermal_ratio": 0.4}, "degraded", "thermal_throttling", "cooling"),
        ({"power_brake_ratio": 0.5, "hw_slowdown_ratio": 0.5}, "degraded", "power_brake", "power"),
        ({"hw_slowdown_ratio": 0.5}, "degraded", "hw_slowdown", "power"),
        ({"row_remap_failed": True}, "quarantine", "row_remap_failed", "memory"),
        ({"row_remap_pending": True}, "degraded", "row_remap_pending", "memory"),
        ({"ecc_uncorrected": 1.0}, "quarantine", "ecc_uncorrected", "memory"),
        ({"ecc_corrected": 17_700 * 60.0}, "degraded", "ecc_corrected_rate", "memory"),
        ({"pcie_replays": 500.0}, "degraded", "pcie_replays", "link"),
        ({"nvlink_errors": 500.0}, "degraded", "nvlink_errors", "link"),
        ({"pcie_link_width": 8.0}, "degraded", "pcie_link", "link"),
        ({"pcie_link_gen": 3.0}, "degraded", "pcie_link", "link"),
        ({"recovery_action": 1.0}, "quarantine", "recovery_reset", None),
        ({"recovery_action": 4.0}, "quarantine", "recovery_drain", None),
        ({"completeness_ratio": 0.3, "samples": 18, "busy_samples": 18}, "degraded", "low_completeness", "telemetry"),
        ({"distinct_readings": 1}, "unknown", "frozen", "telemetry"),
        ({"temperature_c": 79.0}, "standard", "hot", "cooling"),
        ({"delivery_delay_s": 16.0}, "standard", "late_telemetry", "telemetry"),
    ],
)
def test_one_gpu_with_a_finding_is_named_with_its_cause_and_its_neighbours_are_not(
    odd: Mapping[str, Any], tier: str, code: str, cause: str | None
) -> None:
    """Each finding leads to its tier, its reason and its cause, for that GPU alone."""
    scorer = run(odd)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")[0], scorer.row("g0-0")["cause"]) == (tier, code, cause)
    assert others(scorer) == {"standard"}
    assert set(scorer.scores["reasons"]) - {scorer.scores["reasons"][0]} <= {"[]"}
    assert set(scorer.transitions["gpu_uuid"]) <= {"g0-0"}


@pytest.mark.parametrize("usual", [14.0, 600.0])
def test_while_most_telemetry_is_late_nobody_is_told_so(usual: float) -> None:
    """After an outage everyone brings a backlog, some a longer one; with 14 s for all, 29 is not beyond the limit."""
    scorer = Scorer(fleet(4))
    for at in range(8):
        rows = busy_rows(scorer.gpus)
        for i, row in enumerate(rows):
            row["delivery_delay_s"] = usual + (i % 8) * 15.0 / 7
        scorer.window(rows, at=at)
    assert {code for gpu in scorer.gpus["gpu_uuid"] for code in scorer.codes(gpu)} == set()


def test_a_gpu_is_slow_only_if_its_peers_differ_less_among_each_other() -> None:
    """Of a fleet whose healthy GPUs spread evenly over 5 per cent nobody is slow; who leaves that spread by far is."""
    scorer = Scorer(fleet(4))
    for at in range(8):
        rows = busy_rows(scorer.gpus)
        for i, row in enumerate(rows):
            row["effective_clock_mhz"] = 1400.0 * (0.975 + 0.05 * i / (len(rows) - 1))
        rows[-1]["effective_clock_mhz"] = 1400.0 * 0.93
        scorer.window(rows, at=at)
    slowest, last = scorer.gpus["gpu_uuid"][0], scorer.gpus["gpu_uuid"][-1]
    assert scorer.row(slowest)["speed"] < 0.98
    assert set(scorer.scores.filter(pl.col("gpu_uuid") != last)["tier"]) <= {"premium", "standard"}
    assert scorer.tier(last) == "degraded"


def test_results_find_who_is_slow_at_a_normal_clock() -> None:
    """Windows between the results neither acquit nor convict; one wild result alone convicts nobody."""
    scorer = Scorer(fleet(4))
    for at in range(30):
        scorer.window(busy_rows(scorer.gpus), at=at)
        if at % 6 == 0:
            slow = {"g0-0": 1.12, "g1-1": 1.12 if at == 12 else 1.0}
            rows = [
                {"subject": gpu, "value": 600 * slow.get(gpu, 1.0), "time_ns": START_NS + at * WINDOW_NS}
                for gpu in scorer.gpus["gpu_uuid"]
            ]
            scorer.measurements(*rows, as_of=START_NS + (at + 1) * WINDOW_NS)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("degraded", ["slow"])
    assert others(scorer) <= {"premium", "standard"}


def test_many_slow_gpus_do_not_hide_one_another() -> None:
    """With a third of the peers 10 per cent slow, each of them is called slow."""
    scorer = Scorer(fleet(4), breaker_ratio=1.0)
    for at in range(8):
        rows = busy_rows(scorer.gpus)
        for i, row in enumerate(rows):
            row["effective_clock_mhz"] = 1400.0 * (0.9 if i % 3 == 0 else 1.0 + 0.0005 * i)
        scorer.window(rows, at=at)
    slow = scorer.scores.filter(pl.col("tier") == "degraded")["gpu_uuid"]
    assert set(slow) == set(scorer.gpus["gpu_uuid"].gather_every(3))


@pytest.mark.parametrize(
    "everyone",
    [
        {"sw_power_cap_ratio": 1.0, "power_throttle_s": 60.0},
        {"temperature_c": 84.0},
        {"effective_clock_mhz": 1100.0},
        {"sw_thermal_ratio": 0.5},
        {"pcie_replays": 40.0},
        {"ecc_corrected": 40.0},
        {"pcie_link_gen": 4.0},
    ],
)
def test_a_whole_room_moving_together_makes_nobody_stand_out(everyone: Mapping[str, Any]) -> None:
    """What befalls all peers alike demotes nobody."""
    scorer = run({}, usual=everyone, windows=6)
    assert set(scorer.scores["tier"]) == {"standard"}
    assert scorer.transitions.is_empty()


def test_a_daily_cycle_with_a_day_of_25_hours_causes_no_burst() -> None:
    """The inlet temperature follows local time across the end of summer time; hours in UTC are all alike."""
    scorer = Scorer(fleet(4))
    for hour in range(8, 34):
        local = hour - (1 if hour >= 13 else 0)  # the clock goes back once
        heat = 8.0 * (local % 24 in range(10, 18))
        rows = busy_rows(scorer.gpus, temperature_c=60 + heat, effective_clock_mhz=1400 - 4 * heat)
        scorer.window(rows, at=60 * hour)
    assert scorer.transitions["to_tier"].is_in(["degraded", "quarantine"]).sum() == 0
    assert scorer.scores["evidence"].to_list() == [26] * 32


def test_a_normal_power_cap_that_flaps_each_second_changes_nothing_and_stores_nothing_more() -> None:
    """Event reasons 0x4 and 0x0 in turn for ten minutes: no tier change."""
    scorer = run({}, usual={"sw_power_cap_ratio": 0.5, "power_throttle_s": 30.0}, windows=9)
    assert scorer.transitions.is_empty()
    assert scorer.published == 9 * 32


def test_a_power_brake_is_found_alone_or_beside_a_power_cap_and_the_cap_alone_is_normal() -> None:
    """0x80 and 0x84 at 40 % of the peers' clock are degraded or worse with cause power; 0x4 at 97 % is normal."""
    scorer = Scorer(fleet(4))
    for at in range(10):
        rows = busy_rows(scorer.gpus)
        brake = {"effective_clock_mhz": 560.0, "power_brake_ratio": 1.0, "hw_slowdown_ratio": 1.0}
        rows[0] |= brake | {"sw_power_cap_ratio": 0.0}
        rows[1] |= {"effective_clock_mhz": 1386.0, "sw_power_cap_ratio": 1.0}
        rows[2] |= brake | {"sw_power_cap_ratio": 1.0}
        scorer.window(rows, at=at)
    for gpu in ("g0-0", "g0-2"):
        assert scorer.tier(gpu) == "quarantine"
        assert "power_brake" in scorer.codes(gpu)
        assert scorer.row(gpu)["cause"] == "power"
    assert (scorer.tier("g0-1"), scorer.codes("g0-1")) in [("standard", []), ("premium", [])]


def test_old_totals_of_a_healthy_node_are_no_finding() -> None:
    """Hundreds of replays and hours of power cap since the driver was loaded: only growth counts."""
    scorer = run({"pcie_replays": 0.0, "power_throttle_s": 0.0}, usual={"pcie_replays": 0.0})
    assert set(scorer.scores["tier"]) == {"standard"}


def test_slots_of_a_healthy_node_differ_and_none_of_them_is_hot() -> None:
    """39 53 38 52 38 51 37 51 C on every node is how nodes are; one slot 14 C above the same slot elsewhere is not."""
    slots = (39.0, 53.0, 38.0, 52.0, 38.0, 51.0, 37.0, 51.0)
    scorer = Scorer(fleet(6))
    for at in range(5):
        rows = [row | {"temperature_c": slots[i % 8]} for i, row in enumerate(busy_rows(scorer.gpus, **IDLE))]
        rows[0]["temperature_c"] = 53.0
        scorer.window(rows, at=at)
    hot = {gpu for gpu in scorer.scores["gpu_uuid"] if "hot" in scorer.codes(gpu)}
    assert hot == {"g0-0"}


def test_three_of_five_windows_demote_two_do_not() -> None:
    """A GPU that is slow now and then within its interval of chance stays."""
    scorer = Scorer(fleet(4))
    for at, heat in enumerate([0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]):
        rows = busy_rows(scorer.gpus)
        rows[0]["hw_thermal_ratio"] = heat
        scorer.window(rows, at=at)
        assert scorer.tier("g0-0") == "standard"
    for at, heat in enumerate([0.5, 0.0, 0.5, 0.0, 0.5], start=7):
        rows = busy_rows(scorer.gpus)
        rows[0]["hw_thermal_ratio"] = heat
        scorer.window(rows, at=at)
    assert scorer.tier("g0-0") == "degraded"


def test_a_demoted_gpu_comes_back_after_five_clean_windows_and_not_before() -> None:
    """Four clean windows and a bad one start the count anew."""
    scorer = run({"hw_thermal_ratio": 0.5})
    for at, heat in enumerate([0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0], start=5):
        rows = busy_rows(scorer.gpus)
        rows[0]["hw_thermal_ratio"] = heat
        scorer.window(rows, at=at)
        assert scorer.tier("g0-0") == "degraded"
    scorer.window(busy_rows(scorer.gpus), at=14)
    assert scorer.codes("g0-0") == []
    assert scorer.transitions.filter(pl.col("gpu_uuid") == "g0-0")["to_tier"].to_list() == ["degraded", "premium"]


def test_idle_windows_neither_acquit_nor_convict() -> None:
    """A GPU slow under load is not healed by a quiet night."""
    scorer = run({"effective_clock_mhz": 1300.0})
    for at in range(5, 15):
        scorer.window(busy_rows(scorer.gpus, **IDLE), at=at)
    assert scorer.codes("g0-0") == ["slow"]


def test_a_slow_gpu_held_by_a_clock_setting_has_its_cause_in_software() -> None:
    """Somebody locked its clocks: no silicon to replace."""
    scorer = run({"effective_clock_mhz": 1200.0, "application_clocks_ratio": 1.0})
    assert (scorer.tier("g0-0"), scorer.row("g0-0")["cause"]) == ("degraded", "software")


def test_no_load_yet_is_standard_and_says_so_and_silence_is_unknown() -> None:
    """Fresh telemetry without work: no_load. No telemetry for more than three windows: unknown, never healthy."""
    scorer = run(IDLE, usual=IDLE)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0"), scorer.row("g0-0")["speed"]) == ("standard", ["no_load"], None)
    for at in range(5, 9):
        scorer.window(busy_rows(scorer.gpus)[1:], at=at)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")[0]) == ("unknown", "stale")
    scorer.tick(at=20)
    assert set(scorer.scores["tier"]) == {"unknown"}
    scorer.window(busy_rows(scorer.gpus), at=20)
    assert scorer.tier("g1-0") == "standard"


def test_every_second_window_missing_is_a_finding_in_its_own_right() -> None:
    """Samples lost under load: what does not arrive counts as not arrived, unless the window itself is incomplete."""
    scorer = Scorer(fleet(4))
    for at in range(8):
        rows = busy_rows(scorer.gpus)
        scorer.window(rows[at % 2 :], at=at)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("degraded", ["low_completeness"])
    patient = Scorer(fleet(4))
    for at in range(8):
        patient.window(busy_rows(patient.gpus)[at % 2 :], at=at, complete=at % 2 == 0)
    assert patient.tier("g0-0") == "standard"


def test_a_group_too_small_to_compare_is_said() -> None:
    """The only three GPUs at work cannot be judged: the reason says it."""
    scorer = Scorer(fleet(4))
    for at in range(5):
        rows = busy_rows(scorer.gpus)
        for row in rows[3:]:
            row |= {"busy_samples": 0, "busy_ratio": 0.0}
        scorer.window(rows, at=at)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("standard", ["few_peers"])
    assert scorer.row("g0-0")["speed"] is None


def test_a_gpu_alone_with_its_power_limit_is_compared_with_its_model() -> None:
    """What the limit costs is what a job waits for: slow by a fifth, whoever set it."""
    scorer = Scorer(fleet(4))
    for at in range(8):
        rows = busy_rows(scorer.gpus)
        rows[0] |= {"power_limit_w": 500.0, "effective_clock_mhz": 1120.0}
        scorer.window(rows, at=at)
    assert scorer.tier("g0-0") == "degraded"
    assert "slow" in scorer.codes("g0-0")
    assert scorer.row("g0-0")["speed"] == pytest.approx(0.804, abs=0.01)


def test_premium_needs_evidence_and_does_not_flap_at_its_edge() -> None:
    """Half a per cent of noise about typical: each GPU changes to premium at most once, and not before ten windows."""
    scorer = Scorer(fleet(4))
    for at in range(18):
        rows = busy_rows(scorer.gpus)
        for i, row in enumerate(rows):
            row["effective_clock_mhz"] = 1400.0 + ((i * 7 + at * 13) % 15) - 7
        scorer.window(rows, at=at)
        if at < 8:
            assert "premium" not in set(scorer.scores["tier"])
    assert "premium" in set(scorer.scores["tier"])
    assert scorer.transitions.group_by("gpu_uuid").len()["len"].max() == 1


def test_hardware_xids_act_at_once_application_xids_never_and_unlisted_ones_are_watched() -> None:
    """Between windows, without waiting: 79 and 48 quarantine, 13, 31, 43, 45 change nothing, 999 is for watching."""
    scorer = run({})
    events = [
        {"kind": "xid", "gpu_uuid": f"g1-{i}", "node": "n1", "code": c}
        for i, c in enumerate((79, 48, 13, 31, 43, 45, 999))
    ]
    scorer.events(*events, at=5.2)
    assert [scorer.tier(f"g1-{i}") for i in range(8)] == ["quarantine"] * 2 + ["standard"] * 6
    assert [scorer.codes(f"g1-{i}") for i in range(2, 7)] == [[], [], [], [], ["xid"]]
    assert scorer.row("g1-6")["action"] == "watch"
    assert scorer.transitions["time_ns"].to_list() == [START_NS + int(5.2 * WINDOW_NS)] * 2


def test_a_later_application_xid_does_not_hide_the_hardware_one_and_repeats_are_one_reason() -> None:
    """XIDs are events with a policy each, not a last value."""
    scorer = run({})
    for code in (79, 43, 79, 79, 94):
        scorer.events({"kind": "xid", "gpu_uuid": "g1-0", "node": "n1", "code": code}, at=5.2)
    assert [reason["value"] for reason in scorer.row("g1-0")["reasons"]] == [79, 94]


def test_a_reset_heals_what_a_reset_can_heal() -> None:
    """Uncorrected errors end with a reset or a driver reload; a failed remap asks for repair and stays."""
    scorer = run({"ecc_uncorrected": 2.0}, windows=1)
    assert scorer.tier("g0-0") == "quarantine"
    scorer.events(
        {"kind": "xid", "gpu_uuid": "g0-1", "code": 64}, {"kind": "xid", "gpu_uuid": "g0-2", "code": 95}, at=1.1
    )
    scorer.events({"kind": "driver_reload"}, at=1.5)
    scorer.window(busy_rows(scorer.gpus), at=1)
    assert [scorer.tier(f"g0-{i}") for i in range(3)] == ["standard", "quarantine", "standard"]


def test_a_lost_gpu_is_quarantined_alone_and_comes_back_after_five_windows() -> None:
    """Its seven neighbours keep their tier; it stays out while silent, and for five windows of its own after."""
    scorer = run({})
    scorer.events({"kind": "gpu_lost", "gpu_uuid": "g0-0"}, at=5)
    assert (scorer.tier("g0-0"), others(scorer)) == ("quarantine", {"standard"})
    for at in range(5, 15):
        scorer.window(busy_rows(scorer.gpus)[1 if at < 10 else 0 :], at=at)
        assert (scorer.tier("g0-0") == "quarantine") == (at < 14)


def test_all_gpus_of_a_node_lost_in_one_second_are_one_node_without_access() -> None:
    """Eight GPUs do not break at once: unknown, cause telemetry, nobody quarantined."""
    scorer = run({})
    scorer.events(*({"kind": "gpu_lost", "gpu_uuid": f"g2-{i}", "node": "n2"} for i in range(8)), at=5)
    assert {scorer.tier(f"g2-{i}") for i in range(8)} == {"unknown"}
    assert {scorer.codes(f"g2-{i}")[0] for i in range(8)} == {"access_lost"}
    assert {scorer.tier(f"g1-{i}") for i in range(8)} == {"standard"}


def test_a_missing_gpu_without_a_name_is_told_to_its_node_and_demotes_nobody() -> None:
    """Seven of eight answered: the node's GPUs carry a note, from the event or from the inventory."""
    scorer = run({})
    scorer.events({"kind": "missing_gpu", "node": "n1"}, at=5)
    assert (scorer.tier("g1-0"), scorer.codes("g1-0")) == ("standard", ["node_missing_gpu"])
    scorer.nodes = frame(NODES, [{"node": "n2", "expected_gpus": 8, "seen_gpus": 7, "place": [], "seen_ns": START_NS}])
    scorer.window(busy_rows(scorer.gpus), at=5)
    assert scorer.codes("g2-3") == ["node_missing_gpu"]
    assert set(scorer.scores["tier"]) == {"standard"}


def test_a_fabric_fault_of_a_node_speaks_of_all_its_gpus() -> None:
    """A broken fabric degrades the node that hangs on it."""
    scorer = run({})
    scorer.events({"kind": "fabric_fault", "node": "n1"}, at=5)
    assert {scorer.tier(f"g1-{i}") for i in range(8)} == {"degraded"}
    assert {scorer.tier(f"g2-{i}") for i in range(8)} == {"standard"}


def test_a_gpu_of_the_inventory_that_never_reports_is_unknown_and_not_unseen() -> None:
    """Nobody heard of it for longer than three windows: it has a row, and no transition for it floods anyone."""
    scorer = Scorer(fleet(4).with_columns(pl.lit(START_NS).alias("seen_ns")))
    for at in range(6):
        scorer.window(busy_rows(scorer.gpus)[1:], at=at)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("unknown", ["stale"])
    assert scorer.transitions.is_empty()


def test_a_new_gpu_in_an_old_slot_starts_anew() -> None:
    """The board was swapped: the new UUID has no past."""
    scorer = run({"effective_clock_mhz": 900.0})
    swapped = scorer.gpus.with_columns(pl.col("gpu_uuid").replace({"g0-0": "g0-0-new"}))
    scorer.gpus = swapped
    scorer.window(busy_rows(swapped), at=5)
    assert (scorer.tier("g0-0-new"), scorer.codes("g0-0-new")) == ("standard", [])


def test_limits_are_arguments() -> None:
    """A site that tolerates five per cent says so; an unknown limit is refused."""
    assert run({"effective_clock_mhz": 1350.0}).tier("g0-0") == "degraded"
    assert run({"effective_clock_mhz": 1350.0}, slow_high=0.95).tier("g0-0") == "standard"
    with pytest.raises(TypeError, match="slow_hihg"):
        run({}, slow_hihg=0.95)
    with pytest.raises(ValueError, match="at most"):
        run({}, need=6)


def test_a_memory_clock_set_lower_is_named_with_its_cause() -> None:
    """One GPU at an older memory clock: software, for watching; its neighbours are not."""
    scorer = run({"memory_clock_mhz": 1593.0})
    assert (scorer.tier("g0-0"), scorer.row("g0-0")["cause"]) == ("standard", "software")
    assert scorer.codes("g0-0") == ["memory_clock"]
    assert scorer.codes("g0-1") == []


def test_another_driver_explains_and_takes_no_tier_away() -> None:
    """A node of twenty with another driver: said with both versions; fast GPUs of it are premium all the same."""
    gpus = fleet(20).with_columns(
        pl.when(pl.col("node") == "n3").then(pl.lit("550.1")).otherwise(pl.lit("580.2")).alias("driver_version")
    )
    scorer = Scorer(gpus)
    for at in range(14):
        scorer.window(busy_rows(gpus), at=at)
    row = scorer.row("g3-1")
    assert (row["tier"], row["cause"]) == ("premium", "software")
    assert row["reasons"][0]["text"].endswith("550.1, not 580.2")
    assert scorer.codes("g4-1") == []
