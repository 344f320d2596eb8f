"""The slow rank of a synchronous job, within its pipeline stage.

To add a case: made-up operations, or a real trace with what is known of it.
"""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analytics.stragglers import stragglers


def job(*, ranks: int = 4, stages: int = 2, steps: int = 10, slow: dict[int, float] | None = None) -> pl.DataFrame:
    """Computation of each step; the last stage works 60 % longer, and everybody waits for the slowest."""
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        for rank in range(ranks * stages):
            stage = rank // ranks
            own = (
                (1.6 if stage == stages - 1 else 1.0) * (slow or {}).get(rank, 1.0) * (1 + 0.002 * ((rank + step) % 3))
            )
            base = {"stage": stage, "rank": rank, "step": step}
            rows += [base | {"optype": "forward-compute", "duration": own / 3}]
            rows += [base | {"optype": "backward-compute", "duration": own * 2 / 3}]
            rows += [base | {"optype": "grads-reduce-scatter", "duration": 5.0 - own}]
    return pl.DataFrame(rows)


def named(operations: pl.DataFrame) -> list[int]:
    return stragglers(operations).filter("straggler")["rank"].to_list()


def test_the_slow_rank_is_named_and_a_heavier_stage_is_not() -> None:
    """A last stage with more work is no straggler; a rank 5 % behind its stage is."""
    assert named(job()) == []
    assert named(job(slow={2: 1.05})) == [2]
    assert named(job(slow={6: 1.05})) == [6]


def test_waiting_says_who_is_waited_for_and_is_not_held_against_anybody() -> None:
    """Only computing counts: the three that wait longest are healthy."""
    told = stragglers(job(slow={0: 2.0}))
    assert told.filter("straggler")["rank"].to_list() == [0]
    assert told.filter(pl.col("rank") == 0)["slowdown"][0] == pytest.approx(2.0, abs=0.02)


def test_a_few_slow_steps_are_no_straggler() -> None:
    """Two steps of ten, however slow: a pause of the collector of garbage, say."""
    rows = job()
    odd = (pl.col("rank") == 1) & (pl.col("step") < 2)
    assert named(rows.with_columns(pl.when(odd).then(9.0).otherwise("duration").alias("duration"))) == []


def test_a_stage_of_one_rank_and_too_few_steps_cannot_say() -> None:
    """Null, and nobody is named."""
    assert stragglers(job(ranks=1))["straggler"].to_list() == [None, None]
    assert stragglers(job(steps=4, slow={0: 2.0}))["straggler"].to_list() == [None] * 8


@pytest.mark.parametrize(("trace", "ranks"), [("AR", [0]), ("ST", [])])
def test_the_injected_slow_worker_is_found_and_nobody_where_there_is_none(
    shared_data: Path, trace: str, ranks: list[int]
) -> None:
    """AR: rank 0 and nothing else. ST: a heavier last stage, no slow worker."""
    assert named(pl.read_parquet(shared_data / "bytedance" / f"trace-{trace}.parquet")) == ranks
