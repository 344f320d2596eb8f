"""Speed at equal work: what a GPU does while it is active, beside its node's other GPUs on the same programme.

To level nodes by another trace of what they do: one entry in `_TRACES`, its weight beside it.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analytics.activity import NVLINK_HIGH, PCIE_HIGH
from analytics.estimators import SLOPE_COMPUTE
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
HUBER = 2.0  #: robust deviations beyond which a node weighs less in that fit (Huber 1964)
NODE_SD = 0.003  #: log clock; nodes of one programme are no more alike than that
CONTENDED = 0.05  #: log activity below the most active nodes' for all GPUs of a node
OWN_WORK = 0.005  #: log work per second that no other node shares: it waits for nobody else's GPU
NODE = ["contest", "workload_class", "node"]
CONTEST = ["contest", "workload_class", "bin"]

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
    tells. `silicon_log_speed`: what is left of the speed, beside the node's other GPUs, once the clock is taken out.
    `waiting`: share of activity below that of the most active nodes. `contended`: all GPUs of the node wait, for no
    other node's GPU. Null where nothing can be said.
    """
    rows = _fellows(_traces(windows, speeds), min_peers=min_peers)
    rows = rows.join(_levelled(rows), on=NODE, how="left", maintain_order="left", nulls_equal=True)
    wait = (pl.col("activity") - pl.col("usual_most")).clip(upper_bound=0.0)
    # Who waits more than its node boosts more, which makes it no faster.
    lift = BOOST * (wait - wait.median().over(NODE))
    even = pl.col("pace") + pl.col("slope") * lift + pl.col("level")
    rows = rows.with_columns(wait.alias("wait"), pl.when("fellow").then(even).alias("even"))
    typical = pl.col("even").median().over(CONTEST)
    known = pl.col("fellow") & pl.col("even").is_not_null()
    return rows.select(
        *(name for name in speeds.columns if name not in ("log_speed", "few_peers")),
        pl.when(known).then(pl.col("even") - typical).otherwise("log_speed").alias("log_speed"),
        pl.when(known).then(pl.lit(value=False)).otherwise("few_peers").alias("few_peers"),
        pl.when("fellow").then(pl.col("rest") - pl.col("usual_rest")).alias("silicon_log_speed"),
        pl.when("fellow").then(1 - pl.col("wait").exp()).alias("waiting"),
        pl.when("fellow").then("contended").alias("contended"),
    )


def _traces(windows: pl.DataFrame, speeds: pl.DataFrame) -> pl.DataFrame:
    """Logs of clock, activity, work, and of traffic per unit of work; null where they cannot be had. `talk`: traffic
    with others, 0 where none is known."""

    def log(value: pl.Expr) -> pl.Expr:
        return pl.when(value > 0).then(value.cast(pl.Float64).log())

    pipe = pl.max_horizontal("tensor_active_ratio", "fp_active_ratio")
    clock = pl.col("effective_clock_mhz")
    used = windows.select(
        "node",
        load_bin(),
        log(clock).alias("clock"),
        log(pl.col("sm_active_ratio")).alias("activity"),
        (log(pl.when(pipe >= LIGHT_PIPE).then(pipe)) + log(clock)).alias("work"),
        log(pl.col("dram_active_ratio")).alias("dram"),
        (
            pl.col("nvlink_bytes_per_s").cast(pl.Float64).fill_null(0.0) / NVLINK_HIGH
            + pl.col("pcie_bytes_per_s").cast(pl.Float64).fill_null(0.0) / PCIE_HIGH
        ).alias("talk"),
    )
    slope = pl.when(pl.col("workload_class") == "compute").then(SLOPE_COMPUTE).otherwise(SLOPE_MIXED)
    rows = pl.concat([speeds, used], how="horizontal").with_columns(
        slope.alias("slope"),
        (pl.col("work") - pl.col("activity")).alias("pace"),
        (pl.col("dram") - pl.col("work")).alias("mix"),
    )
    told = pl.col("eligible") & pl.all_horizontal(pl.col(n).is_not_null() for n in ("pace", "mix", "clock"))
    return rows.with_columns((told & pl.col("workload_class").is_in(["compute", "mixed"])).alias("told"))


def _fellows(rows: pl.DataFrame, *, min_peers: float) -> pl.DataFrame:
    """`fellow`: on the same programme as most of its node. `rest`: pace at equal clock, `usual_rest`: the node's."""
    mix = pl.when("told").then("mix")
    alike = pl.col("told") & ((pl.col("mix") - mix.median().over(NODE)).abs() < SAME_MIX)
    rows = rows.with_columns(alike.fill_null(value=False).alias("alike"))
    rows = rows.with_columns(
        pl.when("alike").then(pl.col("pace") - pl.col("slope") * pl.col("clock")).alias("rest"),
        pl.col("alike").sum().over(NODE).alias("fellows"),
    ).with_columns(pl.col("rest").median().over(NODE).alias("usual_rest"))
    spread = 1.4826 * (pl.col("rest") - pl.col("usual_rest")).abs().median().over(NODE)
    fellow = pl.col("alike") & (pl.col("fellows") >= min_peers) & (spread <= MAX_SPREAD)
    return rows.with_columns(fellow.fill_null(value=False).alias("fellow"))


def _levelled(rows: pl.DataFrame) -> pl.DataFrame:
    """One row per node with fellows: `bin`, `usual_most`, `contended`, and `level`, which added to a pace makes it a
    log speed that compares between nodes; null with fewer than `MIN_NODES` nodes."""
    nodes = rows.filter("fellow").group_by(NODE, maintain_order=True).agg(
        *(pl.col(name).median() for name in ("clock", "mix", "talk", "activity", "slope", "work")),
        pl.col("usual_rest").first(),
        pl.col("load_bin").median().floor().alias("bin"),
        pl.col("activity").max().alias("most"),
    )  # fmt: skip
    usual_most = pl.col("most").quantile(0.9).over(CONTEST)
    nodes = nodes.with_columns(
        (pl.col("activity") - usual_most).alias("node_wait"),
        usual_most.alias("usual_most"),
        pl.len().over(CONTEST).alias("nodes"),
    )
    parts = nodes.partition_by(CONTEST, maintain_order=True)
    nodes = pl.concat([part.with_columns(_lift(part)) for part in parts]) if parts else nodes.with_columns(lift=0.0)
    ahead, behind = pl.col("work").shift(-1) - pl.col("work"), pl.col("work") - pl.col("work").shift(1)
    alone = pl.min_horizontal(ahead.over(CONTEST, order_by="work"), behind.over(CONTEST, order_by="work")) > OWN_WORK
    contended = alone & (pl.col("most") < pl.col("usual_most") - CONTENDED)
    many = pl.col("nodes") >= MIN_NODES
    return nodes.select(
        *NODE,
        "bin",
        "usual_most",
        pl.when(many).then(-pl.col("usual_rest") - pl.col("slope") * pl.col("lift")).alias("level"),
        pl.when(many).then(contended).alias("contended"),
    )


def _lift(nodes: pl.DataFrame) -> pl.Series:
    """By how much what each node does lifts its log clock, against the mean of these nodes.

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
        rest = np.abs(y - x @ slopes - np.median(y - x @ slopes))
        trust = np.minimum(1.0, HUBER * max(1.4826 * float(np.median(rest)), NODE_SD) / np.maximum(rest, 1e-9))
    return pl.Series("lift", x @ slopes)


def _ridge(x: Floats, y: Floats, trust: Floats, prior: Floats, weight: Floats) -> Floats:
    drawn = x.T * trust
    return np.asarray(np.linalg.solve(drawn @ x + np.diag(weight), drawn @ y + weight * prior))
