"""Ranked blocks: every value at every level of the topology, by the expected slowdown of a synchronous job there.

To rank by something else: change `_ranked`; to add a column: `telemetry.tables.BLOCKS`, then `_summaries`.
"""

from collections.abc import Sequence

import numpy as np
import orjson
import polars as pl

from analytics.frames import frame, schema
from analytics.slowdown import expected_slowdown
from telemetry.errors import BadInput
from telemetry.tables import BLOCKS, CLASSES, TIERS

NODE, FLEET = "node", "fleet"
"""Levels that are always there, whatever the topology says."""

HEALTHY: tuple[str, ...] = ("premium", "standard", "degraded")
"""Tiers whose GPUs get jobs; `quarantine` and `unknown` get none."""

Z90 = 1.6449
"""Half width of a 90 % interval in standard deviations."""

TYPICAL_SD = 0.05
"""Spread of a GPU nothing is known of: identical ones differ by 8 % on average, up to 22 % (Sinha et al., SC 2022)."""

MIN_TYPICAL_SD = 0.02
"""Least spread of such a GPU, however equal its measured peers are."""

MIN_PEERS = 8
"""Peers with evidence from which the spread of their group is taken; with fewer it is `TYPICAL_SD`."""

_DECIMALS = 6  # of expected_slowdown: differences below one millionth are rounding, and rank as ties


def rank_blocks(
    scores: pl.DataFrame,
    topology: pl.DataFrame,
    *,
    workload_class: str,
    level: str | None = None,
    gpus: int | None = None,
    as_of_ns: int | None = None,
) -> pl.DataFrame:
    """Rows of `blocks`: one per level and value, level by level from `node` outwards to `fleet`, best first.

    A GPU's slowdown is 1/speed of the class, log-normal with the score's interval; without evidence in the class it
    is typical (1.00) with the spread of its peer group. With `gpus`, a block is judged by the set that such a job
    would get: whole healthy nodes first, fastest first, then the fastest GPUs of the next; blocks with fewer healthy
    GPUs are left out. Without it, by all of its healthy GPUs. Ties in slowdown rank by full nodes, then by value.
    `as_of_ns` replaces the newest evidence of each block as its stamp. Counts are of GPUs that have a score.
    Raises BadInput for a class or level that does not exist, or a job of fewer than one GPU.
    """
    _check(workload_class, gpus)
    members = members_of(topology)
    if level is not None and level not in (NODE, FLEET) and not members.filter(pl.col("level") == level).height:
        there = [NODE, *members["level"].unique(maintain_order=True).to_list(), FLEET]
        raise BadInput("unknown_level", f"no level {level!r} in the topology; there are {', '.join(there)}")
    fleet = gpu_slowdowns(scores, workload_class=workload_class)
    if not fleet.height:
        return frame(BLOCKS)
    levels = [level] if level is not None else [NODE, *members["level"].unique(maintain_order=True).to_list(), FLEET]
    paces = None if gpus is None else _paces(fleet, gpus)
    parts = [_level(fleet, members, name, gpus, paces) for name in levels]
    blocks = pl.concat([part for part in parts if part.height] or [_empty()])
    stamp = pl.col("as_of_ns") if as_of_ns is None else pl.lit(as_of_ns)
    blocks = blocks.with_columns(as_of_ns=stamp, workload_class=pl.lit(workload_class))
    return blocks.select(pl.col(name).cast(type_) for name, type_ in schema(BLOCKS).items())


def rank_nodes(
    scores: pl.DataFrame,
    nodes: pl.DataFrame | None = None,
    *,
    workload_class: str = "compute",
    as_of_ns: int | None = None,
) -> pl.DataFrame:
    """One row per node, ranked for whole-node jobs of the class: what a scheduler wants to know about each node.

    Columns: node, rank, gpus, expected_gpus (null if nobody said), healthy_gpus, full (all of its GPUs are there and
    healthy), worst_tier, expected_slowdown (of the class), slowdown_<class> for every class, slowest_gpu, as_of_ns.
    Nodes of the inventory without any score come last: worst_tier `unknown`, no slowdown, as_of_ns null.
    """
    _check(workload_class, None)
    parsed = _parsed(scores["speeds"])
    table = _worst_tiers(scores)
    for name in CLASSES:
        rows = _level(_slowdowns(scores, parsed, name), members_of(frame_of_no_topology()), NODE, None, None)
        one = rows.select(pl.col("value").alias("node"), pl.col("expected_slowdown").alias(f"slowdown_{name}"))
        if name == workload_class:
            one = one.with_columns(rows.select("gpus", "healthy_gpus", "expected_slowdown", "slowest_gpu", "as_of_ns"))
        table = table.join(one, on="node", how="left")
    if as_of_ns is not None:
        table = table.with_columns(as_of_ns=pl.lit(as_of_ns, pl.Int64))
    known = frame_of_no_nodes() if nodes is None else nodes.select("node", "expected_gpus")
    table = table.join(known.unique("node"), on="node", how="full", coalesce=True).with_columns(
        pl.col("gpus", "healthy_gpus").fill_null(0), pl.col("worst_tier").fill_null("unknown")
    )
    whole = pl.max_horizontal("gpus", "expected_gpus")
    table = table.with_columns(full=(pl.col("healthy_gpus") >= whole) & (pl.col("gpus") > 0))
    table = table.sort(["expected_slowdown", "full", "node"], descending=[False, True, False], nulls_last=True)
    return table.with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32)).select(
        ["node", "rank", "gpus", "expected_gpus", "healthy_gpus", "full", "worst_tier", "expected_slowdown"]
        + [f"slowdown_{name}" for name in CLASSES]
        + ["slowest_gpu", "as_of_ns"]
    )


def gpu_slowdowns(scores: pl.DataFrame, *, workload_class: str) -> pl.DataFrame:
    """One row per scored GPU: gpu_uuid, node, as_of_ns, healthy, shared, and its log slowdown in the class as mean, sd.

    From the class's entry in `speeds`: mean = -ln speed, sd = (ln high - ln low) / (2 x 1.6449). A GPU without an
    entry is typical: mean 0, sd = the predictive spread of its peer group in that class (spread of the means and mean
    interval together, at least `MIN_TYPICAL_SD`), or `TYPICAL_SD` if fewer than `MIN_PEERS` peers have evidence.
    `shared`: only results of the whole node speak of it, so that the node's GPUs are one unknown and not several.
    Ordered by mean, sd, then uuid, so that nothing after it depends on the order or the names of the rows.
    """
    return _slowdowns(scores, _parsed(scores["speeds"]), workload_class)


def _slowdowns(scores: pl.DataFrame, parsed: Sequence[object], workload_class: str) -> pl.DataFrame:
    """`gpu_slowdowns` from the parsed JSON of `speeds`."""
    speed, low, high, shared = _class_speeds(parsed, workload_class)
    own = (pl.col("workload_class") == workload_class) if "workload_class" in scores.columns else pl.lit(value=False)
    known = scores.select("gpu_uuid", "node", "as_of_ns", "peer_group", "tier", own.alias("own"), *_primary(scores))
    known = known.with_columns(
        shared,
        *(
            pl.coalesce(series, pl.when("own").then(pl.col(primary)).otherwise(None)).alias(series.name)
            for series, primary in ((speed, "speed"), (low, "speed_low"), (high, "speed_high"))
        ),
    )
    usable = (pl.col("class_speed") > 0) & pl.col("class_speed").is_finite()
    width = pl.col("class_high").log() - pl.col("class_low").log()
    known = known.with_columns(
        mean=pl.when(usable).then(-pl.col("class_speed").log()),
        sd=pl.when(usable & (pl.col("class_low") > 0) & width.is_finite()).then(width.abs() / (2 * Z90)),
    )
    spread = (pl.col("mean").var() + (pl.col("sd") ** 2).mean()).sqrt()
    peers = pl.col("mean").is_not_null().sum()
    typical = pl.when(peers >= MIN_PEERS).then(pl.max_horizontal(spread, MIN_TYPICAL_SD)).otherwise(TYPICAL_SD)
    return (
        known.with_columns(typical=typical.over("peer_group"))
        .select(
            "gpu_uuid",
            "node",
            "as_of_ns",
            healthy=pl.col("tier").is_in(HEALTHY).fill_null(value=False),
            shared=pl.col("shared") & pl.col("mean").is_not_null() & pl.col("node").is_not_null(),
            mean=pl.col("mean").fill_null(0.0),
            sd=pl.coalesce("sd", "typical", pl.lit(TYPICAL_SD)),
        )
        .sort("mean", "sd", "gpu_uuid")
    )


def frame_of_no_topology() -> pl.DataFrame:
    """A topology of nothing: `node` and `fleet` are still there."""
    return pl.DataFrame(schema={"node": pl.String, "position": pl.UInt16, "level": pl.String, "value": pl.String})


def frame_of_no_nodes() -> pl.DataFrame:
    """An inventory of nothing."""
    return pl.DataFrame(schema={"node": pl.String, "expected_gpus": pl.UInt16})


def _check(workload_class: str, gpus: int | None) -> None:
    if workload_class not in CLASSES:
        raise BadInput("unknown_class", f"workload class {workload_class!r}; one of {', '.join(CLASSES)}")
    if gpus is not None and gpus < 1:
        raise BadInput("out_of_range", f"a job of {gpus} GPUs; at least 1")


def _empty() -> pl.DataFrame:
    return frame(BLOCKS).drop("workload_class")


def _primary(scores: pl.DataFrame) -> list[pl.Expr]:
    names = ("speed", "speed_low", "speed_high")
    return [pl.col(name) if name in scores.columns else pl.lit(None, pl.Float64).alias(name) for name in names]


def _parsed(speeds: pl.Series) -> Sequence[object]:
    """The JSON of each row; None where there is none or it is unreadable."""
    texts = [text or "null" for text in speeds.to_list()]
    try:
        rows: list[object] = orjson.loads("[" + ",".join(texts) + "]")  # one call for the fleet: a third of the time
    except orjson.JSONDecodeError:
        rows = []
    return rows if len(rows) == len(texts) else [_loaded(text) for text in texts]


def _loaded(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _class_speeds(parsed: Sequence[object], workload_class: str) -> tuple[pl.Series, pl.Series, pl.Series, pl.Series]:
    """speed, low and high of one class, null where a row has none, and whether they are those of its whole node."""
    entries = [row.get(workload_class) if isinstance(row, dict) else None for row in parsed]
    found = [entry if isinstance(entry, dict) else {} for entry in entries]
    speed, low, high = (
        pl.Series(f"class_{name}", [entry.get(name) for entry in found], dtype=pl.Float64, strict=False)
        for name in ("speed", "low", "high")
    )
    shared = pl.Series("shared", [entry.get("source") == "node" for entry in found], dtype=pl.Boolean)
    return speed, low, high, shared


def members_of(topology: pl.DataFrame) -> pl.DataFrame:
    """node, level, value, nearest level first; a node once a level; `node` and `fleet` are ours."""
    levels = topology.group_by("level").agg(pl.col("position").mean()).sort("position", "level")
    order = pl.DataFrame(
        {"level": levels["level"], "order": range(levels.height)}, schema_overrides={"order": pl.Int64}
    )
    return (
        topology.filter(~pl.col("level").is_in([NODE, FLEET]))
        .unique(["node", "level"], keep="first", maintain_order=True)
        .join(order, on="level")
        .sort("order", maintain_order=True)
        .select("node", "level", "value")
    )


def _level(
    fleet: pl.DataFrame, members: pl.DataFrame, level: str, gpus: int | None, paces: pl.DataFrame | None
) -> pl.DataFrame:
    """The ranked rows of one level."""
    if level == FLEET:
        inside = fleet.with_columns(value=pl.lit(FLEET))
    elif level == NODE:
        inside = fleet.filter(pl.col("node").is_not_null()).with_columns(value=pl.col("node"))
    else:
        place = members.filter(pl.col("level") == level).select("node", "value")
        inside = fleet.join(place, on="node", how="inner", maintain_order="left")
    blocks = _counts(inside)
    healthy = inside.filter("healthy")
    if gpus is None or paces is None:
        blocks = blocks.join(_expected(healthy, "value"), on="value", how="left")
    else:
        blocks = blocks.join(_expected(_best_set(healthy, paces, gpus), "value"), on="value", how="inner")
    return _ranked(blocks.with_columns(level=pl.lit(level)))


def _counts(inside: pl.DataFrame) -> pl.DataFrame:
    """value, gpus, healthy_gpus, nodes, full_nodes, as_of_ns of a frame of GPUs with their block's value."""
    per_node = inside.filter(pl.col("node").is_not_null()).group_by("value", "node").agg(full=pl.col("healthy").all())
    nodes = per_node.group_by("value").agg(nodes=pl.len(), full_nodes=pl.col("full").sum())
    return (
        inside.group_by("value")
        .agg(gpus=pl.len(), healthy_gpus=pl.col("healthy").sum(), as_of_ns=pl.col("as_of_ns").max())
        .join(nodes, on="value", how="left")
        .with_columns(pl.col("nodes", "full_nodes").fill_null(0))
    )


def _expected(chosen: pl.DataFrame, by: str) -> pl.DataFrame:
    """expected_slowdown and slowest_gpu of each group of GPUs, which come ordered by mean and sd."""
    first = pl.int_range(pl.len()).over(by, "node") == 0  # GPUs that share their node's result are one unknown
    runs = chosen.filter(~pl.col("shared") | first).sort(by, maintain_order=True)
    groups = runs.group_by(by, maintain_order=True).agg(size=pl.len(), slowest_gpu=pl.col("gpu_uuid").last())
    starts = (groups["size"].cum_sum() - groups["size"]).cast(pl.Int64).to_numpy()
    value = expected_slowdown(runs["mean"].to_numpy(), runs["sd"].to_numpy(), starts.astype(np.intp))
    return groups.drop("size").with_columns(expected_slowdown=pl.Series(value, dtype=pl.Float64).round(_DECIMALS))


def _paces(fleet: pl.DataFrame, gpus: int) -> pl.DataFrame:
    """node, full, pace: the expected slowdown of the (up to `gpus`) fastest healthy GPUs of each node together."""
    fastest = fleet.filter("healthy").filter(pl.int_range(pl.len()).over("node") < gpus)
    pace = _expected(fastest, "node").select("node", pace="expected_slowdown")
    return pace.join(fleet.group_by("node").agg(full=pl.col("healthy").all()), on="node", how="left", nulls_equal=True)


def _best_set(healthy: pl.DataFrame, paces: pl.DataFrame, gpus: int) -> pl.DataFrame:
    """The GPUs that a job of `gpus` gets in each block that can hold it.

    Whole healthy nodes come before nodes with a gap, then the node with the best pace; of the last node only as many
    as are still needed, its fastest.
    """
    return (
        healthy.filter(pl.len().over("value") >= gpus)
        .join(paces, on="node", how="left", nulls_equal=True, maintain_order="left")
        .sort(
            ["value", "full", "pace", "node"],
            descending=[False, True, False, False],
            nulls_last=True,
            maintain_order=True,
        )
        .filter(pl.int_range(pl.len()).over("value") < gpus)
        .sort("mean", "sd", "gpu_uuid")
    )


def _ranked(blocks: pl.DataFrame) -> pl.DataFrame:
    """One level's rows, best first; a block without a healthy GPU comes last."""
    best = blocks.sort(
        ["expected_slowdown", "full_nodes", "value"], descending=[False, True, False], nulls_last=True
    ).with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32))
    return best.select(name for name in BLOCKS.names if name != "workload_class")


def _worst_tiers(scores: pl.DataFrame) -> pl.DataFrame:
    """node, worst_tier."""
    rank = {tier: position for position, tier in enumerate(TIERS)}
    return (
        scores.filter(pl.col("node").is_not_null())
        .group_by("node")
        .agg(worst=pl.col("tier").replace_strict(rank, default=len(TIERS) - 1, return_dtype=pl.Int64).max())
        .select("node", worst_tier=pl.col("worst").replace_strict(dict(enumerate(TIERS)), return_dtype=pl.String))
    )
