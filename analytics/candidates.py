"""Candidates: in every node, and in every block of every level, the set of GPUs that a job would get there.

To offer another kind of set: one function here that returns `Candidates`, one line in `candidates_of`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analytics.floor import Flags, Floats, Floor, Ranked, Singles, expected, together
from analytics.locality import Indices
from analytics.vacancy import Vacancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Sets that a job might get, as columns: no set's GPUs are written down before it is chosen (`gpus_of`).

    `level` index, `group` (block and peer group), `slowdown` expected by the floor's points, `spare` free GPUs left on
    the nodes it touches. A set is the first `nodes` whole free nodes of its group by pace, then the `rest` best GPUs of
    the node `last` (-1: none). With `nodes` -1 it is the `rest` best GPUs of the group, wherever they are.
    """

    level: Indices
    group: Indices
    slowdown: Floats
    spare: Indices
    nodes: Indices
    last: Indices
    rest: Indices


def candidates_of(
    vacancy: Vacancy, *, gpus: int, levels: int, node_gpus: int | None = None, split: bool = False
) -> Candidates:
    """Every set of `gpus` GPUs within the first `levels` levels.

    In a node: its best free GPUs. Beyond it: whole free nodes, best pace first, and what is then still missing from one
    more node. With `node_gpus` only whole free nodes of that size count. With `split` also the best GPUs of each block,
    a few here and a few there, judged by the slowest of them.
    """
    parts = [_in_node(vacancy, gpus, node_gpus)]
    for level in range(1, levels):
        parts.append(_of_nodes(vacancy, level, gpus, node_gpus))
        if split:
            parts.append(_scattered(vacancy, level, gpus))
    return _joined(parts)


def gpus_of(candidates: Candidates, chosen: int, vacancy: Vacancy, node_gpus: int | None = None) -> Indices:
    """The GPUs of one set, as ascending indices into the floor."""
    floor, level, group = vacancy.floor, int(candidates.level[chosen]), int(candidates.group[chosen])
    count, last, rest = (int(column[chosen]) for column in (candidates.nodes, candidates.last, candidates.rest))
    if count < 0:
        ranked = floor.scattered[level].of(group)
        return np.sort(ranked[vacancy.open[ranked]][:rest])
    nodes = floor.ranked[level].of(group)
    nodes = nodes[_whole(vacancy, nodes, node_gpus)][:count]
    sizes = vacancy.count[nodes]
    if last >= 0:
        nodes, sizes = np.append(nodes, last), np.append(sizes, rest)
    return np.sort(vacancy.best(nodes, sizes))


def _in_node(vacancy: Vacancy, gpus: int, node_gpus: int | None) -> Candidates:
    """One set in each node that has enough."""
    enough = vacancy.count >= gpus
    if node_gpus is not None:
        enough = vacancy.whole & (vacancy.count == node_gpus) if gpus == node_gpus else np.zeros_like(enough)
    node = np.flatnonzero(enough)
    size = np.full(len(node), gpus)
    return Candidates(
        level=np.zeros_like(node),
        group=vacancy.floor.group[0][node],
        slowdown=vacancy.pace(node, size),
        spare=vacancy.count[node] - gpus,
        nodes=np.zeros_like(node),
        last=node,
        rest=size,
    )


def _whole(vacancy: Vacancy, nodes: Indices, node_gpus: int | None) -> Flags:
    """Which of the nodes are whole and free, and of this size."""
    fits = vacancy.whole[nodes]
    return fits if node_gpus is None else fits & (vacancy.count[nodes] == node_gpus)


def _of_nodes(vacancy: Vacancy, level: int, gpus: int, node_gpus: int | None) -> Candidates:
    """Sets of several nodes: whole ones while they fit, then the rest in each node of the group that could give it."""
    floor, every = vacancy.floor, vacancy.floor.ranked[level]
    room = np.bincount(every.group, weights=vacancy.count[every.place]) >= gpus
    roomy = np.flatnonzero(room[every.group])  # a group that holds too few is not looked at
    whole = roomy[_whole(vacancy, every.place[roomy], node_gpus)]
    ranked, group = every.place[whole], every.group[whole]
    starts = _starts(group)
    if not len(starts):
        return _none()
    size = vacancy.count[ranked]
    upto = np.cumsum(size)
    block = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(ranked))))
    taken = upto - (upto - size)[starts][block] <= gpus
    nodes = np.add.reduceat(taken, starts)
    rest = gpus - np.add.reduceat(np.where(taken, size, 0), starts)
    base = np.zeros((len(starts), len(floor.points)), dtype=np.float32)
    used = ranked[taken]
    if len(used):
        first = np.flatnonzero(nodes > 0)
        base[first] = np.add.reduceat(floor.whole[used], _starts(block[taken]), axis=0)
    names = group[starts]
    done = np.flatnonzero((rest == 0) & (nodes > 1))
    exact = Candidates(
        level=np.full(len(done), level),
        group=names[done],
        slowdown=expected(base[done], floor.points),
        spare=np.zeros(len(done), dtype=np.int64),
        nodes=nodes[done],
        last=np.full(len(done), -1),
        rest=np.zeros(len(done), dtype=np.int64),
    )
    if node_gpus is not None:
        return exact
    others = Ranked(place=every.place[roomy], group=every.group[roomy])
    return _joined([exact, _with_rest(vacancy, level, others, names, base, nodes, rest, used)])


def _with_rest(
    vacancy: Vacancy,
    level: int,
    every: Ranked,
    names: Indices,
    base: Singles,
    nodes: Indices,
    rest: Indices,
    used: Indices,
    *,
    tried: int = 3,
) -> Candidates:
    """The same sets with what is still missing from one more node: the next whole one, the `tried` best and fullest."""
    floor = vacancy.floor
    unfinished = (rest > 0) & (nodes > 0)
    free = vacancy.count > 0
    free[used] = False
    other = free[every.place]
    ranked, group = every.place[other], every.group[other]
    block = np.minimum(np.searchsorted(names, group), len(names) - 1)
    fits = (names[block] == group) & unfinished[block] & (vacancy.count[ranked] >= rest[block])
    node, block = ranked[fits], block[fits]
    if not len(node):
        return _none()
    # A job with one GPU more must not be cheaper: the next whole node, which the larger job gets, is always among them.
    starts = _starts(block)
    first = _lowest(vacancy.pace(node, rest[block]), starts, tried)
    first |= _lowest(vacancy.count[node], starts, tried)
    first |= _lowest(np.where(vacancy.whole[node], 0, 1), starts, 1)
    node, block = node[first], block[first]
    rows = vacancy.rows(node, rest[block])
    rows += base[block]
    return Candidates(
        level=np.full(len(node), level),
        group=names[block],
        slowdown=expected(rows, floor.points),
        spare=vacancy.count[node] - rest[block],
        nodes=nodes[block],
        last=node,
        rest=rest[block],
    )


def _scattered(vacancy: Vacancy, level: int, gpus: int, *, tried: int = 8) -> Candidates:
    """The best GPUs of each group wherever they are, for the `tried` groups whose slowest one of them is best.

    PAL's walk in order of the slowest GPU, cut off there.
    """
    floor, every = vacancy.floor, vacancy.floor.scattered[level]
    free = vacancy.open[every.place]
    upto = np.cumsum(free)
    starts = _starts(every.group)
    before: Indices = upto[starts] - free[starts]
    starts = starts[upto[np.append(starts[1:], len(upto)) - 1] - before >= gpus] if len(starts) else starts
    slowest = np.searchsorted(upto, upto[starts] - free[starts] + gpus)
    best = np.lexsort((starts, floor.mean[every.place[slowest]]))[:tried]
    sets = [
        np.sort(every.place[start : end + 1][free[start : end + 1]])
        for start, end in zip(starts[best].tolist(), slowest[best].tolist(), strict=True)
    ]
    rows = np.array([together(floor, one) for one in sets], dtype=np.float32).reshape(len(sets), len(floor.points))
    return Candidates(
        level=np.full(len(sets), level),
        group=every.group[starts[best]],
        slowdown=expected(rows, floor.points),
        spare=np.array([vacancy.count[np.unique(floor.node[one])].sum() - gpus for one in sets], dtype=np.int64),
        nodes=np.full(len(sets), -1),
        last=np.full(len(sets), -1),
        rest=np.full(len(sets), gpus),
    )


def distinct(floor: Floor, gpu: Indices) -> Indices:
    """The same GPUs (ascending) without those whose slowdown is another one's: they share their node's result."""
    shared = floor.shared[gpu]
    node = floor.node[gpu]
    again = np.zeros(len(gpu), dtype=np.bool_)
    rows = np.flatnonzero(shared)
    again[rows[1:]] = node[rows[1:]] == node[rows[:-1]]
    return gpu[~again]


def _lowest(key: Floats | Indices, starts: Indices, many: int) -> Flags:
    """Which are the `many` lowest of their run (`starts` has where each begins); of equal ones the first."""
    left = key.astype(np.float64)
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(key))))
    found = np.zeros(len(key), dtype=np.bool_)
    for _ in range(many):  # a few rounds cost less than sorting
        low = np.minimum.reduceat(left, starts)
        at = np.flatnonzero((left == low[run]) & ~found)
        at = at[_starts(run[at])]
        found[at] = True
        left[at] = np.inf
    return found


def _starts(group: Indices) -> Indices:
    """Where each run of equal values begins."""
    return np.flatnonzero(np.append(True, group[1:] != group[:-1])) if len(group) else np.empty(0, dtype=np.int64)


def _joined(parts: Sequence[Candidates]) -> Candidates:
    return Candidates(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in Candidates.__slots__}
    )


def _none() -> Candidates:
    no = np.empty(0, dtype=np.int64)
    return Candidates(level=no, group=no, slowdown=np.empty(0), spare=no, nodes=no, last=no, rest=no)
