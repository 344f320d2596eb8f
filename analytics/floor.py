"""The floor: every node with its healthy GPUs, ready to be asked where a job should go; made once for a fleet's state.

To ask something new of it: a function in a module of its own; here is only what all questions share.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import log_ndtr

from analytics.blocks import frame_of_no_nodes, gpu_slowdowns
from analytics.locality import Indices, Level, levels_of
from analytics.slowdown import MIN_SD
from telemetry.tables import TIERS

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Flags = NDArray[np.bool_]

POINTS = 112
"""Slowdowns at which every GPU's distribution is known: sets are compared by them, and the answer is then computed."""

_REACH, _STEP = 9.0, 1 / 512  # log CDF of a normal by linear interpolation: wrong by 5e-7 at most
_LOG_CDF = log_ndtr(np.arange(-_REACH, _REACH + 2 * _STEP, _STEP)).astype(np.float32)
_SLOPE = np.diff(_LOG_CDF)
_CHUNK = 2_048  # rows worked on at once: what fits a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """Nodes or GPUs that have a block at one level: `place` their indices, group by group (`group`, ascending) and best
    first; those of a node without a block, or without a key to rank by, are left out."""

    place: Indices
    group: Indices

    def of(self, group: int) -> Indices:
        """The places of one group, best first."""
        low, high = np.searchsorted(self.group, (group, group + 1))
        return self.place[low:high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Nodes by name, their healthy GPUs best first, and the distribution of each one's slowdown. Read-only.

    Per GPU, node by node: `uuid`, `node` (index), `mean` and `sd` of its log slowdown, `shared` (only its node's
    results speak of it), `tier` (index in TIERS), `below`: log P(this and the better GPUs of its node all stay below
    each of `points`), and `pace`: the slowdown of these together that follows from it. Per node: `first` its first GPU,
    `healthy` how many it has, `size` how many it should have, `kind` its peer group (index in `kinds`), `whole` the row
    of `below` of all its GPUs, `carrier` the first of its GPUs that are `shared`, which carries their result, or -1.
    `row_of` and `node_of` find a GPU and a node by name. Per level: `group` has per node a number that nodes of the
    same block and peer group share, -1 without a block; `ranked` the nodes of each group, best pace of all their
    healthy GPUs first; `scattered` the GPUs of each group.
    """

    workload_class: str
    levels: tuple[Level, ...]
    nodes: tuple[str, ...]
    kinds: tuple[str | None, ...]
    uuid: NDArray[np.object_]
    node: Indices
    mean: Floats
    sd: Floats
    shared: Flags
    tier: Indices
    below: Singles
    points: Floats
    first: Indices
    healthy: Indices
    size: Indices
    kind: Indices
    whole: Singles
    carrier: Indices
    pace: Floats
    group: tuple[Indices, ...]
    ranked: tuple[Ranked, ...]
    scattered: tuple[Ranked, ...]
    row_of: Mapping[str, int]
    node_of: Mapping[str, int]


def floor_of(
    scores: pl.DataFrame,
    topology: pl.DataFrame,
    nodes: pl.DataFrame | None = None,
    *,
    workload_class: str,
) -> Floor:
    """The floor of these rows of `scores`, `topology` and `nodes` for one workload class.

    A node's size is the larger of the GPUs known there and its `expected_gpus`. A GPU without a node has no place here.
    A node is of the peer group of most of its GPUs. Raises BadInput for an unknown class.
    """
    slow = gpu_slowdowns(scores, workload_class=workload_class).filter(pl.col("node").is_not_null())
    known = slow.join(scores.select("gpu_uuid", "tier", "peer_group"), on="gpu_uuid", maintain_order="left")
    promised = (frame_of_no_nodes() if nodes is None else nodes).unique("node").select("node", "expected_gpus")
    per_node = (
        known.group_by("node")
        .agg(pl.len().alias("known"), healthy=pl.col("healthy").sum(), kind=pl.col("peer_group").mode().min())
        .join(promised, on="node", how="left")
        .with_columns(size=pl.max_horizontal("known", "expected_gpus"))
        .sort("node")
    )
    names = per_node["node"].to_list()
    good = known.filter("healthy").sort("node", maintain_order=True)
    index = pl.DataFrame({"node": names, "index": range(len(names))}, schema={"node": pl.String, "index": pl.Int64})
    node = good.join(index, on="node", how="left", maintain_order="left")["index"].to_numpy()
    kinds = per_node["kind"].unique().sort(nulls_last=True).to_list()
    healthy = per_node["healthy"].cast(pl.Int64).to_numpy()
    mean, sd = good["mean"].to_numpy(), np.maximum(good["sd"].to_numpy(), MIN_SD)
    points, shared = _points(mean, sd), good["shared"].to_numpy()
    first = np.cumsum(healthy) - healthy
    below = _below(mean, sd, shared, first, healthy, points)
    whole = np.zeros((len(names), len(points)), dtype=np.float32)
    whole[healthy > 0] = below[(first + healthy - 1)[healthy > 0]]
    pace, levels = expected(below, points), levels_of(names, topology)
    together = np.full(len(names), np.inf)
    together[healthy > 0] = pace[(first + healthy - 1)[healthy > 0]]
    kind = np.array([kinds.index(one) for one in per_node["kind"].to_list()], dtype=np.int64)
    group = [np.where(level.block < 0, -1, level.block * len(kinds) + kind) for level in levels]
    tiers = {tier: position for position, tier in enumerate(TIERS)}
    return Floor(
        workload_class=workload_class,
        levels=levels,
        nodes=tuple(names),
        kinds=tuple(kinds),
        uuid=np.array(good["gpu_uuid"].to_list(), dtype=np.object_),
        node=node,
        mean=mean,
        sd=sd,
        shared=shared,
        tier=good["tier"].replace_strict(tiers, return_dtype=pl.Int64).to_numpy(),
        below=below,
        points=points,
        first=first,
        healthy=healthy,
        size=per_node["size"].cast(pl.Int64).to_numpy(),
        kind=kind,
        whole=whole,
        carrier=_carriers(node, shared, len(names)),
        pace=pace,
        group=tuple(group),
        ranked=tuple(_ranked(one, together, np.arange(len(names))) for one in group),
        scattered=tuple(_ranked(one[node], mean, sd) for one in group),
        row_of={uuid: row for row, uuid in enumerate(good["gpu_uuid"].to_list())},
        node_of={name: row for row, name in enumerate(names)},
    )


def log_below(mean: Floats, sd: Floats, points: Floats) -> Singles:
    """log P(slowdown < point) of each GPU (row) at each point (column); -43 stands for less than that."""
    rows = np.empty((len(mean), len(points)), dtype=np.float32)
    at = np.log(points)
    for start in range(0, len(mean), _CHUNK):
        part = slice(start, start + _CHUNK)
        where = np.clip(((at - mean[part, None]) / sd[part, None] + _REACH) / _STEP, 0, len(_SLOPE) - 1e-3)
        index = where.astype(np.int32)
        rows[part] = _LOG_CDF[index] + (where - index).astype(np.float32) * _SLOPE[index]
    return rows


def together(floor: Floor, gpu: Indices) -> Singles:
    """The row of `below` of these GPUs together, ascending and of any nodes; a result that is shared counts once.

    GPUs in a row on one node are worth `below` at their end less before their beginning.
    """
    node = floor.node[gpu]
    begins = np.append(True, (np.diff(gpu) != 1) | (np.diff(node) != 0))
    ends = np.append(begins[1:], True)
    before = gpu[begins & (gpu != floor.first[node])] - 1
    row = floor.below[gpu[ends]].sum(axis=0, dtype=np.float64) - floor.below[before].sum(axis=0, dtype=np.float64)
    missed = np.setdiff1d(floor.carrier[np.unique(node[floor.shared[gpu]])], gpu)
    return np.asarray(row + carried(floor, missed).sum(axis=0), dtype=np.float32)


def carried(floor: Floor, carrier: Indices) -> Singles:
    """What each carrier adds to the rows of its node."""
    later = carrier != floor.first[floor.node[carrier]]
    rows = floor.below[carrier]
    rows[later] -= floor.below[carrier[later] - 1]
    return np.asarray(rows)


def expected(rows: Singles, points: Floats) -> Floats:
    """E[slowdown] of each row of log CDFs, by trapezia between the points: never lower for a set with one GPU more."""
    if len(points) < 2:
        return np.ones(len(rows))
    ends = np.empty(len(points))
    ends[1:-1] = (points[2:] - points[:-2]) / 2
    ends[0], ends[-1] = (points[1] - points[0]) / 2, (points[-1] - points[-2]) / 2
    weights, total = ends.astype(np.float32), np.empty(len(rows))
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        total[part] = points[-1] - np.exp(rows[part]) @ weights
    return total


def _points(mean: Floats, sd: Floats) -> Floats:
    """Slowdowns where the fleet's GPUs may be, dense where they are and denser towards the slow end."""
    if not len(mean):
        return np.empty(0)
    spread = (mean[:, None] + sd[:, None] * np.array([-3.0, -1.5, 0.0, 1.0, 2.0, 3.0, 4.0])).ravel()
    ranks = 1 - (1 - np.linspace(0, 1, POINTS - 33)) ** 2.5
    even = np.linspace((mean - 6 * sd).min(), (mean + 7 * sd).max(), 33)
    points: Floats = np.unique(np.exp(np.concatenate([np.quantile(spread, ranks), even])))
    return points


def _below(mean: Floats, sd: Floats, shared: Flags, first: Indices, healthy: Indices, points: Floats) -> Singles:
    """`Floor.below`: sums within each node; GPUs that share their node's result count once."""
    own = log_below(mean, sd, points)
    position = np.arange(len(mean)) - np.repeat(first, healthy)
    again = shared & (_running(shared, first, healthy) > 1)
    own[again] = 0
    for step in range(1, int(healthy.max(initial=0))):
        rows = np.flatnonzero(position == step)
        own[rows] += own[rows - 1]
    return own


def _carriers(node: Indices, shared: Flags, nodes: int) -> Indices:
    """The first shared GPU of each node, or -1."""
    found = np.full(nodes, -1, dtype=np.int64)
    last_first = np.flatnonzero(shared)[::-1]
    found[node[last_first]] = last_first
    return found


def _running(flags: Flags, first: Indices, healthy: Indices) -> Indices:
    """How many flags are set in the node up to and including each GPU."""
    total = np.cumsum(flags)
    before = np.concatenate([[0], total])[first]
    return np.asarray(total - np.repeat(before, healthy), dtype=np.int64)


def _ranked(group: Indices, key: Floats, then: Floats | Indices) -> Ranked:
    """Group by group, by key; what has none (infinite) is left out."""
    order = np.lexsort((np.arange(len(group)), then, key, group))
    order = np.asarray(order[(group[order] >= 0) & np.isfinite(key[order])], dtype=np.int64)
    return Ranked(place=order, group=group[order])
