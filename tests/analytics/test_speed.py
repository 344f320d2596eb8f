"""Speed of a window from clocks, against peers of the same group, class and load.

To add a case: rows of `support.samples.windows` and what their log speed must be.
"""

import math
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples import windows

from analytics.peers import peer_group
from analytics.speed import SLOPE_COMPUTE, SLOPE_MIXED, window_speed


def speeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    frame = windows([{"gpu_uuid": f"g{i}"} | row for i, row in enumerate(rows)])
    group = pl.Series("peer_group", [row.get("group", "H100") for row in rows])
    return list(window_speed(frame.with_columns(group).rename({"gpu_uuid": "gpu"})).iter_rows(named=True))


def test_log_speed_is_the_slope_times_the_distance_to_the_peers_median() -> None:
    """A tenth less clock is a tenth less compute, and half as much where the class is unknown."""
    for name, slope in (("compute", SLOPE_COMPUTE), ("mixed", SLOPE_MIXED)):
        rows = speeds([{"workload_class": name}] * 5 + [{"workload_class": name, "effective_clock_mhz": 1260.0}])
        assert rows[5]["log_speed"] == pytest.approx(slope * math.log(0.9))
        assert rows[0]["log_speed"] == 0


def test_memory_work_goes_by_the_memory_clock_and_communication_by_none() -> None:
    """A low SM clock is no evidence about streaming, and no clock is evidence about links."""
    memory = {"workload_class": "memory"}
    rows = speeds([memory] * 4 + [memory | {"effective_clock_mhz": 700.0}, memory | {"memory_clock_mhz": 1310.0}])
    assert rows[4]["log_speed"] == 0
    assert rows[5]["log_speed"] == pytest.approx(math.log(1310 / 2619))
    assert {row["log_speed"] for row in speeds([{"workload_class": "communication"}] * 6)} == {None}


def test_too_few_peers_are_said_and_never_silently_fine() -> None:
    """Three of a kind cannot tell who is wrong; five with one at a tenth can."""
    assert [row["few_peers"] for row in speeds([{}] * 3)] == [True] * 3
    five = speeds([{"effective_clock_mhz": clock} for clock in (100.0, 100.0, 100.0, 100.0, 10.0)])
    assert [round(row["log_speed"], 3) for row in five] == [0, 0, 0, 0, round(SLOPE_COMPUTE * math.log(0.1), 3)]


def test_equal_clocks_but_one_step_give_a_small_finite_speed() -> None:
    """Seven peers at 1410 MHz and one at 1407: no division by a spread of zero, 0.2 % is 0.2 %."""
    rows = speeds([{"effective_clock_mhz": 1410.0}] * 7 + [{"effective_clock_mhz": 1407.0}])
    assert rows[7]["log_speed"] == pytest.approx(-0.00208, abs=1e-4)
    assert all(math.isfinite(row["log_speed"]) for row in rows)


def test_a_light_load_at_boost_clock_is_no_peer_of_a_capped_one() -> None:
    """Four GPUs at the cap stay typical although four others boost."""
    light = {"tensor_active_ratio": 0.1, "fp_active_ratio": 0.22, "effective_clock_mhz": 1980.0}
    assert [row["log_speed"] for row in speeds([{}] * 4 + [light] * 4)] == [0] * 8


def test_idle_and_short_windows_say_nothing_about_speed() -> None:
    """A GPU that worked for nine seconds, or less than half of the window, is not judged."""
    rows = speeds([{}] * 4 + [{"busy_samples": 9}, {"busy_ratio": 0.4}, {"effective_clock_mhz": 0.0}])
    assert [row["log_speed"] for row in rows[4:]] == [None] * 3
    assert [row["few_peers"] for row in rows[4:]] == [False] * 3
    sparse = {"samples": 6, "busy_samples": 6, "completeness_ratio": 1.0}
    assert [row["log_speed"] for row in speeds([sparse] * 4)] == [0] * 4


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(900, 1980), min_size=4, max_size=12), st.floats(0.1, 10), st.randoms())
def test_speeds_follow_neither_order_nor_units_nor_names(clocks: list[int], unit: float, random: Any) -> None:
    """Clocks in another unit, in another order: the same speeds."""
    base = [row["log_speed"] for row in speeds([{"effective_clock_mhz": float(c)} for c in clocks])]
    order = list(range(len(clocks)))
    random.shuffle(order)
    other = [row["log_speed"] for row in speeds([{"effective_clock_mhz": clocks[i] * unit} for i in order])]
    assert [other[order.index(i)] for i in range(len(clocks))] == pytest.approx(base, abs=1e-5)


def test_peer_groups_split_by_model_memory_limit_and_mig() -> None:
    """Half a watt is one setting, ten watts are two; an unknown model has a group under its own name."""
    rows = pl.DataFrame(
        {
            "model": ["H100", "H100", "H100", "H100", "X-9000", None],
            "memory_total_bytes": [80 * 2**30 - 10**8, 80 * 2**30, 80 * 2**30, 80 * 2**30, 80 * 2**30, None],
            "power_limit_w": [699.6, 700.0, 690.0, 700.0, 700.0, None],
            "mig_enabled": [False, None, False, True, False, None],
        }
    )
    groups = rows.select(peer_group()).to_series().to_list()
    assert groups[0] == groups[1]
    assert len(set(groups)) == 5
    assert groups[5].startswith("unknown model")
