"""Speed from telemetry beyond the clock: what a clock reading hides, and what a measured time shows beside it.

To add a term: a function of rows and their peers here, its place in `speed.window_speed`, its physics in the docstring.
"""

from collections.abc import Sequence

import polars as pl

SLOPE_COMPUTE = 0.976  #: log time of SGEMM falls with log SM clock at this slope (Longhorn, 194 V100)
POWER_EXPONENT = 2.5  #: board power under a cap goes about as clock x voltage squared, voltage nearly with the clock
LOSS_PER_POWER = 1.2  #: skipped cycles save the dynamic power only, about five sixths of it (V100: 50 of 300 W stay)
HOT_C = 8.0  #: above the peers' median; slots of a healthy node differ by that much
MIN_DEFICIT = 0.015  #: log power below the peers; a healthy V100 at 82 C reads 1.4 % low and loses nothing (Longhorn)
DEFICIT_SD = 6.0  #: the same in robust standard deviations of the peers
CLOCK_PER_C = 0.0012  #: log clock that a GPU at its cap loses per degree more, from run to run (Longhorn, 194 V100)
HEAT_RUN_SHARE = 0.036  #: of the variance of temperature between runs of many GPUs, the run's own (Longhorn)
AT_CAP = 0.95  #: peers draw this share of the limit: power is what limits them
MIN_UNEXPLAINED = 0.02  #: log time beyond the clock; the effect below which nothing is called slow
MAD = 1.4826


def hidden_loss(rows: pl.DataFrame, *, by: Sequence[str], min_peers: float = 4) -> pl.Series:
    """Log speed that a clock reading hides, at most 0: of a GPU hot and *below* the cap at which its peers work.

    `rows`: `by`, log_clock, power_w, power_limit_w, temperature_c; one value a row, same order. At the power cap each
    GPU draws the cap and its clock says its speed. A GPU that thermal control holds below the cap skips cycles: the
    reported clock stays, the power falls with the work not done. So power missing against the peers' median, beyond
    what a visibly lower clock explains (P ~ f^2.5), is time lost. Counts only where the GPU is `HOT_C` hotter than its
    peers, misses `MIN_DEFICIT` and `DEFICIT_SD` robust deviations of power, and the peers are at the cap (limit
    unknown: taken to be). 0 where any of this is not known. Of Longhorn's V100 it finds the one that is 5 % slow at a
    normal clock; it cannot tell one that loses 2.4 % from one that reads the same and loses nothing.
    """

    def middle(name: str) -> pl.Expr:
        return pl.col(name).median().over(list(by))

    told = rows.select(
        *by, "log_clock", "power_limit_w",
        pl.col("power_w").cast(pl.Float64),
        pl.col("temperature_c").cast(pl.Float64),
        pl.when(pl.col("power_w") > 0).then("power_w").cast(pl.Float64).log().alias("log_power"),
    )  # fmt: skip
    told = told.with_columns(
        (middle("log_power") - pl.col("log_power")).alias("deficit"),
        (middle("log_clock") - pl.col("log_clock")).clip(lower_bound=0.0).alias("lower"),
        (pl.col("temperature_c") - middle("temperature_c") >= HOT_C).alias("hot"),
        (middle("power_w") >= AT_CAP * pl.col("power_limit_w")).fill_null(value=True).alias("capped"),
        (pl.col("log_power").count().over(list(by)) >= min_peers).alias("enough"),
    )
    missing = pl.col("deficit") - POWER_EXPONENT * pl.col("lower")
    suspect = pl.col("hot") & pl.col("capped") & pl.col("enough") & (missing >= MIN_DEFICIT)
    if not told.select(suspect.any()).item():
        return pl.repeat(0.0, len(told), eager=True).alias("hidden")
    spread = pl.col("deficit").abs().median().over(list(by)) * MAD
    found = (suspect & (missing >= DEFICIT_SD * spread)).fill_null(value=False)
    return told.select(pl.when(found).then(-LOSS_PER_POWER * missing).otherwise(0.0).alias("hidden")).to_series()


def telemetry_speed(runs: pl.DataFrame, *, by: Sequence[str] = ("peer_group",), min_peers: float = 4) -> pl.DataFrame:
    """Log speed of each GPU in compute-bound load, from the telemetry of its runs alone; no run's time is read.

    `runs`: one row per run with gpu_uuid, `by`, clock_mhz, power_w, power_limit_w, temperature_c (medians or means over
    the run; power, limit and temperature may be null). One row per gpu_uuid: `by`, `runs`, `log_speed` (mean over its
    runs against the group's median; several quantised clocks average to more than one), `hidden` (the part of it that
    the clock did not say). Null with fewer than `min_peers` GPUs.

    A run hotter than the peers' was in part hot by chance, and in other runs that GPU will be cooler and faster: of the
    distance to the peers' temperature `HEAT_RUN_SHARE` is the run's, less with more runs (regression to the mean,
    Galton 1886), and costs `CLOCK_PER_C`. It is a twentieth of a per cent at most, and orders GPUs of one clock step.
    """
    clock = pl.col("clock_mhz").cast(pl.Float64)
    rows = runs.with_columns(pl.when(clock > 0).then(clock.log()).alias("log_clock"))
    rows = rows.with_columns(hidden_loss(rows, by=by), (SLOPE_COMPUTE * pl.col("log_clock")).alias("clocked"))
    told = rows.group_by("gpu_uuid", *by).agg(
        pl.len().cast(pl.UInt32).alias("runs"),
        (pl.col("clocked") + pl.col("hidden")).mean().alias("log_speed"),
        pl.col("hidden").mean(),
        pl.col("temperature_c").cast(pl.Float64).mean().alias("heat"),
    )
    above = (pl.col("heat") - pl.col("heat").median().over(by)).fill_null(0.0)
    chance = HEAT_RUN_SHARE / (HEAT_RUN_SHARE + pl.col("runs") * (1 - HEAT_RUN_SHARE))
    told = told.with_columns((pl.col("log_speed") + CLOCK_PER_C * chance * above).round(9)).drop("heat")
    middle, peers = pl.col("log_speed").median().over(by), pl.col("log_speed").count().over(by)
    return told.with_columns(pl.when(peers >= min_peers).then(pl.col("log_speed") - middle).alias("log_speed")).sort(
        "gpu_uuid"
    )


def unexplained(
    gpus: pl.DataFrame, *, by: Sequence[str] = ("peer_group",), min_effect: float = MIN_UNEXPLAINED, min_z: float = 6.0,
    floor: float = 0.002,
) -> pl.DataFrame:  # fmt: skip
    """What the measured time of a GPU says beyond its clock: slow silicon, skipped cycles, whatever clocks cannot show.

    `gpus`: one row per GPU with `by`, `log_time` and `clock_mhz` of the same runs. Adds `beyond_clock`, log time less
    what the clock predicts (slope `SLOPE_COMPUTE`), against the group's median, and `slow_beyond_clock`: at least
    `min_effect` and `min_z` robust deviations (of at least `floor`). Grain: the rows of `gpus`, same order.
    """
    rest = pl.col("log_time") + SLOPE_COMPUTE * pl.col("clock_mhz").log()
    rows = gpus.with_columns((rest - rest.median().over(by)).alias("beyond_clock"))
    beyond = pl.col("beyond_clock")
    spread = pl.max_horizontal(beyond.abs().median().over(by) * MAD, pl.lit(floor))
    return rows.with_columns(((beyond >= min_effect) & (beyond >= min_z * spread)).alias("slow_beyond_clock"))
