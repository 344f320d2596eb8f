"""Speed at equal work: what a GPU does while it is active, beside its node's other GPUs on the same programme.

To level nodes by another trace of what they do: one entry in `_TRACES`, its weight beside it.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analytics.activity import NVLINK_HIGH, PCIE_HIGH
from analytics.contention import STARVED, idle_beyond
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
MOST_BOOST = 0.35
_TRACES = {"node_wait": (-BOOST, 0.0025), "mix": (0.0, 0.0025), "talk": (0.0, 0.01)}
"""What lifts a node's clock without making it faster, with the prior of each slope and its weight, (0.5 % of clock
between nodes / how far the slope may be from the prior)^2: time spent waiting, memory traffic per unit of work, and
traffic with others in units of what makes a class of its own (`activity.NVLINK_HIGH`)."""
_TRACED = ("work", "mix", "talk", "busy_ratio", "engine", "activity")  #: what `idle_beyond` reads
HUBER = 2.0  #: robust deviations beyond which a node weighs less in that fit (Huber 1964)
NODE_SD = 0.005  #: log clock: so far nodes of one programme differ by themselves
LEVEL_SD = 0.003  #: a node whose lift is known to less, what a clock says at best, is compared inside itself alone
MOST_WAIT = 0.25  #: log activity: who waits more runs at the highest clock there is, and its cap binds no more
CLASSES = ["compute", "mixed"]  #: that have a slope

Floats = NDArray[np.float64]


def at_equal_work(windows: pl.DataFrame, speeds: pl.DataFrame, *, min_peers: float = 4) -> pl.DataFrame:
    """`speeds` of `speed.window_speed` refined where activity is known, with `silicon_log_speed` and `waiting`.

    `windows`: rows of WINDOWS of one window, in the order of `speeds`. Same rows and order come back. Work is what the
    busiest pipe does in a second, activity the time in which any SM is busy. In a synchronous job all do equal work,
    and the GPU that everyone waits for is the most active; independent GPUs are equally active, and the slow one does
    less. Work per active second says who is slow in both, at any clock.

    Compared are at least `min_peers` GPUs of one node whose traffic per unit of work is the same, which is how one
    programme is known. What they do at equal clock ties each node's work to its clock, and clocks are compared between
    nodes, less what waiting and another mix of phases raise them by, which a linear fit over the nodes of a window
    tells; a node unlike all others is taken to be typical itself. A GPU of such a node whose activity is not reported
    is tied to its node's by its clock; one whose activity makes it nobody's fellow is compared by its clock with those
    of equal traffic per unit of work alone. `silicon_log_speed`: what is left of the speed, beside the node's other
    GPUs, once the clock is taken out. `contended`: the node's GPUs stand empty more than those of nodes on the same
    programme, `waiting` of the time (see `analytics.contention`). Null where nothing can be said.
    """
    rows = _traces(windows, speeds)
    if not rows["told"].any():
        return _nothing_said(speeds)
    crews = Crews(rows["crew"])
    rows = _fellows(rows, crews, min_peers=min_peers)
    nodes = _levelled(rows, crews)
    rows = rows.with_columns(nodes[pl.Series(crews.group)].get_columns())
    wait = rows.select((pl.col("activity") - pl.col("usual_most")).clip(upper_bound=0.0)).to_series()
    # Who waits more than its node boosts more, which makes it no faster.
    lift = BOOST * (wait - crews.median(wait))
    even = pl.col("pace") + pl.col("slope") * pl.lit(lift) + pl.col("level")
    by_clock = pl.col("slope") * pl.col("clock")
    rows = rows.with_columns(pl.when("fellow").then(even).alias("even"), by_clock.alias("by_clock"))
    # By its clock alone a GPU is compared with the fellows of its node: it shares their waiting and their mix.
    tie = crews.median(rows["even"] - rows["by_clock"])
    silent = pl.col("eligible") & ~pl.col("told") & pl.col("workload_class").is_in(CLASSES)
    rows = rows.with_columns(pl.when(silent).then(pl.col("by_clock") + pl.lit(tie)).otherwise("even").alias("even"))
    typical = pl.when(pl.col("levelled")).then("even").median().over("contest", "bin")
    usual = pl.when("levelled").then(typical).otherwise(pl.lit(crews.median(rows["even"])))
    rows = rows.with_columns(usual.alias("usual"))
    known = pl.col("even").is_not_null() & pl.col("usual").is_not_null()
    rows = rows.with_columns(known.alias("known"), (pl.col("told") & ~known).alias("alone"))
    by_mix, enough = _by_mix(rows, min_peers=min_peers)
    return rows.select(
        *(name for name in speeds.columns if name not in ("log_speed", "few_peers")),
        pl.when("known")
        .then(pl.col("even") - pl.col("usual"))
        .when("alone")
        .then(by_mix)
        .otherwise("log_speed")
        .alias("log_speed"),
        pl.when("known")
        .then(pl.lit(value=False))
        .when("alone")
        .then(~enough)
        .otherwise("few_peers")
        .alias("few_peers"),
        pl.when("fellow").then(pl.col("rest") - pl.col("usual_rest")).alias("silicon_log_speed"),
        *(pl.when("fellow").then(name).alias(name) for name in ("waiting", "contended")),
    )


def _by_mix(rows: pl.DataFrame, *, min_peers: float) -> tuple[pl.Expr, pl.Expr]:
    """Log speed by the clock among GPUs on like programmes, and whether there are enough of those.

    Clocks of other programmes are no measure: with activity known, but no node to compare in, only those alike count.
    """
    if not rows["alone"].any():
        return pl.lit(None, dtype=pl.Float64), pl.lit(value=False)
    alike = ["contest", "load_bin", (pl.col("mix") / (2 * SAME_MIX)).round()]
    clocked = pl.when("told").then("log_speed")
    enough = clocked.count().over(alike) >= min_peers
    return pl.when(enough).then(pl.col("log_speed") - clocked.median().over(alike)), enough


def _nothing_said(speeds: pl.DataFrame) -> pl.DataFrame:
    unknown = {"silicon_log_speed": pl.Float64, "waiting": pl.Float64, "contended": pl.Boolean}
    last = ("log_speed", "few_peers")
    return speeds.select(
        pl.exclude(last), *last, *(pl.lit(None, dtype=kind).alias(name) for name, kind in unknown.items())
    )


def _traces(windows: pl.DataFrame, speeds: pl.DataFrame) -> pl.DataFrame:
    """Logs of clock, activity, work, and of traffic per unit of work; null where they cannot be had. `talk`: traffic
    with others, 0 where none is known."""

    def log(value: pl.Expr) -> pl.Expr:
        return pl.when(value > 0).then(value.cast(pl.Float64).log())

    pipe = pl.max_horizontal("tensor_active_ratio", "fp_active_ratio")
    clock = pl.col("effective_clock_mhz")
    used = windows.select(
        node_number().alias("node"),
        "busy_ratio",
        load_bin(),
        log(clock).alias("clock"),
        log(pl.col("sm_active_ratio")).alias("activity"),
        (log(pl.when(pipe >= LIGHT_PIPE).then(pipe)) + log(clock)).alias("work"),
        log(pl.col("dram_active_ratio")).alias("dram"),
        log(pl.col("utilization_ratio")).alias("engine"),
        (
            pl.col("nvlink_bytes_per_s").cast(pl.Float64).fill_null(0.0) / NVLINK_HIGH
            + pl.col("pcie_bytes_per_s").cast(pl.Float64).fill_null(0.0) / PCIE_HIGH
        ).alias("talk"),
    )
    slope = pl.when(pl.col("workload_class") == "compute").then(SLOPE_COMPUTE).otherwise(SLOPE_MIXED)
    rows = pl.concat([speeds, used], how="horizontal").with_columns(
        slope.alias("slope"),
        contest("rivals", "workload_class"),
        (pl.col("work") - pl.col("activity")).alias("pace"),
        (pl.col("dram") - pl.col("work")).alias("mix"),
    )
    told = pl.col("eligible") & pl.all_horizontal(pl.col(n).is_not_null() for n in ("pace", "mix", "clock"))
    told = told & pl.col("workload_class").is_in(CLASSES)
    crew = pl.col("contest") * 2**24 + pl.col("node")
    return rows.with_columns(told.fill_null(value=False).alias("told"), crew.alias("crew"))


def _fellows(rows: pl.DataFrame, crews: Crews, *, min_peers: float) -> pl.DataFrame:
    """`fellow`: on the same programme as most of its node. `rest`: pace at equal clock, `usual_rest`: the node's."""
    usual = crews.median(rows.select(pl.when("told").then("mix")).to_series())
    alike = pl.col("told") & ((pl.col("mix") - pl.lit(usual)).abs() < SAME_MIX)
    rows = rows.with_columns(alike.fill_null(value=False).alias("alike"))
    rest = pl.when("alike").then(pl.col("pace") - pl.col("slope") * pl.col("clock"))
    rows = rows.with_columns(rest.alias("rest"))
    rows = rows.with_columns(crews.median(rows["rest"]).alias("usual_rest"))
    spread = 1.4826 * crews.median((rows["rest"] - rows["usual_rest"]).abs())
    fellow = pl.col("alike") & pl.lit(crews.count(rows["alike"]) >= min_peers) & pl.lit(spread <= MAX_SPREAD)
    return rows.with_columns(fellow.fill_null(value=False).alias("fellow"))


def _levelled(rows: pl.DataFrame, crews: Crews) -> pl.DataFrame:
    """One row per crew, null where it has no fellows: `bin`, `usual_most`, `waiting`, `contended`, and `level`, which
    added to a pace makes it a log speed that compares between nodes where `levelled`: `MIN_NODES` nodes or more, and a
    lift that is known."""
    masked = rows.select(pl.when("fellow").then(name).alias(name) for name in ("clock", *_TRACED, "load_bin"))
    first = pl.Series(crews.first)
    every = pl.DataFrame(
        [
            pl.int_range(len(first), eager=True).alias("at"),
            *(rows[name].gather(first) for name in ("contest", "slope", "usual_rest")),
            *(crews.medians(masked[name]) for name in ("clock", *_TRACED)),
            crews.medians(masked["load_bin"]).floor().alias("bin"),
            crews.most(masked["activity"]).alias("most"),
        ]
    )
    nodes = every.filter(pl.col("clock").is_not_null())
    usual_most = pl.col("most").quantile(0.9).over("contest", "bin")
    nodes = nodes.with_columns((pl.col("activity") - usual_most).alias("node_wait"), usual_most.alias("usual_most"))
    parts = [_lifted(part) for part in nodes.partition_by("contest", "bin", maintain_order=True)]
    if not parts:
        nothing = {"lift": pl.Float64, "levelled": pl.Boolean, "waiting": pl.Float64, "contended": pl.Boolean}
        parts = [nodes.with_columns(pl.lit(None, dtype=kind).alias(name) for name, kind in nothing.items())]
    level = -pl.col("usual_rest") - pl.col("slope") * pl.col("lift")
    said = pl.concat(parts).select("at", "bin", "usual_most", "levelled", "waiting", "contended", level.alias("level"))
    return every.select("at").join(said, on="at", how="left", maintain_order="left").drop("at")


def _lifted(nodes: pl.DataFrame) -> pl.DataFrame:
    """The nodes of one contest with `lift`, by how much what each does lifts its log clock, against their mean, and
    `levelled`, whether that is known.

    Ridge regression on `_TRACES` towards their priors, robust against wild nodes (Huber 1964). The slope for waiting
    stays between 0 and `MOST_BOOST`.
    """
    traces = np.column_stack([nodes[name].to_numpy() for name in _TRACES]).astype(np.float64)
    clock = nodes["clock"].to_numpy()
    prior, weight = (np.array(values) for values in zip(*_TRACES.values(), strict=True))
    trust = np.ones(len(clock))
    for _ in range(4):
        x = traces - np.average(traces, axis=0, weights=trust)
        y = clock - np.average(clock, weights=trust)
        slopes = _ridge(x, y, trust, prior, weight)
        boost = np.clip(slopes[0], -MOST_BOOST, 0.0)
        if boost != slopes[0]:
            slopes = np.append(boost, _ridge(x[:, 1:], y - boost * x[:, 0], trust, prior[1:], weight[1:]))
        rest = y - x @ slopes
        off = np.abs(rest - np.median(rest))
        spread = max(1.4826 * float(np.median(off)), NODE_SD)
        trust = np.minimum(1.0, HUBER * spread / np.maximum(off, 1e-9))
    # The slopes' scatter under the prior (Lindley and Smith 1972), carried to each node.
    unsure = np.linalg.inv((x.T * trust) @ x + np.diag(weight))
    sd = spread * np.sqrt(np.einsum("ij,jk,ik->i", x, unsure, x))
    known = (sd <= LEVEL_SD) & (traces[:, 0] > -MOST_WAIT) & (len(clock) >= MIN_NODES)
    waiting = idle_beyond(*(nodes[name].to_numpy() for name in _TRACED), same_mix=SAME_MIX)
    return nodes.with_columns(
        pl.Series("lift", x @ slopes, pl.Float64),
        pl.Series("levelled", known, pl.Boolean),
        pl.Series("waiting", waiting, pl.Float64).fill_nan(None),
    ).with_columns((pl.col("waiting") > STARVED).alias("contended"))


def _ridge(x: Floats, y: Floats, trust: Floats, prior: Floats, weight: Floats) -> Floats:
    drawn = x.T * trust
    return np.asarray(np.linalg.solve(drawn @ x + np.diag(weight), drawn @ y + weight * prior))
