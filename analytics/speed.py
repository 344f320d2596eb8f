"""Speed of a GPU in one window, from its clocks against its peers' at the same work.

To add evidence for a class: one branch in `window_speed`, its slope beside the others with the source.
"""

import polars as pl

from analytics.estimators import SLOPE_COMPUTE, hidden_loss
from analytics.peers import load_bin, peers, rivals

SLOPE_MIXED = 0.5  #: class unknown: half of the time is taken to scale with the SM clock
SLOPE_MEMORY = 1.0  #: streaming goes with the memory clock; the SM clock says nothing


def window_speed(
    windows: pl.DataFrame,
    *,
    min_busy_samples: float = 10,
    min_busy_ratio: float = 0.5,
    min_peers: float = 4,
) -> pl.DataFrame:
    """Log speed relative to the peers, for rows of WINDOWS with `peer_group`.

    Same rows and order: gpu, workload_class, `rivals` (the group compared in, see `peers.rivals`), `log_speed` (null
    where it cannot be said), `eligible` (busy enough to be judged), `few_peers` (eligible, but fewer than `min_peers`
    of its rivals, class and load bin, itself included). Communication has no evidence in clocks. Compute adds what the
    clock hides of a GPU that is hot and below the power cap at which its peers work (`estimators.hidden_loss`).
    """
    promised = pl.col("samples") / pl.col("completeness_ratio")
    enough = (pl.col("busy_samples") >= min_busy_samples) | (pl.col("busy_samples") * 2 >= promised)
    clock = (
        pl.when(pl.col("workload_class") == "memory")
        .then("memory_clock_mhz")
        .when(pl.col("workload_class").is_in(["compute", "mixed"]))
        .then("effective_clock_mhz")
        .cast(pl.Float64)
    )
    slope = (
        pl.when(pl.col("workload_class") == "compute")
        .then(SLOPE_COMPUTE)
        .when(pl.col("workload_class") == "mixed")
        .then(SLOPE_MIXED)
        .otherwise(SLOPE_MEMORY)
    )
    rows = windows.select(
        "gpu", "workload_class", rivals(windows, min_peers=min_peers), load_bin(), slope.alias("slope"),
        pl.when(clock > 0).then(clock.log()).alias("log_clock"),
        (enough & (pl.col("busy_ratio") >= min_busy_ratio)).fill_null(value=False).alias("eligible"),
        "power_w", "power_limit_w", "temperature_c",
    ).with_columns(pl.when("eligible").then("log_clock"), peers("rivals"))  # fmt: skip
    compute = pl.col("eligible") & (pl.col("workload_class") == "compute")
    rows = rows.with_columns(
        hidden_loss(
            rows.with_columns(pl.when(compute).then("power_w"), pl.when(compute).then("temperature_c")),
            by=["peers"],
            min_peers=min_peers,
        )
    )
    many = pl.col("log_clock").count().over("peers") >= min_peers
    compared = rows.with_columns(pl.col("log_clock").median().over("peers").alias("middle"), many.alias("many"))
    many = pl.col("many")
    return compared.select(
        "gpu",
        "workload_class",
        "rivals",
        pl.when(many)
        .then(pl.col("slope") * (pl.col("log_clock") - pl.col("middle")) + pl.col("hidden"))
        .alias("log_speed"),
        (pl.col("eligible") & pl.col("log_clock").is_not_null()).alias("eligible"),
        (pl.col("log_clock").is_not_null() & ~many).fill_null(value=False).alias("few_peers"),
    )
