"""Who is compared with whom: peer groups from the inventory, load bins from the window.

To split peers further: one more part in `peer_group` or `load_bin`, and a paragraph in docs/scoring.md.
"""

import polars as pl

from analytics.keys import contest

POWER_STEP_W = 5.0  #: enforced limits differ by fractions of a watt; five are one setting
_BINS = 32  # more than there are load bins
FULL_LOAD = 0.9  #: coarse utilisation: the load is either about full or not
UNKNOWN_MODEL = "unknown model"

GROUPED_BY = ("model", "memory_total_bytes", "mig_enabled")
"""Columns of the inventory that `peer_group` reads, beside the power limit."""


def peer_group() -> pl.Expr:
    """`model|memory|power limit|MIG` of a row with model, memory_total_bytes, power_limit_w, mig_enabled.

    A model is compared under its own name, whether known to us or not. Nulls are parts of the name like any other:
    GPUs about which equally little is known share a group.
    """
    memory = (pl.col("memory_total_bytes") / 2**30).round(0).cast(pl.Int64).cast(pl.String) + "GiB"
    limit = ((pl.col("power_limit_w") / POWER_STEP_W).round(0) * POWER_STEP_W).cast(pl.Int64).cast(pl.String) + "W"
    mig = pl.when(pl.col("mig_enabled")).then(pl.lit("|mig")).otherwise(pl.lit(""))
    return pl.format(
        "{}|{}|{}{}",
        pl.col("model").fill_null(UNKNOWN_MODEL),
        memory.fill_null("-"),
        limit.fill_null("-"),
        mig,
    ).alias("peer_group")


def without_limit(group: pl.Expr) -> pl.Expr:
    """A peer group's name without its power limit."""
    return group.str.replace(r"\|\d+W", "")


def rivals(windows: pl.DataFrame, *, min_peers: float) -> pl.Series:
    """The group in which each row of `windows` (with `peer_group`) is compared: its own where it has `min_peers` there.

    A GPU that is alone with its power limit has no peers under it, and what the limit costs it is what its job waits
    for: it is compared with the largest group that differs by the limit alone.
    """
    sizes = windows.group_by("peer_group").len()
    if (sizes["len"] >= min_peers).all():
        return windows["peer_group"].alias("rivals")
    sizes = sizes.with_columns(without_limit(pl.col("peer_group")).alias("model"))
    largest = pl.col("peer_group").sort_by(-pl.col("len").cast(pl.Int64), "peer_group").first().over("model")
    enough = pl.col("len").max().over("model") >= min_peers
    sizes = sizes.with_columns(
        pl.when(enough & (pl.col("len") < min_peers)).then(largest).otherwise("peer_group").alias("rivals")
    )
    rows = windows.select("peer_group").join(
        sizes, on="peer_group", how="left", maintain_order="left", nulls_equal=True
    )
    return rows["rivals"]


def load_bin() -> pl.Expr:
    """A coarse bin of how hard the GPU worked, so that a light load at boost clock is no peer of a capped one.

    Quarters of pipe activity, else of SM activity, else full or part utilisation. Never power: it is an effect.
    """
    pipes = pl.max_horizontal("tensor_active_ratio", "fp_active_ratio")

    def quarter(value: pl.Expr) -> pl.Expr:
        return (value * 4).floor().clip(0, 3).cast(pl.Int32)

    return (
        pl.when(pipes.is_not_null())
        .then(quarter(pipes))
        .when(pl.col("sm_active_ratio").is_not_null())
        .then(10 + quarter(pl.col("sm_active_ratio")))
        .when(pl.col("utilization_ratio").is_not_null())
        .then(20 + (pl.col("utilization_ratio") >= FULL_LOAD).cast(pl.Int32))
        .otherwise(30)
        .alias("load_bin")
    )


def peers(group: str = "peer_group") -> pl.Expr:
    """`peers`: a number for each `group`, workload_class and load_bin that occurs, for grouping by."""
    return (contest(group, "workload_class") * _BINS + pl.col("load_bin").cast(pl.UInt64)).alias("peers")
