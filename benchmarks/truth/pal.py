"""PAL's profiles: ResNet-50, BERT and PageRank on Longhorn and Frontera, several runs a GPU (hal-uw/blox-pal).

To judge another profile: its line in `KNOWN`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from analytics.variance import components
from benchmarks.truth.figure import Figure

SET = "pal"
Bounds = tuple[float | None, float | None]
KNOWN: Mapping[str, Mapping[str, Bounds]] = {
    "resnet-longhorn": {"GPU": (0.0, 0.0), "node": (0.10, 0.30)},
    "bert-longhorn": {"GPU": (0.0, 0.0), "node": (0.10, 0.30)},
    "frontera-resnet": {"GPU": (0.0, 0.0), "node": (0.75, 0.90)},
}
"""Synchronous 4-GPU jobs: nothing of the GPU's own; shares of the node as known from the whole sets, with room."""

WILD = 6.0  #: robust deviations from the median beyond which a run is called wild
JOB_COLUMNS = ("ts", "reps")  #: what rows of one job have in common, beside their node; one of them, where there is one


def profile(path: Path) -> pl.DataFrame:
    """One row per GPU and run: node, gpu, job (null where the file does not tell), value (log time).

    Raises ValueError naming the columns that are missing. Times that are not above zero are left out.
    """
    rows = pl.read_csv(path, infer_schema_length=None)
    lacking = [name for name in ("cabinet", "node", "device", "perf") if name not in rows.columns]
    if lacking:
        raise ValueError(f"{path} lacks the columns {lacking}")
    jobs = [name for name in JOB_COLUMNS if name in rows.columns]
    told = rows.select(
        pl.format("{}-{}", "cabinet", "node").alias("node"), pl.col("device").alias("gpu"),
        (pl.col(jobs[0]).cast(pl.String) if jobs else pl.lit(None, dtype=pl.String)).alias("job"),
        pl.col("perf").cast(pl.Float64, strict=False).alias("time"),
    )  # fmt: skip
    return told.filter(pl.col("time") > 0).with_columns(pl.col("time").log().alias("value")).drop("time")


def figures(path: Path) -> Iterator[Figure]:
    """Shares of variance of one profile; the node's also without wild runs, and with jobs as a level of their own."""
    name, runs = path.stem.removesuffix("-agg"), profile(path)
    for row, level in zip(
        components(runs, levels=["node", "gpu"]).iter_rows(named=True), ("node", "GPU", "run"), strict=False
    ):
        low, high = KNOWN.get(name, {}).get(level, (None, None))
        told, n = f"{name}: {level}'s share of variance", row["units"]
        yield Figure(set=SET, figure=told, value=row["share"], n=n, low=low, high=high)
        if level == "node" and row["share"] is not None:
            span = f"{row['share_low']:.3f} to {row['share_high']:.3f}"
            yield Figure(set=SET, figure=f"{name}: node's share, 90 % interval", value=span, n=n)
    off = (pl.col("value") - pl.col("value").median()).abs()
    tame = runs.filter(off <= WILD * 1.4826 * off.median())
    words = f"{name}: node's share without {len(runs) - len(tame)} wild runs"
    yield Figure(set=SET, figure=words, value=_share(tame, "gpu", of="node"), n=len(tame))
    if runs["job"].null_count() == 0 and len(runs) >= 2 * runs.n_unique(["node", "job"]):
        for part, words in ((runs, ""), (tame, ", without wild runs")):
            for level in ("node", "job"):
                told = f"{name}: {level}'s share with jobs as a level{words}"
                yield Figure(set=SET, figure=told, value=_share(part, "job", of=level), n=len(part))


def _share(runs: pl.DataFrame, inner: str, *, of: str) -> float | None:
    for row in components(runs, levels=["node", inner]).iter_rows(named=True):
        if row["level"] == of:
            return None if row["share"] is None else float(row["share"])
    return None
