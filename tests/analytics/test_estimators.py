"""Speed from telemetry beyond the clock, and what a measured time shows beside it.

To add a case: made-up runs of a group at its power cap, and what they must say.
"""

import math
from typing import Any

import polars as pl
import pytest
from support.samples import windows

from analytics.estimators import LOSS_PER_POWER, SLOPE_COMPUTE, telemetry_speed, unexplained
from analytics.speed import window_speed


def runs(**odd: float) -> pl.DataFrame:
    """Nine GPUs at a cap of 300 W, and a tenth with some columns changed."""
    usual: dict[str, Any] = {"peer_group": "V100", "clock_mhz": 1360.0, "power_limit_w": 300.0, "temperature_c": 66.0}
    rows = [usual | {"gpu_uuid": f"g{i}", "power_w": 297.0 + 0.1 * (i % 5)} for i in range(9)]
    return pl.DataFrame([*rows, usual | {"gpu_uuid": "odd", "power_w": 297.2} | odd], infer_schema_length=None)


def odd(**columns: float) -> dict[str, Any]:
    """What is said of the tenth."""
    return telemetry_speed(runs(**columns)).row(by_predicate=pl.col("gpu_uuid") == "odd", named=True)


def test_the_clock_says_the_speed_of_a_gpu_at_its_cap() -> None:
    """A tenth less clock is a tenth less speed, and nothing is hidden, hot or not."""
    assert odd(clock_mhz=1224.0)["log_speed"] == pytest.approx(SLOPE_COMPUTE * math.log(0.9))
    assert odd(temperature_c=80.0)["hidden"] == 0
    assert odd(temperature_c=80.0)["log_speed"] == pytest.approx(0, abs=1e-3)


def test_power_missing_while_hot_is_time_that_the_clock_hides() -> None:
    """Hot, 4 % below the cap at which its peers work, at their clock: 5 % slow."""
    told = odd(temperature_c=80.0, power_w=285.0)
    assert told["log_speed"] == pytest.approx(LOSS_PER_POWER * math.log(285.0 / 297.2), abs=1e-3)
    assert told["hidden"] == pytest.approx(told["log_speed"], abs=1e-3)


def test_a_run_that_was_hot_by_chance_promises_a_little_more_than_its_clock() -> None:
    """Of 14 C above the peers half a degree is the run's, and a tenth of that with ten runs: 0.06 % and 0.006 %."""
    once = odd(temperature_c=80.0)["log_speed"]
    ten = pl.concat([runs(temperature_c=80.0)] * 10)
    often = telemetry_speed(ten).row(by_predicate=pl.col("gpu_uuid") == "odd", named=True)["log_speed"]
    assert once == pytest.approx(0.0006, abs=5e-5)
    assert often == pytest.approx(once / 10, rel=0.1)


@pytest.mark.parametrize(
    "columns",
    [
        {"power_w": 285.0},
        {"power_w": 295.0, "temperature_c": 80.0},
        {"power_w": 285.0, "temperature_c": 80.0, "clock_mhz": 1300.0},
    ],
    ids=["cool", "hardly below", "its lower clock explains it"],
)
def test_missing_power_that_has_another_reason_hides_nothing(columns: dict[str, float]) -> None:
    """A cool GPU waits for work; a little less power is a reading; a lower clock draws less and has been counted."""
    assert odd(**columns)["hidden"] == 0


def test_peers_below_their_cap_and_unknown_power_hide_nothing() -> None:
    """Where nobody is at the cap, power says how heavy the work is; a GPU without power readings is judged by clock."""
    light = runs(power_w=270.0, temperature_c=80.0).with_columns(pl.lit(400.0).alias("power_limit_w"))
    assert telemetry_speed(light)["hidden"].to_list() == [0.0] * 10
    blind = runs().with_columns(pl.lit(None, dtype=pl.Float64).alias("power_w"))
    assert telemetry_speed(blind)["log_speed"].to_list() == [0.0] * 10


def test_quantised_clocks_of_several_runs_average_and_three_gpus_say_nothing() -> None:
    """Two steps of 7.5 MHz in turn are the half step between; fewer than four GPUs have no middle."""
    both = pl.concat([runs(clock_mhz=1352.5), runs(clock_mhz=1360.0)])
    told = telemetry_speed(both).row(by_predicate=pl.col("gpu_uuid") == "odd", named=True)
    assert told["runs"] == 2
    assert told["log_speed"] == pytest.approx(SLOPE_COMPUTE * math.log(1352.5 / 1360) / 2)
    assert telemetry_speed(runs().head(3))["log_speed"].to_list() == [None] * 3


def test_a_window_of_a_hot_gpu_below_the_cap_says_more_than_its_clock() -> None:
    """The scorer's windows use the same physics: the clock is the peers', the speed is not."""
    hot = {"gpu_uuid": "hot", "power_w": 660.0, "temperature_c": 82.0}
    frame = windows([{"gpu_uuid": f"g{i}"} for i in range(7)] + [hot])
    frame = frame.rename({"gpu_uuid": "gpu"})
    told = window_speed(frame.with_columns(peer_group=pl.lit("H100")))
    assert told["log_speed"].to_list()[:7] == [0.0] * 7
    assert told["log_speed"][7] == pytest.approx(LOSS_PER_POWER * math.log(660 / 690), abs=1e-3)
    idle = frame.with_columns(peer_group=pl.lit("H100"), workload_class=pl.lit("mixed"))
    assert window_speed(idle)["log_speed"].to_list() == [0.0] * 8


def test_a_time_longer_than_the_clock_explains_is_found_and_a_slow_clock_is_not() -> None:
    """5 % slow at the usual clock is beyond it; 5 % slow at a 5 % lower clock is not."""
    rows = [{"gpu_uuid": f"g{i}", "log_time": 0.001 * (i % 3), "clock_mhz": 1360.0} for i in range(10)]
    rows += [{"gpu_uuid": "odd", "log_time": 0.05, "clock_mhz": 1360.0}]
    rows += [{"gpu_uuid": "low", "log_time": -SLOPE_COMPUTE * math.log(0.95), "clock_mhz": 0.95 * 1360.0}]
    told = unexplained(pl.DataFrame(rows).with_columns(peer_group=pl.lit("V100")))
    assert told.filter("slow_beyond_clock")["gpu_uuid"].to_list() == ["odd"]
    assert told.row(by_predicate=pl.col("gpu_uuid") == "odd", named=True)["beyond_clock"] == pytest.approx(
        0.049, abs=2e-3
    )
