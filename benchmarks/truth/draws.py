"""Random draws of a few runs of each GPU, and what its other runs then say.

To judge another predictor: a function of the drawn rows in `ranking`.
"""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import rankdata

from analytics import evidence, measured

Floats = NDArray[np.float64]
Predictor = Callable[[pl.DataFrame], pl.DataFrame]  #: drawn runs -> gpu_uuid, log_speed

LATER_MIN = 3  #: other runs of a GPU before their median is worth comparing with


def split(
    runs: pl.DataFrame, *, count: int, rng: np.random.Generator, later_min: int = LATER_MIN, in_time: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """`count` runs of each GPU that has enough, and all its other runs. `in_time`: the first ones, not random ones."""
    order = pl.col("time_ns").cast(pl.Float64) if in_time else pl.Series(rng.random(len(runs)))
    rows = runs.with_columns(order.alias("_order")).with_columns(
        pl.col("_order").rank("ordinal").over("gpu_uuid").alias("_turn"), pl.len().over("gpu_uuid").alias("_runs")
    )
    rows = rows.filter(pl.col("_runs") >= count + later_min)
    drawn = pl.col("_turn") <= count
    return rows.filter(drawn).drop("_order", "_turn", "_runs"), rows.filter(~drawn).drop("_order", "_turn", "_runs")


def ranking(
    runs: pl.DataFrame, predictors: dict[str, Predictor], *, count: int, draws: int, seed: int = 0
) -> tuple[dict[str, tuple[float, float]], int]:
    """Spearman and slowest-decile overlap with the other runs' median, means over the draws; and how many GPUs."""
    rng = np.random.default_rng(seed)
    told: dict[str, list[tuple[float, float]]] = {name: [] for name in predictors}
    gpus = 0
    for _ in range(draws):
        drawn, others = split(runs, count=count, rng=rng)
        truth = others.group_by("gpu_uuid").agg(pl.col("log_speed").median().alias("truth"))
        gpus = len(truth)
        for name, predict in predictors.items():
            both = truth.join(predict(drawn).select("gpu_uuid", pl.col("log_speed").alias("said")), on="gpu_uuid")
            said, true = both["said"].to_numpy(), both["truth"].to_numpy()
            told[name].append((spearman(said, true), overlap(said, true)))
    return {name: tuple(np.mean(values, axis=0)) for name, values in told.items()}, gpus


def spearman(a: Floats, b: Floats) -> float:
    """Rank correlation, ties at their mean rank."""
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def overlap(said: Floats, true: Floats, *, share: float = 0.1) -> float:
    """Share of the slowest tenth that is among as many predicted slowest; ties at the edge count in proportion."""
    size = max(1, round(share * len(true)))
    slow = true <= np.sort(true)[size - 1]
    edge = np.sort(said)[size - 1]
    surely, maybe = said < edge, said == edge
    room = size - surely.sum()
    return float(((slow & surely).sum() + (slow & maybe).sum() * room / maybe.sum()) / slow.sum())


def measurement_results(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs (gpu_uuid, time_ns, log_speed) as results of one probe."""
    return runs.select(
        pl.col("gpu_uuid").alias("gpu"), pl.lit("gpu").alias("scope"), pl.lit("compute").alias("workload_class"),
        pl.lit("probe").alias("name"), "time_ns", pl.col("log_speed").alias("value"),
    ).sort(*measured.SERIES, "time_ns", "value")  # fmt: skip


def coverage(
    runs: pl.DataFrame,
    *,
    count: int,
    draws: int,
    seed: int = 0,
    later_min: int = measured.LATER_RUNS,
    in_time: bool = False,
) -> tuple[float | None, float | None, int]:
    """Share of GPUs whose other runs' median lies in the interval published from `count` runs; its width; pairs.

    Half of the GPUs, drawn anew each time, are judged; the other half lends its whole history, so that the run-to-run
    spread is known from others. Only GPUs with as many other runs as the interval speaks of. Runs have `peer_group`.
    The code is the scorer's own.
    """
    rng = np.random.default_rng(seed)
    names = runs["gpu_uuid"].unique().sort()
    gpus = runs.select(pl.col("gpu_uuid").alias("gpu"), "peer_group").unique().with_columns(pl.col("gpu").alias("node"))
    hits, widths, pairs = 0, [], 0
    for _ in range(draws):
        judged = pl.col("gpu_uuid").is_in(names.filter(pl.Series(rng.random(len(names)) < 0.5)).implode())
        drawn, others = split(runs.filter(judged), count=count, rng=rng, later_min=later_min, in_time=in_time)
        known = pl.concat([drawn, runs.filter(~judged)])
        summaries = measured.summarise(measurement_results(known))
        said = evidence.combine(measured.estimates(summaries, gpus))
        typical = summaries.join(gpus, on="gpu").group_by("peer_group").agg(pl.col("middle").median().alias("typ"))
        later = others.group_by(pl.col("gpu_uuid").alias("gpu"), "peer_group").agg(pl.col("log_speed").median())
        both = later.join(typical, on="peer_group").join(said, on="gpu")
        both = both.with_columns((pl.col("log_speed") - pl.col("typ")).exp().alias("true"))
        hits += int(both.select(pl.col("true").is_between("low", "high").sum()).item())
        widths.append((both["high"] - both["low"]).median())
        pairs += len(both)
    known_widths = [width for width in widths if isinstance(width, float)]
    return (hits / pairs, float(np.median(known_widths)), pairs) if pairs else (None, None, 0)


def each(counts: tuple[int, ...] = (1, 3, 10)) -> Iterator[tuple[int, str]]:
    """The numbers of runs that figures are told for, with their words."""
    for count in counts:
        yield count, f"{count} run{'s' if count > 1 else ''}"
