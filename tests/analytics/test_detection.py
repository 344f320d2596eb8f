"""Changes against a GPU's own past, and speed at equal work, driven window after window; synthetic.

To add a way of being slow: its trace in the activity columns, what must be said of it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from support.scorer import Scorer, busy_rows, fleet

from analytics import cause
from analytics.frames import frame
from analytics.reasons import JUDGED
from telemetry.tables import TOPOLOGY

ACTIVE = {"sm_active_ratio": 0.95, "tensor_active_ratio": 0.65, "dram_active_ratio": 0.33, "fp_active_ratio": 0.1}


def run(scorer: Scorer, losses: Mapping[str, float], *, first: int, count: int, seed: int = 1) -> None:
    """Windows in which some GPUs' clocks are lower by a share, all with 0.3 % of noise."""
    for at in range(first, first + count):
        chance = np.random.default_rng([seed, at])
        rows = busy_rows(scorer.gpus)
        for row in rows:
            lost = losses.get(row["gpu_uuid"], 0.0)
            row["effective_clock_mhz"] = 1400.0 * (1 - lost) * (1 + 0.003 * chance.standard_normal())
        scorer.window(rows, at=at)


def test_a_sudden_loss_is_found_within_minutes_after_hours_of_good_evidence() -> None:
    """Five hours at full speed do not hide a loss of 5 %: evidence from before the change is put aside."""
    scorer = Scorer(fleet(4))
    run(scorer, {}, first=0, count=300)
    run(scorer, {"g0-0": 0.05}, first=300, count=8)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")[0]) == ("degraded", "slow")
    assert scorer.row("g0-0")["speed"] == pytest.approx(0.951, abs=0.006)
    others = scorer.scores.filter(pl.col("gpu_uuid") != "g0-0")
    assert set(others["tier"]) <= {"premium", "standard"}


def test_one_wild_window_restarts_nothing() -> None:
    """A single window at 20 % less neither demotes nor costs the evidence of the windows before."""
    scorer = Scorer(fleet(4))
    run(scorer, {}, first=0, count=30)
    run(scorer, {"g0-0": 0.2}, first=30, count=1)
    run(scorer, {}, first=31, count=4)
    assert scorer.row("g0-0")["evidence"] == 35
    assert set(scorer.scores["tier"]) <= {"premium", "standard"}


def test_a_slow_drift_of_a_fast_gpu_is_told_before_it_is_slow() -> None:
    """From 3 % faster than its peers to typical, over 300 windows: nothing to demote, and worth a look."""
    scorer = Scorer(fleet(4))
    run(scorer, {"g0-0": -0.03}, first=0, count=60)
    for step in range(30):
        run(scorer, {"g0-0": -0.03 + 0.001 * step}, first=60 + 10 * step, count=10)
    run(scorer, {"g0-0": 0.0}, first=360, count=15)
    assert "drifting" in scorer.codes("g0-0")
    assert scorer.tier("g0-0") == "standard"
    told = [gpu for gpu in scorer.scores["gpu_uuid"] if "drifting" in scorer.codes(gpu)]
    assert told == ["g0-0"]


def test_a_restart_between_any_two_windows_changes_no_score() -> None:
    """The sums travel with the published state."""
    whole, cut = Scorer(fleet(2)), Scorer(fleet(2))
    for at in range(30):
        lost = {"g0-0": 0.04} if at > 12 else {}
        run(whole, lost, first=at, count=1)
        run(cut, lost, first=at, count=1)
        cut.restart()
    assert whole.scores.equals(cut.scores)
    assert whole.transitions.equals(cut.transitions)


def active(scorer: Scorer, changes: Mapping[str, Mapping[str, float]], *, count: int = 8) -> None:
    """Windows of a fleet on one programme, with activity; `changes` replace columns of some GPUs, by GPU or node."""
    for at in range(count):
        chance = np.random.default_rng(at)
        rows = busy_rows(scorer.gpus, **ACTIVE)
        for row in rows:
            row |= changes.get(row["node"], {}) | changes.get(row["gpu_uuid"], {})
            row["sm_active_ratio"] *= 1 + 0.001 * chance.standard_normal()
        scorer.window(rows, at=at)


WAITS = {"sm_active_ratio": 0.95 * 0.92, "tensor_active_ratio": 0.65 * 0.92, "dram_active_ratio": 0.33 * 0.92}


def test_the_gpu_that_everyone_waits_for_is_found_by_being_the_most_active() -> None:
    """Equal work, equal clock, seven of eight wait 8 % of the time: the eighth is slow, cause silicon."""
    scorer = Scorer(fleet(6))
    active(scorer, {"n0": WAITS, "g0-3": WAITS | {"sm_active_ratio": 0.95}})
    assert (scorer.tier("g0-3"), scorer.row("g0-3")["cause"]) == ("degraded", "silicon")
    assert scorer.codes("g0-3") == ["slow", "slow_at_equal_clock"]
    assert scorer.scores.filter(pl.col("tier") == "degraded")["gpu_uuid"].to_list() == ["g0-3"]


def test_an_independent_gpu_that_does_less_in_the_same_active_time_is_found() -> None:
    """Same programme by its traffic per unit of work, 6 % less of everything at equal activity and clock."""
    scorer = Scorer(fleet(6))
    active(scorer, {"g0-3": {"tensor_active_ratio": 0.65 * 0.94, "dram_active_ratio": 0.33 * 0.94}})
    assert (scorer.tier("g0-3"), scorer.row("g0-3")["cause"]) == ("degraded", "silicon")
    assert scorer.scores.filter(pl.col("tier") == "degraded")["gpu_uuid"].to_list() == ["g0-3"]


def test_another_programme_on_one_gpu_is_no_slow_gpu() -> None:
    """Less tensor work at equal activity, but other traffic: it is not compared at equal work."""
    scorer = Scorer(fleet(6))
    active(scorer, {"g0-3": {"tensor_active_ratio": 0.55, "dram_active_ratio": 0.40}})
    assert set(scorer.scores["tier"]) <= {"premium", "standard"}


def test_a_node_of_unlike_programmes_is_not_compared_inside() -> None:
    """Eight GPUs that do eight things: nobody is said to be slow at equal clock."""
    scorer = Scorer(fleet(6))
    each = {f"g0-{i}": {"tensor_active_ratio": 0.52 + 0.02 * i, "sm_active_ratio": 0.95 - 0.03 * i} for i in range(8)}
    active(scorer, each)
    assert set(scorer.scores["tier"]) <= {"premium", "standard"}
    assert all("slow_at_equal_clock" not in scorer.codes(gpu) for gpu in scorer.scores["gpu_uuid"])


def test_a_job_that_waits_and_boosts_makes_nobody_else_look_slow() -> None:
    """Half the nodes wait for one GPU and run 2.5 % faster clocks meanwhile: the others are not slow for that."""
    scorer = Scorer(fleet(8))
    boosted = WAITS | {"effective_clock_mhz": 1435.0, "tensor_active_ratio": 0.65 * 0.92 * 1400 / 1435}
    changes: dict[str, Mapping[str, float]] = {f"n{i}": boosted for i in range(5)}
    active(scorer, changes)
    assert set(scorer.scores["tier"]) <= {"premium", "standard"}


def test_a_lowered_power_limit_is_named_where_the_model_keeps_its_own() -> None:
    """500 of 700 W on one board: its own peer group, and still not overlooked; a site at 500 W throughout is fine."""
    odd, even = Scorer(fleet(4, power_limit_default_w=700.0)), Scorer(fleet(4, power_limit_default_w=700.0))
    for at in range(5):
        capped = {"sw_power_cap_ratio": 1.0, "power_limit_w": 700.0}
        rows = busy_rows(odd.gpus, **capped)
        rows[0]["power_limit_w"] = 500.0
        odd.window(rows, at=at)
        even.window(busy_rows(even.gpus, **(capped | {"power_limit_w": 500.0})), at=at)
    assert (odd.tier("g0-0"), odd.codes("g0-0")[0], odd.row("g0-0")["cause"]) == ("degraded", "power_limit", "power")
    assert set(even.scores["tier"]) == {"standard"}


def _found(hot: set[str], gpus: pl.DataFrame) -> pl.DataFrame:
    flags = {f"a_{code}": [code == "hot" and gpu in hot for gpu in gpus["gpu_uuid"]] for code in JUDGED}
    return gpus.select("gpu_uuid", "node", pl.lit(value=False).alias("stale")).with_columns(
        pl.Series(name, values) for name, values in flags.items()
    )


def shared(found: pl.DataFrame, topology: pl.DataFrame | None) -> pl.DataFrame:
    """What `cause.shared` says of GPUs with these findings."""
    rows = found.rename({"gpu_uuid": "gpu"})
    flags = [name for name in rows.columns if name.startswith("a_")]
    return cause.shared(rows, rows.filter(pl.any_horizontal(flags)), topology)


def _racks(nodes: int) -> pl.DataFrame:
    rows: list[dict[str, Any]] = [
        {"node": f"n{n}", "position": 0, "level": "rack", "value": f"r{n // 4}", "source": "file"} for n in range(nodes)
    ]
    return frame(TOPOLOGY, rows)


def test_the_level_of_an_excess_is_the_widest_that_shares_it() -> None:
    """Three of four GPUs of a rack are hot and nobody else: the rack. One node: the node. One GPU: no level."""
    gpus = fleet(16)
    rack = {f"g{n}-{s}" for n in range(4) for s in range(6)}
    assert set(shared(_found(rack, gpus), _racks(16))["value"]) == {"r0"}
    assert set(shared(_found(rack, gpus), None)["value"]) == {"n0", "n1", "n2", "n3"}
    node = {f"g5-{s}" for s in range(7)}
    assert shared(_found(node, gpus), _racks(16)).select("level", "value").unique().rows() == [("node", "n5")]
    assert shared(_found({"g5-0"}, gpus), _racks(16)).is_empty()


def test_the_share_of_a_block_with_the_gravest_reason_is_told() -> None:
    """A rack that is hot throughout, eight of whose 32 GPUs heat slows."""
    gpus = fleet(16)
    rack = {f"g{n}-{s}" for n in range(4) for s in range(8)}
    slowed = pl.col("gpu_uuid").is_in([f"g0-{s}" for s in range(8)])
    found = _found(rack, gpus).with_columns(slowed.alias("a_thermal_throttling"))
    assert shared(found, _racks(16))["gravest"].unique().to_list() == [0.25]


def test_heat_everywhere_is_nobodys_level() -> None:
    """Where half the room is hot no block stands out."""
    gpus = fleet(16)
    half = {f"g{n}-{s}" for n in range(8) for s in range(8)}
    assert shared(_found(half, gpus), _racks(16)).is_empty()
