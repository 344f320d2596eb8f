"""The slow rank of a synchronous job, from the time each rank computes in each step.

To judge another kind of operation: its name in `COMPUTE`; what waits for others (sends, receives, collectives) says
who is waited for, not who is slow, and stays out.
"""

import polars as pl

COMPUTE = ("forward-compute", "backward-compute")

SCHEMA: dict[str, pl.DataType] = {
    "stage": pl.Int64(), "rank": pl.Int64(), "steps": pl.UInt32(), "peers": pl.UInt32(), "slowdown": pl.Float64(),
    "slow_steps_ratio": pl.Float64(), "straggler": pl.Boolean(),
}  # fmt: skip


def stragglers(
    operations: pl.DataFrame, *, min_effect: float = 0.02, min_steps_ratio: float = 0.6, min_steps: int = 5
) -> pl.DataFrame:
    """One row per stage and rank: how much longer it computes than the other ranks of its own pipeline stage.

    `operations`: one row per operation with `stage`, `rank`, `step`, `optype`, `duration` (any one unit). Stages have
    different work (the last one holds the loss), so only ranks of one stage are compared, each with the median of the
    *others*: nobody is in his own baseline. Columns: `steps`, `peers` (other ranks of the stage), `slowdown` (median
    over steps, 1 is typical), `slow_steps_ratio` (steps in which it was slower by `min_effect`), `straggler`: at least
    `min_effect` slower in the median and in `min_steps_ratio` of at least `min_steps` steps (N of M, as in windows).
    Null without peers or steps enough: a stage of one rank cannot say. With one peer the slower of two is named.
    Method of comparison: Lin et al. 2025, "Understanding Stragglers in Large Model Training", arXiv:2505.05713.
    """
    work = operations.filter(pl.col("optype").cast(pl.String).is_in(list(COMPUTE)))
    times = work.group_by("stage", "rank", "step").agg(pl.col("duration").cast(pl.Float64).sum().alias("own"))
    pairs = times.join(times.rename({"rank": "other", "own": "theirs"}), on=["stage", "step"])
    pairs = pairs.filter(pl.col("rank") != pl.col("other"))
    usual = pairs.group_by("stage", "rank", "step").agg(
        pl.col("theirs").median().alias("usual"), pl.len().cast(pl.UInt32).alias("peers")
    )
    rows = times.join(usual, on=["stage", "rank", "step"], how="left")
    rows = rows.with_columns(pl.when(pl.col("usual") > 0).then(pl.col("own") / pl.col("usual")).alias("ratio"))
    found = rows.group_by("stage", "rank").agg(
        pl.col("ratio").count().cast(pl.UInt32).alias("steps"),
        pl.col("peers").max().fill_null(0).alias("peers"),
        pl.col("ratio").median().alias("slowdown"),
        (pl.col("ratio") >= 1 + min_effect).mean().alias("slow_steps_ratio"),
    )
    slow = (pl.col("slowdown") >= 1 + min_effect) & (pl.col("slow_steps_ratio") >= min_steps_ratio)
    judged = found.with_columns(
        pl.when((pl.col("steps") >= min_steps) & (pl.col("peers") > 0)).then(slow).alias("straggler")
    )
    return judged.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).sort("stage", "rank")
