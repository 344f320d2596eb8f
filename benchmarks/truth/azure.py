"""Azure: benchmarks of 8-GPU A100 nodes (microsoft/superbenchmark). Each fault at its own level, and nobody else.

To judge another column: its name in `NODE_NAMES` or `GPU_NAMES`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from analytics.levels import levels
from benchmarks.truth.figure import Figure
from telemetry.metrics import METRICS

SET = "azure"
NODE_NAMES = ("gemm_fp32_flops",)
GPU_NAMES = ("membw_h2d_bw", "membw_d2h_bw")
HALF_SPEED = 0.7  #: of the typical value; half-speed ones read 0.42 to 0.57, nothing else below 0.85
REST = 0.01  #: of the others may be called slow
ECC = "monitor_gpu_corrected_ecc"


def figures(path: Path) -> Iterator[Figure]:
    """All figures of the set."""
    rows = pl.read_csv(path, infer_schema_length=None)
    keys = ["node", pl.col("gpu").alias("slot")]
    names = (*NODE_NAMES, *GPU_NAMES)
    values = pl.concat(
        [rows.select(pl.lit(name).alias("name"), *keys, pl.col(name).cast(pl.Float64).alias("raw")) for name in names]
    ).with_columns(pl.when(pl.col("raw") > 0).then(pl.col("raw").log()).alias("value"))
    judged = levels(values)
    for names, level in ((NODE_NAMES, "node"), (GPU_NAMES, "gpu")):
        for name in names:
            yield from _found(values.filter(pl.col("name") == name), judged, name, level)
    yield from _range(rows)


def _found(values: pl.DataFrame, judged: pl.DataFrame, name: str, level: str) -> Iterator[Figure]:
    keys = ["node"] if level == "node" else ["node", "slot"]
    units = values.group_by(keys).agg(pl.col("raw").median()).drop_nulls()
    units = units.with_columns((pl.col("raw") < HALF_SPEED * pl.col("raw").median()).alias("half"))
    said = judged.filter((pl.col("name") == name) & (pl.col("level") == level)).select(*keys, "slow")
    both = units.join(said, on=keys, how="left").with_columns(pl.col("slow").fill_null(value=False))
    half, rest = both.filter("half"), both.filter(~pl.col("half"))
    what = f"{name}: half-speed {'nodes' if level == 'node' else 'GPUs'}"
    yield Figure(set=SET, figure=f"{what} found", value=_mean(half), n=len(half), low=1.0)
    yield Figure(set=SET, figure=f"{what}: share of the rest called slow", value=_mean(rest), n=len(rest), high=REST)
    if level == "node":
        inside = judged.filter((pl.col("name") == name) & (pl.col("level") == "gpu"))
        inside = inside.join(rest.select("node"), on="node", how="semi")
        yield Figure(
            set=SET,
            figure=f"{name}: GPUs of the other nodes called slow",
            value=_mean(inside),
            n=len(inside),
            high=REST,
        )


def _mean(rows: pl.DataFrame) -> float | None:
    mean = rows["slow"].mean()
    return float(mean) if isinstance(mean, float) else None


def _range(rows: pl.DataFrame) -> Iterator[Figure]:
    """Cells outside the valid range of their metric: garbage, rejected and counted."""
    top = _highest("ecc_corrected_total")
    cells = rows[ECC].cast(pl.Float64, strict=False).drop_nulls()
    yield Figure(
        set=SET, figure="corrected ECC cells rejected by range", value=int((cells > top).sum()), n=len(cells),
        low=_garbage(cells), high=_garbage(cells),
    )  # fmt: skip


def _highest(metric: str) -> float:
    high = METRICS[metric].high
    return float("inf") if high is None else float(high)


def _garbage(cells: Sequence[float] | pl.Series) -> int:
    """Cells of 1e12 and about: more errors than seconds in 30,000 years."""
    return sum(1 for cell in cells if cell >= 0.9e12)
