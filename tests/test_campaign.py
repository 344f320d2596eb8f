"""Simulated fleets with known faults, scored: a few seeds of the campaign with margins below its targets.

To add a set: one of its fleets here, with what must hold on every seed.
"""

from functools import cache

import pytest

from benchmarks.campaign import ALL_PASS, WINDOWS, _hard_delays
from benchmarks.campaign_fleets import broken, flood, slow, storm
from benchmarks.campaign_judging import Verdict, slow_count, verdicts
from benchmarks.campaign_run import Run, play


@cache
def faults() -> tuple[Run, list[Verdict]]:
    """One fleet with a fault of every kind."""
    run = play(broken(101), seed=101, windows=26, thresholds=ALL_PASS)
    return run, list(verdicts(run))


def test_slow_downs_are_found_in_any_job_and_hardly_anybody_falsely() -> None:
    """Two more seeds: all that are 5 % slow, F1 of at least 0.9 from 3 % on (51 GPUs), none falsely."""
    played = (play(slow(seed), seed=seed, windows=WINDOWS, thresholds=ALL_PASS) for seed in (101, 102))
    found = [verdict for run in played for verdict in verdicts(run)]
    count = slow_count(found)
    assert count.false == 0
    assert count.f1 >= 0.9
    assert [(v.kind, v.speed) for v in found if v.speed < 0.95 and not v.demoted] == []


def test_hard_faults_act_with_their_own_message() -> None:
    """Not at the end of a window."""
    run, _ = faults()
    delays = list(_hard_delays(run))
    assert len(delays) >= 10
    assert set(delays) == {0.0}


@pytest.mark.parametrize(
    "kind",
    [
        "power_brake", "hw_slowdown", "cooling", "ecc_corrected_storm", "ecc_uncorrected", "row_remap_pending",
        "row_remap_failed", "xid", "fallen_off_bus", "silent_loss", "pcie_width", "pcie_gen", "pcie_replay_storm",
        "nvlink_errors", "frozen_values", "fabric_fault", "clock_skew",
    ],
)  # fmt: skip
def test_each_kind_of_fault_is_found_and_its_cause_named(kind: str) -> None:
    """Every GPU struck, whichever slot and job."""
    struck = [v for v in faults()[1] if v.kind == kind]
    assert struck
    assert all(v.named for v in struck), [(v.reached, v.cause, v.codes) for v in struck]


def test_a_node_that_its_host_starves_is_told_from_one_that_waits() -> None:
    """Of its eight GPUs at most one is missed, or was slow before and is called so still."""
    struck = [v for v in faults()[1] if v.kind == "noisy_neighbour"]
    assert len(struck) == 8
    assert sum(v.named for v in struck) >= 7, [(v.reached, v.cause, v.codes) for v in struck]


def test_a_rack_without_cooling_is_told_as_a_rack() -> None:
    """The excess sits where most of its GPUs have it."""
    run, found = faults()
    rack = {v.gpu for v in found if v.name == "rack_cooling"}
    told = run.said.filter(run.said["gpu_uuid"].is_in(list(rack)))["reasons"]
    assert told.str.contains("at the level rack").any()
    hit = [v for v in found if v.name == "rack_cooling"]
    assert sum(v.found for v in hit) > 0.8 * len(hit)  # those that heat does not slow yet, too


def test_what_only_looks_like_trouble_demotes_no_gpu_of_typical_speed() -> None:
    """Warm rooms, flapping caps, garbage, reloads, swaps, late batches, application XIDs, all at once."""
    found = verdicts(play(storm(101), seed=101, windows=30))
    assert [v.codes for v in found if v.demoted and v.speed > 0.985] == []


def test_a_flood_is_held_by_the_breaker() -> None:
    """Two fifths of a fleet slow at once: at most 15 % are demoted."""
    found = list(verdicts(play(flood(101), seed=101, windows=22)))
    assert sum(v.demoted for v in found) <= 0.15 * len(found)
