"""Vacancy: which GPUs of the floor a job may have now, and what the best of each node make together.

To leave out more GPUs: another argument of `vacancy_of`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from analytics.blocks import HEALTHY
from analytics.floor import Flags, Floats, Floor, Singles, carried, expected
from analytics.locality import Indices
from telemetry.errors import BadInput
from telemetry.tables import TIERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """`free` GPUs in the floor's order (`open`: the same as flags).

    Per node how many (`count`), where they begin in `free` (`first`), whether they are all that the node should have
    (`whole`), and whether some healthy ones are not free (`touched`).
    """

    floor: Floor
    open: Flags
    free: Indices
    first: Indices
    count: Indices
    whole: Flags
    touched: Flags
    _paces: dict[int, Floats] = field(default_factory=dict, compare=False, repr=False)
    _rows: dict[int, tuple[Indices, Singles]] = field(default_factory=dict, compare=False, repr=False)

    def best(self, node: Indices, size: Indices) -> Indices:
        """The `size` best free GPUs of each of these nodes, one after the other, as indices into the floor."""
        offsets = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        return np.asarray(self.free[np.repeat(self.first[node], size) + offsets])

    def pace(self, node: Indices, size: Indices) -> Floats:
        """Expected slowdown by the floor's points of the `size` best free GPUs of each node, which has so many."""
        result = np.empty(len(node))
        for one in np.unique(size).tolist():
            if one not in self._paces:
                self._paces[one] = self._pace(one)
            rows = size == one
            result[rows] = self._paces[one][node[rows]]
        return result

    def _pace(self, size: int) -> Floats:
        """The same for every node; infinite where it has fewer."""
        floor, able = self.floor, np.flatnonzero(self.count >= size)
        pace = np.full(len(floor.nodes), np.inf)
        pace[able] = floor.pace[floor.first[able] + size - 1]
        touched, rows = self._touched_rows(size)
        pace[touched] = expected(rows, floor.points)
        return pace

    def rows(self, node: Indices, size: Indices) -> Singles:
        """log P(the `size` best free GPUs of the node all stay below each point), one row per node; size is not 0."""
        floor = self.floor
        rows = floor.below[np.minimum(floor.first[node] + size - 1, len(floor.below) - 1)]
        touched = self.touched[node]
        for one in np.unique(size[touched]).tolist():
            nodes, known = self._touched_rows(one)
            place = np.flatnonzero(touched & (size == one))
            rows[place] = known[np.searchsorted(nodes, node[place])]
        return np.asarray(rows)

    def _touched_rows(self, size: int) -> tuple[Indices, Singles]:
        """Touched nodes with `size` free GPUs, ascending, and the rows of the best of these: added up anew."""
        if size not in self._rows:
            nodes = np.flatnonzero(self.touched & (self.count >= size))
            self._rows[size] = nodes, self._added(nodes, size)
        return self._rows[size]

    def _added(self, nodes: Indices, size: int) -> Singles:
        """Their best free GPUs are runs of neighbours in the floor: each is worth `below` at its end less before it."""
        floor = self.floor
        if not len(nodes):
            return np.empty((0, len(floor.points)), dtype=np.float32)
        gpu = self.best(nodes, np.full(len(nodes), size)).reshape(len(nodes), size)
        inside = np.diff(gpu, axis=1) == 1
        ends = np.pad(~inside, ((0, 0), (0, 1)), constant_values=True)
        begins = np.pad(~inside, ((0, 0), (1, 0)), constant_values=True) & (gpu != floor.first[nodes][:, None])
        rows = np.zeros((len(nodes), len(floor.points)), dtype=np.float32)
        for place in range(size):
            for flags, sign, at in ((ends, 1, 0), (begins, -1, 1)):
                some = np.flatnonzero(flags[:, place])
                rows[some] += sign * floor.below[gpu[some, place] - at]
        return self._with_carriers(rows, nodes, gpu)

    def _with_carriers(self, rows: Singles, nodes: Indices, gpu: Indices) -> Singles:
        """Of GPUs that share their node's result the first carries it, free or not."""
        floor = self.floor
        carrier = floor.carrier[nodes]
        some = np.flatnonzero(floor.shared[gpu].any(axis=1) & ~(gpu == carrier[:, None]).any(axis=1))
        rows[some] += carried(floor, carrier[some])
        return rows


def vacancy_of(
    floor: Floor,
    *,
    exclude_nodes: Collection[str] = (),
    exclude_gpus: Collection[str] = (),
    tiers: Sequence[str] = HEALTHY,
    peer_group: str | None = None,
) -> Vacancy:
    """What is free without these nodes and GPUs (busy, or unwanted; names that are not there change nothing).

    Only GPUs of these tiers, and with `peer_group` only nodes of it. Raises BadInput for a tier whose GPUs get no jobs.
    """
    wrong = [tier for tier in tiers if tier not in HEALTHY]
    if wrong or not tiers:
        raise BadInput("unhealthy_tier", f"tiers {', '.join(wrong) or 'none'}: jobs go to {', '.join(HEALTHY)} only")
    keep = np.isin(np.arange(len(TIERS)), [TIERS.index(tier) for tier in tiers])[floor.tier]
    keep[[row for row in map(floor.row_of.get, exclude_gpus) if row is not None]] = False
    wanted = np.ones(len(floor.nodes), dtype=np.bool_)
    wanted[[row for row in map(floor.node_of.get, exclude_nodes) if row is not None]] = False
    if peer_group is not None:
        wanted &= np.array([kind == peer_group for kind in floor.kinds], dtype=np.bool_)[floor.kind]
    keep &= wanted[floor.node]
    count = np.bincount(floor.node[keep], minlength=len(floor.nodes))
    return Vacancy(
        floor=floor,
        open=keep,
        free=np.flatnonzero(keep),
        first=np.cumsum(count) - count,
        count=count,
        whole=(count == floor.size) & (count > 0),
        touched=(count < floor.healthy) & (count > 0),
    )
