"""Found peer groups, slot effects, odd settings.

To add a case: a made-up group and whether it is one kind or two.
"""

import numpy as np
import polars as pl
import pytest

from analytics.groups import modes, odd_drivers, without_slots


def kinds(values: np.ndarray) -> list[int]:
    """How many of each mode."""
    found = modes(pl.DataFrame({"value": values}), by=[])["mode"]
    return [found.eq(mode).sum() for mode in (0, 1)]


def test_two_kinds_of_board_under_one_name_are_two_groups() -> None:
    """Forty at full speed, thirty 8 % slower: cut between them, the faster ones first."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 0.01, 40), rng.normal(-0.08, 0.01, 30)])
    assert kinds(values) == [40, 30]
    assert kinds(values[::-1] + 3) == [40, 30]


@pytest.mark.parametrize("outliers", [1, 3])
def test_outliers_however_wild_are_no_group(outliers: int) -> None:
    """One GPU at half speed is slow; a group it is not."""
    rng = np.random.default_rng(1)
    assert kinds(np.concatenate([rng.normal(0, 0.01, 40), np.full(outliers, -0.7)])) == [40 + outliers, 0]


def test_a_slow_tenth_is_slow_and_no_kind_of_its_own() -> None:
    """A tenth of the nodes at half speed must not become typical among themselves."""
    rng = np.random.default_rng(2)
    assert kinds(np.concatenate([rng.normal(0, 0.01, 90), rng.normal(-0.8, 0.01, 10)])) == [100, 0]


@pytest.mark.parametrize("gpus", [8, 20, 200])
def test_one_kind_is_hardly_ever_cut_in_two(gpus: int) -> None:
    """Normal, uniform and long-tailed groups: fewer than one in a hundred."""
    rng = np.random.default_rng(3)
    draws = [rng.normal(size=gpus) for _ in range(60)]
    draws += [rng.uniform(-1.7, 1.7, gpus) for _ in range(60)] + [rng.standard_t(3, gpus) for _ in range(60)]
    assert sum(kinds(0.02 * values)[1] > 0 for values in draws) <= 1


def test_too_few_to_cut_equal_ones_and_nulls_are_left_alone() -> None:
    """Seven GPUs, a constant group, and a GPU without a value."""
    assert kinds(np.array([0.0] * 4 + [-0.5] * 3)) == [7, 0]
    assert kinds(np.zeros(50)) == [50, 0]
    some = modes(pl.DataFrame({"g": ["a", "a"], "value": [0.0, None]}), by=["g"])
    assert some["mode"].to_list() == [0, None]
    assert modes(some.clear().select("g", "value"), by=["g"]).is_empty()


def test_a_slot_that_is_slow_on_every_node_makes_nobody_an_anomaly() -> None:
    """Slot 3 runs hot everywhere; the one GPU that is slow beyond its slot stays slow."""
    rows = [
        {"node": n, "slot": s, "value": -0.03 * (s == 3) - 0.05 * (n == s == 2)} for n in range(6) for s in range(4)
    ]
    told = without_slots(pl.DataFrame(rows), by=[])
    assert told["slot_effect"].to_list() == pytest.approx([0, 0, 0, -0.03] * 6)
    assert told.filter(pl.col("value_anomaly").abs() > 1e-9).select("node", "slot").rows() == [(2, 2)]


def test_a_slot_filled_on_three_nodes_has_no_known_effect() -> None:
    """Too few to say what the slot does."""
    rows = [{"node": n, "slot": s, "value": -0.03 * s} for n in range(3) for s in range(2)]
    assert without_slots(pl.DataFrame(rows), by=[])["slot_effect"].to_list() == [0.0] * 6


def test_a_driver_that_few_have_is_odd_and_an_upgrade_under_way_is_not() -> None:
    """One node of twenty, named with what is usual; a third of the fleet, or a fleet of two nodes, is not."""

    def told(nodes: int, other: int) -> list[str]:
        rows = {
            "gpu_uuid": [f"g{i}" for i in range(8 * nodes)],
            "model": ["H100"] * (8 * nodes),
            "driver_version": ["550.1" if i < 8 * other else "580.2" for i in range(8 * nodes)],
        }
        return odd_drivers(pl.DataFrame(rows))["words"].to_list()

    assert told(20, 1) == ["550.1, not 580.2"] * 8
    assert told(20, 0) == told(20, 7) == told(1, 0) == []
