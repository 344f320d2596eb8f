"""Scores against real measurements: 194 V100 GPUs of Longhorn, one SGEMM run a row (hal-uw/blox-pal).

To add a check: what is known about the set, and what the scores must say of it.
"""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support.scorer import Scorer


@pytest.fixture(scope="module")
def runs(shared_data: Path) -> pl.DataFrame:
    """uuid, ts, perf: the time of a run in ms, bigger is slower."""
    return pl.read_csv(shared_data / "longhorn" / "sgemm.csv", infer_schema_length=None).select("uuid", "ts", "perf")


def scored(runs: pl.DataFrame) -> Scorer:
    """All runs as results of one probe."""
    scorer = Scorer()
    rows: list[dict[str, Any]] = [
        {"subject": uuid, "time_ns": ts * 10**9, "value": perf} for uuid, ts, perf in runs.iter_rows()
    ]
    scorer.measurements(*rows)
    return scorer


def spearman(scores: pl.DataFrame, runs: pl.DataFrame) -> float:
    """Rank correlation of speed with each GPU's median time, sign turned."""
    median = runs.group_by(pl.col("uuid").alias("gpu_uuid")).agg(pl.col("perf").median())
    joined = scores.select("gpu_uuid", "speed").join(median, on="gpu_uuid")
    return -float(joined.select(pl.corr("speed", "perf", method="spearman")).item())


def test_the_order_of_speeds_is_the_order_of_the_measured_times(runs: pl.DataFrame) -> None:
    """Spearman above 0.99, and the typical GPU is 1.00."""
    scores = scored(runs).scores
    assert spearman(scores, runs) > 0.99
    assert scores["speed"].median() == pytest.approx(1.0, abs=0.001)


def test_half_of_the_runs_predict_the_other_half_and_their_intervals_hold(runs: pl.DataFrame) -> None:
    """Better than the clock of one run (0.969), and nine intervals of ten reach the other half's speed."""
    order = runs.with_columns(pl.int_range(pl.len()).over("uuid").alias("turn"), pl.len().over("uuid").alias("runs"))
    order = order.filter(pl.col("runs") >= 10)
    halves = [order.filter(pl.col("turn") % 2 == odd).select(runs.columns) for odd in (0, 1)]
    first, second = (scored(half).scores for half in halves)
    assert spearman(first, halves[1]) > 0.975
    both = first.join(second.select("gpu_uuid", pl.col("speed").alias("other")), on="gpu_uuid")
    assert both.select(pl.col("other").is_between("speed_low", "speed_high").mean()).item() >= 0.9


def test_the_slowest_gpus_are_degraded_and_the_middle_is_not(runs: pl.DataFrame) -> None:
    """Who loses more than three per cent is named, and few others: healthy GPUs of one model differ, too."""
    scores = scored(runs).scores
    tried = scores.filter(pl.col("evidence") >= 5)
    bad = pl.col("tier").is_in(["degraded", "quarantine"])
    assert tried.filter(pl.col("speed") < 0.968).select(bad.all()).item()
    assert not tried.filter(pl.col("speed") > 0.975).select(bad.any()).item()
    assert 0.02 < scores.select(bad.mean()).item() < 0.07
