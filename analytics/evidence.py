"""Evidence for speed, kept per GPU and class, and its one combination by precision.

To add a source: its estimates (gpu, workload_class, source, mean, variance, samples) into `combine`.
"""

import polars as pl

from analytics.keys import KEY, beside, in_order, known_in_order

TELEMETRY: dict[str, pl.DataType] = {
    "gpu": KEY,
    "workload_class": pl.String(),
    "weight": pl.Float64(),
    "weight2": pl.Float64(),
    "mean": pl.Float64(),
    "spread": pl.Float64(),
    "windows": pl.UInt32(),
}
"""One row per GPU and class: sums over windows, each weighing less with the busy time since. `spread` is the weighted
sum of squares about the mean (West 1979)."""

SERIES = ("gpu", "workload_class")
Z90 = 1.6448536269514722  #: a 90 % interval holds the middle of a normal up to here
SPREAD_UNKNOWN = 0.01  #: between windows, while no GPU of the group has two
SPREAD_FLOOR = 0.003  #: a 15 MHz step at 1.4 GHz, spread evenly, is 0.3 %
MODEL_SD = {"compute": 0.003, "mixed": 0.01, "memory": 0.01, "communication": 0.02}
"""What clocks cannot say about speed. Compute: 0.26 % robust on Longhorn after the clock is taken out. Others: unknown,
so taken three times as large and more."""
WIDEST_MODEL_SD = 0.02
MANY_RESULTS = 3  #: so many results outweigh a clock: one may be a bad run, three are the GPU


def add_windows(kept: pl.DataFrame, speeds: pl.DataFrame, *, window_s: float, half_life_s: float) -> pl.DataFrame:
    """`kept` with one window's log speeds (gpu, workload_class, log_speed; a GPU once); sorted by GPU and class.

    Only the rows that get new evidence age: a weekend of idling forgets nothing.
    """
    new = speeds.select("gpu", pl.col("workload_class").alias("_class"), "log_speed").filter(
        pl.col("log_speed").is_not_null()
    )
    if new.is_empty():
        return kept
    rows = beside(kept, new)
    fresh = pl.col("_class").eq_missing(pl.col("workload_class"))
    rows = rows.with_columns(pl.when(fresh).then("log_speed").alias("log_speed")).drop("_class")
    told = rows.filter(pl.col("log_speed").is_not_null()).select("gpu", pl.lit(value=True).alias("_told"))
    first = beside(new, told).filter(pl.col("_told").is_null())
    if not first.is_empty():
        empty = [pl.lit(None, dtype=kind).alias(name) for name, kind in TELEMETRY.items() if name not in SERIES]
        first = first.select("gpu", pl.col("_class").alias("workload_class"), *empty, "log_speed")
        rows = known_in_order(pl.concat([rows, first]).sort("gpu", "workload_class"))
    fade = 0.5 ** (window_s / half_life_s)
    aged = pl.col("weight").fill_null(0.0) * fade
    known = pl.col("log_speed").is_not_null()
    was = pl.col("mean").fill_null(0.0)
    step = (pl.col("log_speed") - was) / (aged + 1)
    return rows.select(
        "gpu",
        "workload_class",
        pl.when(known).then(aged + 1).otherwise("weight").alias("weight"),
        pl.when(known).then(pl.col("weight2").fill_null(0.0) * fade**2 + 1).otherwise("weight2").alias("weight2"),
        pl.when(known).then(was + step).otherwise("mean").alias("mean"),
        pl.when(known)
        .then(pl.col("spread").fill_null(0.0) * fade + (pl.col("log_speed") - was) * step * aged)
        .otherwise("spread")
        .alias("spread"),
        (pl.col("windows").fill_null(0) + known.cast(pl.UInt32)).cast(pl.UInt32).alias("windows"),
    )


def estimates(kept: pl.DataFrame, gpus: pl.DataFrame, *, correlated_windows: float = 10) -> pl.DataFrame:
    """Telemetry's estimates: gpu, workload_class, source, mean, variance, samples.

    Windows of one job are not independent: `correlated_windows` of them are taken as one. The spread between windows
    is the GPU's own, at least its peers' median and a clock step's; what clocks cannot say is added and never
    averages out. `gpus`: gpu, peer_group.
    """
    rows = beside(kept, gpus.select("gpu", "peer_group"))
    # Of weighted values, unbiased (frequency of weights as in Kish 1965): with two windows half would be missing.
    own = (pl.col("spread") / (pl.col("weight") - pl.col("weight2") / pl.col("weight"))).sqrt()
    rows = rows.with_columns(pl.when(pl.col("windows") > 1).then(own).alias("own"))
    pooled = pl.col("own").median().over("peer_group", "workload_class").fill_null(SPREAD_UNKNOWN)
    spread = pl.max_horizontal("own", pooled, pl.lit(SPREAD_FLOOR))
    independent = (pl.col("weight") ** 2 / pl.col("weight2") / correlated_windows).clip(lower_bound=1.0)
    model = pl.col("workload_class").replace_strict(MODEL_SD, default=WIDEST_MODEL_SD, return_dtype=pl.Float64)
    return rows.select(
        "gpu",
        "workload_class",
        pl.lit("telemetry").alias("source"),
        "mean",
        (spread**2 / independent + model**2).alias("variance"),
        pl.col("windows").alias("samples"),
    )


def combine(sources: pl.DataFrame) -> pl.DataFrame:
    """One row per gpu and class: speed, low, high (90 %), samples, results, source; sorted.

    Weighted by precision. Sources that disagree by more than their variances allow widen the interval (Birge 1932).
    Where several results say that a GPU is slower than its clock tells, what they differ by is what clocks cannot say
    of this GPU, and goes into the clock's variance: silicon that is slow at a normal clock is slow.
    A node's results stand in only where nothing speaks of the GPU itself. `results`: measurements among the samples.
    `sources`: telemetry speaks once of a GPU in a class.
    """
    known = in_order(sources.filter(pl.col("mean").is_not_null()))
    clock = pl.col("source") == "telemetry"
    if bool(known.select(clock.all()).item()):
        return _shown(known.with_columns(*_of_one_source(known.schema["samples"])))
    several = known.filter(~clock).select("gpu").unique().sort("gpu").with_columns(_several=pl.lit(value=True))
    marked = beside(known, several)
    alone = marked.filter(pl.col("_several").is_null()).drop("_several")
    merged = _merged(marked.filter(pl.col("_several").is_not_null()).drop("_several"))
    single = alone.with_columns(*_of_one_source(merged.schema["results"])).select(merged.columns)
    return _shown(known_in_order(pl.concat([single, merged]).sort("gpu", "workload_class")))


def _of_one_source(count: pl.DataType) -> tuple[pl.Expr, pl.Expr]:
    return pl.lit(0, dtype=count).alias("results"), pl.col("variance").sqrt().alias("sd")


def _merged(known: pl.DataFrame) -> pl.DataFrame:
    """gpu, workload_class, mean, sd, samples, results, source of GPUs of which more than telemetry speaks."""
    by = ["gpu", "workload_class"]
    own = known.filter(pl.col("source") != "node")
    node = known.filter(pl.col("source") == "node").join(own, on=by, how="anti")
    many = (pl.col("source") == "measurement") & (pl.col("samples") >= MANY_RESULTS)
    told = own.filter(many).group_by(by).agg(pl.col("mean").min().alias("told"))
    own = own.join(told, on=by, how="left", maintain_order="left")
    unseen = (pl.col("mean") - pl.col("told")).clip(lower_bound=0.0).fill_null(0.0)
    own = own.with_columns(
        pl.when(pl.col("source") == "telemetry").then(pl.col("variance") + unseen**2).otherwise("variance")
    ).drop("told")
    rows = pl.concat([own, node]).sort(*by, "source", "mean", "samples").with_columns(precision=1 / pl.col("variance"))
    weight = pl.col("precision").sum()
    mean = (pl.col("precision") * pl.col("mean")).sum() / weight
    misfit = (pl.col("precision") * pl.col("mean") ** 2).sum() - weight * mean**2
    measured = pl.col("source") == "measurement"
    return rows.group_by(by, maintain_order=True).agg(
        mean.alias("mean"),
        (1 / weight * (misfit / (pl.len() - 1).clip(lower_bound=1)).clip(lower_bound=1.0)).sqrt().alias("sd"),
        pl.col("samples").sum(),
        pl.when(measured).then("samples").otherwise(0).sum().alias("results"),
        pl.when(measured.all()).then(pl.lit("measurement"))
        .when(measured.any()).then(pl.lit("both"))
        .otherwise(pl.col("source").first()).first().alias("source"),
    )  # fmt: skip


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        "gpu",
        "workload_class",
        pl.col("mean").exp().alias("speed"),
        (pl.col("mean") - Z90 * pl.col("sd")).exp().alias("low"),
        (pl.col("mean") + Z90 * pl.col("sd")).exp().alias("high"),
        "samples",
        "results",
        "source",
    )
