"""Whose a difference is: the GPU's own, or its node's alone, as in step times of synchronous jobs.

To demand more evidence before a GPU loses its own score: the thresholds of `node_only`.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from scipy.stats import f as f_distribution

MIN_NODES = 8  #: with several measured GPUs each; fewer cannot tell a node's effect from its GPUs'
MIN_FREEDOM = 20.0  #: degrees of freedom for GPUs within nodes, and for runs


def node_only(
    gpus: pl.DataFrame, *, by: Sequence[str], gpu_level: float = 0.05, node_level: float = 0.001, outlier: float = 4.5
) -> pl.DataFrame:
    """The groups (`by`) in which GPUs of one node differ no more than their runs do, while nodes do differ.

    `gpus`: one row per GPU with `by`, `node`, `middle` (log), `weight` (runs), `run_variance`. In such a group the
    GPU's share of variance is nil and a GPU's own number is noise about its node's. Analysis of variance in two steps:
    GPUs within nodes against runs not significant at `gpu_level`, nodes against all that is inside them significant at
    `node_level`. And no single GPU stands `outlier` standard errors from its node: one slow GPU of many is its own
    even where the rest is not. One row per such group, its keys only. Searle, Casella and McCulloch 1992, chapter 4.
    """
    runs = pl.col("weight")
    middle = (pl.col("middle") * runs).sum() / runs.sum()
    rows = gpus.with_columns(middle.over(*by, "node").alias("_node"), middle.over(by).alias("_all"))
    rows = rows.with_columns(pl.col("middle").median().over(*by, "node").alias("_usual"))
    inner = (runs - 1).clip(lower_bound=0) * pl.col("run_variance").fill_null(0.0)
    sums = rows.group_by(by, maintain_order=True).agg(
        pl.col("node").n_unique().alias("nodes"),
        pl.len().alias("gpus"),
        (runs - 1).clip(lower_bound=0).sum().alias("run_df"),
        inner.sum().alias("run_ss"),
        (runs * (pl.col("middle") - pl.col("_node")) ** 2).sum().alias("gpu_ss"),
        (runs * (pl.col("_node") - pl.col("_all")) ** 2).sum().alias("node_ss"),
        ((pl.col("middle") - pl.col("_usual")).abs() * runs.sqrt()).max().alias("worst"),
    )
    gpu_df, node_df = pl.col("gpus") - pl.col("nodes"), pl.col("nodes") - 1
    sums = sums.with_columns(gpu_df.alias("gpu_df"), node_df.alias("node_df")).filter(
        (pl.col("nodes") >= MIN_NODES) & (pl.col("gpu_df") >= MIN_FREEDOM) & (pl.col("run_df") >= MIN_FREEDOM)
        & (pl.col("run_ss") > 0)
    )  # fmt: skip
    run_ms = pl.col("run_ss") / pl.col("run_df")
    rest_df = pl.col("gpu_df") + pl.col("run_df")
    told = sums.with_columns(
        (pl.col("gpu_ss") / pl.col("gpu_df") / run_ms).alias("f_gpu"),
        (pl.col("node_ss") / pl.col("node_df") / ((pl.col("gpu_ss") + pl.col("run_ss")) / rest_df)).alias("f_node"),
        rest_df.alias("rest_df"),
        (pl.col("worst") / run_ms.sqrt()).alias("worst"),
    )
    f_gpu = f_distribution.sf(told["f_gpu"].to_numpy(), told["gpu_df"].to_numpy(), told["run_df"].to_numpy())
    f_node = f_distribution.sf(told["f_node"].to_numpy(), told["node_df"].to_numpy(), told["rest_df"].to_numpy())
    nil = pl.Series(np.asarray((f_gpu > gpu_level) & (f_node < node_level), dtype=bool))
    return told.filter(nil & (pl.col("worst") <= outlier)).select(by)
