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


def profile(path: Path) -> pl.DataFrame:
    """One row per GPU and run: node, gpu, value (log time)."""
    rows = pl.read_csv(path, infer_schema_length=None)
    return rows.select(
        pl.format("{}-{}", "cabinet", "node").alias("node"), pl.col("device").alias("gpu"),
        pl.col("perf").cast(pl.Float64).log().alias("value"),
    )  # fmt: skip


def figures(path: Path) -> Iterator[Figure]:
    """Shares of variance of one profile."""
    name = path.stem.removesuffix("-agg")
    found = components(profile(path), levels=["node", "gpu"])
    for row, level in zip(found.iter_rows(named=True), ("node", "GPU", "run"), strict=True):
        low, high = KNOWN.get(name, {}).get(level, (None, None))
        yield Figure(
            set=SET,
            figure=f"{name}: {level}'s share of variance",
            value=row["share"],
            n=row["units"],
            low=low,
            high=high,
        )
