"""Any file of repeated measurements with the columns Node, GPU, Time (lower is better): what can be said of it.

To add a figure: one more `Figure` here.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from analytics import measured
from analytics.groups import modes
from analytics.variance import components
from benchmarks.truth.draws import LATER_MIN, Predictor, coverage, each, ranking
from benchmarks.truth.figure import Figure

COLUMNS = ("Node", "GPU", "Time")
MIN_GPUS = 10  #: with runs enough; fewer have no rank to speak of
MANY_GPUS = 100  #: fewer cannot tell 88 % from 92 %


def runs(path: Path) -> pl.DataFrame:
    """One row per measurement: gpu_uuid (`node/GPU`), node, time_ns (row number), log_speed, peer_group found.

    A GPU's name counts within its node. Raises ValueError without the columns. Times that are not above zero are left
    out.
    """
    rows = pl.read_csv(path, infer_schema_length=None)
    lacking = [name for name in COLUMNS if name not in rows.columns]
    if lacking:
        raise ValueError(f"{path} lacks the columns {lacking}")
    time = pl.col("Time").cast(pl.Float64, strict=False)
    known = rows.filter(time > 0).select(
        pl.format("{}/{}", "Node", "GPU").alias("gpu_uuid"), pl.col("Node").cast(pl.String).alias("node"),
        pl.int_range(pl.len()).cast(pl.Int64).alias("time_ns"), (-time.log()).alias("log_speed"),
    )  # fmt: skip
    gpus = known.group_by("gpu_uuid", maintain_order=True).agg(pl.col("log_speed").median().alias("value"))
    kinds = modes(gpus, by=[]).select("gpu_uuid", pl.format("group {}", pl.col("mode") + 1).alias("peer_group"))
    return known.join(kinds, on="gpu_uuid", maintain_order="left")


def figures(path: Path, *, draws: int = 20) -> Iterator[Figure]:
    """Groups, shares of variance within them, rank of a few runs against the others, coverage of intervals."""
    known, name = runs(path), path.stem
    sizes = known.group_by("peer_group").agg(pl.col("gpu_uuid").n_unique()).sort("peer_group")
    total = known["gpu_uuid"].n_unique()
    words = " + ".join(str(size) for size in sizes["gpu_uuid"])
    yield Figure(set=name, figure="groups found, GPUs in each (fastest first)", value=words or "none", n=total)
    centred = known.with_columns(pl.col("log_speed") - pl.col("log_speed").median().over("peer_group"))
    for row in components(centred, levels=["node", "gpu_uuid"], value="log_speed").iter_rows(named=True):
        level = "GPU" if row["level"] == "gpu_uuid" else row["level"]
        yield Figure(set=name, figure=f"{level}'s share of variance in a group", value=row["share"], n=row["units"])
        if row["share"] is not None:
            span = f"{row['share_low']:.3f} to {row['share_high']:.3f}"
            yield Figure(set=name, figure=f"{level}'s share, 90 % interval", value=span, n=row["units"])
    own: dict[str, Predictor] = {"own": lambda drawn: drawn.group_by("gpu_uuid").agg(pl.col("log_speed").median())}
    enough = known.group_by("gpu_uuid").len()["len"]
    for count, words in each():
        if (enough >= count + LATER_MIN).sum() >= MIN_GPUS:
            told, gpus = ranking(known, own, count=count, draws=draws)
            yield Figure(set=name, figure=f"rank of {words} against the others, Spearman", value=told["own"][0], n=gpus)
        if (enough >= count + measured.LATER_RUNS).sum() >= MIN_GPUS:
            hit, width, pairs = coverage(known, count=count, draws=draws)
            low, high = (0.88, 0.92) if len(enough) >= MANY_GPUS else (None, None)
            held = f"90 % interval from {words} holds the later median"
            yield Figure(set=name, figure=held, value=hit, n=pairs, low=low, high=high)
            yield Figure(set=name, figure=f"90 % interval from {words}: median width", value=width, n=pairs)
