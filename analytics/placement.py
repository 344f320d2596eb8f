"""Placement: where a job should go, and which node should stand in for one that failed; best choices first.

To weigh choices otherwise: `_order`; to offer other sets of GPUs: `analytics/candidates.py`.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl

from analytics.candidates import Candidates, candidates_of, distinct, gpus_of
from analytics.floor import Flags, Floats, Floor, log_below
from analytics.locality import Indices, factors
from analytics.slowdown import expected_slowdown
from analytics.vacancy import Vacancy, vacancy_of
from telemetry.errors import BadInput

NODE_GPUS = 8
"""GPUs of a full node, unless told otherwise."""

MOST_GPUS = 1_000_000
"""Largest job that is looked for."""

MOST_CHOICES = 100
"""Most choices of one answer."""

_NODES = pl.List(pl.Struct({"node": pl.String(), "gpus": pl.List(pl.String())}))
PLACEMENTS: Mapping[str, pl.DataType] = {
    "rank": pl.UInt32(),
    "level": pl.String(),
    "value": pl.String(),
    "expected_slowdown": pl.Float64(),
    "locality_penalty": pl.Float64(),
    "cost": pl.Float64(),
    "spare_gpus": pl.UInt32(),
    "slowest_gpu": pl.String(),
    "nodes": _NODES,
}
"""Columns of a placement; `cost` = expected_slowdown x locality_penalty."""

REPLACEMENTS: Mapping[str, pl.DataType] = {
    "rank": pl.UInt32(),
    "node": pl.String(),
    "level": pl.String(),
    "value": pl.String(),
    "expected_slowdown": pl.Float64(),
    "gpus": pl.List(pl.String()),
}
"""Columns of a replacement."""

_DECIMALS = 6  # of costs: differences below one millionth are rounding, and rank as ties
_EXACT_GPUS = 4_096  # GPUs of the sets that one answer computes the slowdown of: of large sets fewer are offered


def placements(
    vacancy: Vacancy,
    *,
    gpus: int | None = None,
    nodes: int | None = None,
    node_gpus: int = NODE_GPUS,
    within: str | None = None,
    tolerance: float = 0.0,
    penalties: Mapping[str, float] | None = None,
    split: bool = False,
    limit: int = 5,
) -> pl.DataFrame:
    """Rows of PLACEMENTS: at most `limit` choices for a job of `gpus` GPUs, or of `nodes` full nodes of `node_gpus`.

    Only of what is vacant (`analytics.vacancy`). Each choice lies in one block, at `level`, at the most `within`. It
    costs the expected slowdown of a synchronous job there (`analytics.slowdown`: the slowest of its GPUs, all with
    their intervals) times the factor of that level (`analytics.locality`). Ordered by cost, then nearer level, then
    fewer `spare_gpus`: PAL's walk over locality x variability (arXiv 2408.11919) with any number of levels and without
    its bins. A job goes onto whole free nodes and at most one part of a node; only with `split` onto any GPUs of a
    block. All GPUs of a choice are of one peer group.

    With a `tolerance`, choices that cost at most (1 + tolerance) times the best come first: the nearest level first,
    then fewest spare GPUs, then the slowest, which keeps the best GPUs and whole nodes for those who need them. One
    block is listed once. Raises BadInput for arguments that make no sense; no choice at all is an empty frame.
    """
    size = _size(gpus, nodes, node_gpus)
    _check_range("tolerance", tolerance, 0, 10)
    _check_range("limit", limit, 1, MOST_CHOICES)
    if split and nodes is not None:
        raise BadInput("out_of_range", "split asks for any GPUs, nodes for whole ones: give one of them")
    floor = vacancy.floor
    names = [level.name for level in floor.levels]
    charge = np.array(factors(names, penalties))
    whole = node_gpus if nodes is not None else None
    found = candidates_of(vacancy, gpus=size, levels=_levels(names, within), node_gpus=whole, split=split)
    if not len(found.level):
        return pl.DataFrame(schema=dict(PLACEMENTS))
    cost = np.round(found.slowdown * charge[found.level], _DECIMALS)
    order = _order(found, cost, np.arange(len(cost)), tolerance)
    chosen, sets = _sets(found, order, int(np.argmin(cost)), vacancy, whole, limit=limit)
    slowdown = _exactly(floor, sets)
    cost = np.round(slowdown * charge[found.level[chosen]], _DECIMALS)
    shown = _once(found, chosen, _order(found, cost, chosen, tolerance))[:limit]
    if tolerance > 0:
        most = float(cost.min() * (1 + tolerance))
        near = found.level[chosen] == 0
        small = [row for row in shown if near[row] and cost[row] <= most and found.spare[chosen[row]] > 0]
        for row, (gpu, value) in zip(small, _slower(vacancy, [sets[row] for row in small], most), strict=True):
            sets[row], slowdown[row] = gpu, value
    return _frame(floor, found, [(int(chosen[row]), sets[row], float(slowdown[row])) for row in shown], charge)


def replacements(
    floor: Floor,
    *,
    node: str,
    exclude_nodes: Collection[str] = (),
    exclude_gpus: Collection[str] = (),
    within: str | None = None,
    limit: int = 5,
) -> pl.DataFrame:
    """Rows of REPLACEMENTS: full healthy nodes of the same peer group to take over from `node`, nearest first.

    A full node has all of its GPUs, healthy and free, and no fewer than `node` should have. `level` is the nearest one
    that has both in one block, `value` that block. Equally near ones by expected slowdown of a job on the whole node.
    Raises BadInput for a node that is not there.
    """
    _check_range("limit", limit, 1, MOST_CHOICES)
    place = floor.node_of.get(node)
    if place is None:
        raise BadInput("unknown_node", f"no GPU of node {node[:80]!r} is known here")
    names = [level.name for level in floor.levels]
    levels = _levels(names, within)
    vacancy = vacancy_of(floor, exclude_nodes=[*exclude_nodes, node], exclude_gpus=exclude_gpus)
    nearest = np.full(len(floor.nodes), levels)
    for level in range(levels - 1, 0, -1):
        block = floor.levels[level].block
        nearest[(block == block[place]) & (block >= 0)] = level
    fits = vacancy.whole & (floor.kind == floor.kind[place]) & (floor.size >= floor.size[place]) & (nearest < levels)
    able = np.flatnonzero(fits)
    pace = vacancy.pace(able, vacancy.count[able])
    able = able[np.lexsort((able, pace, nearest[able]))][:limit]
    sets = [vacancy.best(able[i : i + 1], vacancy.count[able[i : i + 1]]) for i in range(len(able))]
    slowdown = np.round(_exactly(floor, sets), _DECIMALS)
    order = np.lexsort((able, slowdown, nearest[able]))
    rows = [
        {
            "rank": rank,
            "node": floor.nodes[able[row]],
            "level": names[nearest[able[row]]],
            "value": floor.levels[nearest[able[row]]].values[floor.levels[nearest[able[row]]].block[able[row]]],
            "expected_slowdown": float(slowdown[row]),
            "gpus": floor.uuid[sets[row]].tolist(),
        }
        for rank, row in enumerate(order, 1)
    ]
    return pl.DataFrame(rows, schema=dict(REPLACEMENTS))


def _size(gpus: int | None, nodes: int | None, node_gpus: int) -> int:
    if (gpus is None) == (nodes is None):
        raise BadInput("out_of_range", "a job is of so many gpus, or of so many full nodes: give one of them")
    _check_range("node_gpus", node_gpus, 1, 1_024)
    if nodes is not None:
        _check_range("nodes", nodes, 1, MOST_GPUS // node_gpus)
        return nodes * node_gpus
    _check_range("gpus", gpus or 0, 1, MOST_GPUS)
    return gpus or 0


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise BadInput("out_of_range", f"{name} {value}; from {low} to {high}")


def _levels(names: Sequence[str], within: str | None) -> int:
    """How many of the levels may be used."""
    if within is None:
        return len(names)
    if within not in names:
        raise BadInput("unknown_level", f"no level {within!r} in the topology; there are {', '.join(names)}")
    return names.index(within) + 1


def _order(found: Candidates, cost: Floats, rows: Indices, tolerance: float) -> Indices:
    """Positions in `rows` (candidates with these costs), best choice first."""
    level, spare, group = found.level[rows], found.spare[rows], found.group[rows]
    if tolerance <= 0:
        return np.lexsort((group, spare, level, cost))
    close: Flags = cost <= cost.min() * (1 + tolerance)
    return np.lexsort(
        (
            group,
            spare,
            level,
            np.where(close, -cost, cost),
            np.where(close, spare, 0),
            np.where(close, level, 0),
            ~close,
        )
    )


def _sets(
    found: Candidates, order: Indices, best: int, vacancy: Vacancy, whole: int | None, *, limit: int
) -> tuple[Indices, list[Indices]]:
    """The first candidates with their GPUs, a block and a set once; and, if it is not among them, the `best` one."""
    chosen: list[int] = []
    sets: list[Indices] = []
    blocks: set[tuple[int, int]] = set()
    known: set[bytes] = set()
    for one in order.tolist():
        block = (int(found.level[one]), int(found.group[one]))
        if block in blocks:
            continue
        blocks.add(block)
        gpus = gpus_of(found, one, vacancy, whole)
        if gpus.tobytes() in known:
            continue
        known.add(gpus.tobytes())
        chosen.append(one)
        sets.append(gpus)
        if len(sets) > limit or len(gpus) * len(sets) > _EXACT_GPUS:
            break
    if best not in chosen:
        chosen.append(best)
        sets.append(gpus_of(found, best, vacancy, whole))
    return np.array(chosen, dtype=np.int64), sets


def _once(found: Candidates, chosen: Indices, order: Indices) -> list[int]:
    """The positions without those whose block came before."""
    seen: dict[tuple[int, int], int] = {}
    for row in order.tolist():
        seen.setdefault((int(found.level[chosen[row]]), int(found.group[chosen[row]])), row)
    return list(seen.values())


def _exactly(floor: Floor, sets: Sequence[Indices]) -> Floats:
    """The expected slowdown of each set, as `analytics.blocks` would say it."""
    rows = [_that_matter(floor, distinct(floor, one)) for one in sets]
    if not rows:
        return np.empty(0)
    sizes = np.array([len(one) for one in rows])
    gpu = np.concatenate(rows)
    return expected_slowdown(floor.mean[gpu], floor.sd[gpu], (np.cumsum(sizes) - sizes).astype(np.intp))


def _that_matter(floor: Floor, gpu: Indices, *, few: int = 256, surely: float = 7.0) -> Indices:
    """Of a large set the GPUs that could be its slowest: the others stay below whatever the slowest will be.

    Where log P(the slowest is below a point) is still under -20, a GPU that lies `surely` standard deviations below
    that point changes nothing.
    """
    if len(gpu) <= few:
        return gpu
    mean, sd = floor.mean[gpu], floor.sd[gpu]
    low, high = 0, len(floor.points) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if log_below(mean, sd, floor.points[middle : middle + 1]).sum() < -20:
            low = middle
        else:
            high = middle
    keep = (np.log(floor.points[low]) - mean) / sd < surely
    return gpu[keep] if keep.any() else gpu


def _slower(vacancy: Vacancy, chosen: Sequence[Indices], most: float) -> list[tuple[Indices, float]]:
    """Instead of each set, inside a node, the slowest neighbours in speed there that still cost no more than `most`."""
    floor = vacancy.floor
    sets: list[Indices] = []
    owner: list[int] = []
    for place, gpu in enumerate(chosen):
        node = int(floor.node[gpu[0]])
        free = vacancy.free[vacancy.first[node] : vacancy.first[node] + vacancy.count[node]]
        sets += [free[start : start + len(gpu)] for start in range(len(free) - len(gpu) + 1)]
        owner += [place] * (len(sets) - len(owner))
    values = _exactly(floor, sets)
    found: dict[int, tuple[Indices, float]] = {}
    for place, gpu, value in zip(owner, sets, values.tolist(), strict=True):
        if value <= most or place not in found:  # the first of them is the set itself
            found[place] = gpu, value
    return list(found.values())


def _frame(
    floor: Floor, found: Candidates, choices: Sequence[tuple[int, Indices, float]], charge: Floats
) -> pl.DataFrame:
    rows = []
    for rank, (one, gpu, slowdown) in enumerate(choices, 1):
        level = floor.levels[found.level[one]]
        slowest = gpu[np.lexsort((gpu, floor.sd[gpu], floor.mean[gpu]))[-1]]
        penalty = float(charge[found.level[one]])
        rows.append(
            {
                "rank": rank,
                "level": level.name,
                "value": level.values[int(found.group[one]) // len(floor.kinds)],
                "expected_slowdown": round(slowdown, _DECIMALS),
                "locality_penalty": penalty,
                "cost": round(slowdown * penalty, _DECIMALS),
                "spare_gpus": int(found.spare[one]),
                "slowest_gpu": floor.uuid[slowest],
            }
        )
    told = pl.DataFrame(rows, schema={name: type_ for name, type_ in PLACEMENTS.items() if name != "nodes"})
    return told.with_columns(_nodes(floor, [gpu for _, gpu, _ in choices])).select(*PLACEMENTS)


def _nodes(floor: Floor, sets: Sequence[Indices]) -> pl.Series:
    """The nodes of each set with its GPUs there, column by column: sets of thousands are no rows of objects."""
    every = np.concatenate(sets)
    rows = pl.DataFrame(
        {
            "choice": np.repeat(np.arange(len(sets)), [len(one) for one in sets]),
            "at": floor.node[every],
            "gpus": pl.Series(floor.uuid[every].tolist(), dtype=pl.String),
        }
    )
    split = rows.group_by("choice", "at", maintain_order=True).agg("gpus")
    names = pl.Series("node", [floor.nodes[at] for at in split["at"].to_list()], dtype=pl.String)
    listed = split.select("choice", pl.struct(names, "gpus").alias("nodes"))
    return listed.group_by("choice", maintain_order=True).agg("nodes")["nodes"]
