"""Speed at equal work: what a GPU does while it is active, beside its node's other GPUs on the same programme.

To compare by another trace of the programme: one line in `_MIX`.
"""

import polars as pl

from analytics.crews import Crews
from analytics.estimators import SLOPE_COMPUTE
from analytics.keys import contest, node_number
from analytics.peers import load_bin
from analytics.speed import SLOPE_MIXED

SAME_MIX = 0.05  #: log: traffic per unit of work differs by less than that between GPUs of a node on one programme
MAX_SPREAD = 0.01  #: robust, of log work per active second at equal clock in a node: wider is no one programme
MIN_NODES = 4  #: below it, nothing is said of a whole node
LIGHT_PIPE = 0.05  #: a pipe that is active less than that measures no work
BOOST = 0.15
"""Log clock gained per log activity lost: who waits spins, and draws less under the same cap. A third of the dynamic
power for the time it waits, and power goes with the clock to about 2.4: physics, not a fit. Between nodes it is fitted
in each window, with this as its prior."""
WEIGHT = 0.0025  #: of the priors between nodes: (0.5 % of clock between nodes / 0.1)^2
MOST_BOOST = 0.35
CONTENDED = 0.05  #: log activity below the most active nodes' for all GPUs of a node
OWN_WORK = 0.005  #: log work per second that no other node shares: it waits for nobody else's GPU


def at_equal_work(windows: pl.DataFrame, speeds: pl.DataFrame, *, min_peers: float = 4) -> pl.DataFrame:
    """`speeds` of `speed.window_speed` refined where activity is known, with `silicon_log_speed` and `waiting`.

    `windows`: rows of WINDOWS of one window with `peer_group`, in the order of `speeds`. Same rows and order come
    back. Work is what the busiest pipe does in a second, activity the time in which any SM is busy. In a synchronous
    job all do equal work, and the GPU that everyone waits for is the most active; independent GPUs are equally active,
    and the slow one does less. Work per active second says who is slow in both, at any clock.

    Compared are at least `min_peers` GPUs of one node whose traffic per unit of work is the same, which is how one
    programme is known; between nodes the clock is compared, less what waiting and another mix of phases raise it by,
    which a linear fit over the nodes of a window tells. `silicon_log_speed`: what is left of the speed, beside the
    node's other GPUs, once the clock is taken out. `waiting`: share of activity below that of the most active nodes.
    `contended`: all GPUs of the node wait, for no other node's GPU. Null where nothing can be said.
    """
    rows = _traces(windows, speeds)
    if not rows["told"].any():
        return _nothing_said(speeds)
    crews = Crews(rows["crew"])
    rows = _compared(_fellows(rows, crews, min_peers=min_peers), crews, min_peers=min_peers)
    known = pl.col("fellow") & pl.col("between").is_not_null()
    return rows.select(
        *(name for name in speeds.columns if name not in ("log_speed", "few_peers")),
        pl.when(known).then(pl.col("between") + pl.col("within")).otherwise("log_speed").alias("log_speed"),
        pl.when(known).then(pl.lit(value=False)).otherwise("few_peers").alias("few_peers"),
        pl.when("fellow").then("silicon").alias("silicon_log_speed"),
        pl.when("fellow").then(1 - pl.col("wait").exp()).alias("waiting"),
        pl.when("fellow").then("contended").alias("contended"),
    )


def _nothing_said(speeds: pl.DataFrame) -> pl.DataFrame:
    unknown = {"silicon_log_speed": pl.Float64, "waiting": pl.Float64, "contended": pl.Boolean}
    last = ("log_speed", "few_peers")
    return speeds.select(
        pl.exclude(last), *last, *(pl.lit(None, dtype=kind).alias(name) for name, kind in unknown.items())
    )


def _traces(windows: pl.DataFrame, speeds: pl.DataFrame) -> pl.DataFrame:
    """Logs of clock, activity, work, and of traffic per unit of work; null where they cannot be had."""

    def log(value: pl.Expr) -> pl.Expr:
        return pl.when(value > 0).then(value.cast(pl.Float64).log())

    pipe = pl.max_horizontal("tensor_active_ratio", "fp_active_ratio")
    clock = pl.col("effective_clock_mhz")
    used = windows.select(
        load_bin(),
        contest("peer_group", "workload_class"),
        node_number().alias("node"),
        log(clock).alias("clock"),
        log(pl.col("sm_active_ratio")).alias("activity"),
        (log(pl.when(pipe >= LIGHT_PIPE).then(pipe)) + log(clock)).alias("work"),
        log(pl.col("dram_active_ratio")).alias("dram"),
    )
    slope = pl.when(pl.col("workload_class") == "compute").then(SLOPE_COMPUTE).otherwise(SLOPE_MIXED)
    rows = pl.concat([speeds, used], how="horizontal").with_columns(
        slope.alias("slope"),
        (pl.col("contest") * 2**24 + pl.col("node")).alias("crew"),
        (pl.col("work") - pl.col("activity")).alias("pace"),
        (pl.col("dram") - pl.col("work")).alias("mix"),
    )
    told = pl.col("eligible") & pl.all_horizontal(pl.col(n).is_not_null() for n in ("pace", "mix", "clock"))
    return rows.with_columns((told & pl.col("workload_class").is_in(["compute", "mixed"])).alias("told"))


def _fellows(rows: pl.DataFrame, crews: Crews, *, min_peers: float) -> pl.DataFrame:
    """`fellow`: on the same programme as most of its node."""
    mix = rows.select(pl.when("told").then("mix").alias("mix")).to_series()
    usual = crews.median(mix).alias("usual_mix")
    alike = pl.col("told") & ((pl.col("mix") - usual).abs() < SAME_MIX)
    rows = rows.with_columns(alike.fill_null(value=False).alias("alike"))
    rest = rows.select(
        pl.when("alike").then(pl.col("pace") - pl.col("slope") * pl.col("clock")).alias("rest")
    ).to_series()
    spread = 1.4826 * crews.median((rest - crews.median(rest)).abs())
    fellow = pl.col("alike") & (crews.count(rows["alike"]) >= min_peers) & (spread <= MAX_SPREAD)
    return rows.with_columns(fellow.fill_null(value=False).alias("fellow"))


def _compared(rows: pl.DataFrame, crews: Crews, *, min_peers: float) -> pl.DataFrame:
    """`within` the node by pace, `between` nodes by clock, `silicon`: within, beyond the clock."""
    masked = rows.select(
        pl.when("fellow").then(name).alias(name) for name in ("clock", "mix", "activity", "work", "load_bin")
    )
    first = pl.Series(crews.first)
    every = pl.DataFrame(
        [
            pl.int_range(len(first), eager=True).alias("crew"),
            *(rows[name].gather(first) for name in ("contest", "slope")),
            *(crews.medians(masked[name]) for name in ("clock", "mix", "activity", "work")),
            crews.medians(masked["load_bin"]).floor().alias("bin"),
            crews.most(masked["activity"]).alias("most"),
        ]
    )
    nodes = every.filter(pl.col("clock").is_not_null())
    by = ["contest", "bin"]
    nodes = nodes.with_columns((pl.col("activity") - pl.col("most").quantile(0.9).over(by)).alias("node_wait"))
    x, z, y = (pl.col(name) - pl.col(name).mean() for name in ("node_wait", "mix", "clock"))
    sums = nodes.group_by(by).agg(
        ((x * x).sum() + WEIGHT).alias("xx"),
        ((z * z).sum() + WEIGHT).alias("zz"),
        (x * z).sum().alias("xz"),
        ((x * y).sum() - BOOST * WEIGHT).alias("xy"),
        (z * y).sum().alias("zy"),
        pl.col("most").quantile(0.9).alias("usual_most"),
        pl.col("mix").median().alias("usual_mix"),
    )
    scale = pl.col("xx") * pl.col("zz") - pl.col("xz") ** 2
    fitted = sums.with_columns(
        ((pl.col("xz") * pl.col("zy") - pl.col("zz") * pl.col("xy")) / scale).clip(0.0, MOST_BOOST).alias("boost"),
    ).with_columns(((pl.col("zy") + pl.col("boost") * pl.col("xz")) / pl.col("zz")).alias("lift"))
    nodes = nodes.join(fitted, on=by, how="left", maintain_order="left", nulls_equal=True)
    even = (
        pl.col("clock") + pl.col("boost") * pl.col("node_wait") - pl.col("lift") * (pl.col("mix") - pl.col("usual_mix"))
    )
    nodes = nodes.with_columns(even.alias("even"))
    apart = pl.col("slope") * (pl.col("even") - pl.col("even").median().over(by))
    many = pl.col("even").count().over(by) >= MIN_NODES
    ahead, behind = pl.col("work").shift(-1) - pl.col("work"), pl.col("work") - pl.col("work").shift(1)
    alone = pl.min_horizontal(ahead.over(by, order_by="work"), behind.over(by, order_by="work")) > OWN_WORK
    contended = alone & (pl.col("most") < pl.col("usual_most") - CONTENDED)
    said = nodes.select(
        "crew",
        "boost",
        "usual_most",
        pl.when(many).then(apart).alias("between"),
        pl.when(many).then(contended).alias("contended"),
    )
    said = every.select("crew").join(said, on="crew", how="left", maintain_order="left").drop("crew")
    rows = rows.with_columns(said[pl.Series(crews.group)].get_columns())
    rows = rows.with_columns((pl.col("activity") - pl.col("usual_most")).clip(upper_bound=0.0).alias("wait"))
    lift = BOOST * pl.col("wait")
    own = rows.select(
        pl.when("fellow").then(pl.col("clock") + lift).alias("own"),
        pl.when("fellow").then(pl.col("pace") + pl.col("slope") * lift).alias("full"),
    )
    within = own["full"] - crews.median(own["full"])
    clock = own["own"] - crews.median(own["own"])
    return rows.with_columns(within.alias("within"), silicon=within - pl.col("slope") * clock)
