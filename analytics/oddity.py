"""Odd combinations: GPUs whose clock, power and temperatures do not go together as their peers' do at the same load.

To watch another reading: one line in `READINGS`, with what makes a deviation of it matter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analytics.covariance import Floats, Model, fit
from analytics.peers import load_bin

MIN_ROWS = 32  #: of a cell: some five for each of the readings, for a covariance worth the name
SUPPORT = 0.95  #: share of a cell that must have a reading for it to be used; who lacks a used one is not judged
SAMPLE = 4_000  #: rows that a cell's model is fitted to; more say nothing new
CANDIDATES = 0.98  #: of a cell's distances: who is nearer than this is looked at no further
MOST = 5_000  #: of them in a cell, or so
NODE_PEERS = 4  #: of one node in a cell, for what its job makes of all of them to be taken out
SLOT_ROWS = 8  #: of one slot, for what the slot makes of whoever sits in it to be taken out
MIN_Z = 3.0  #: standard deviations of a reading given all others, for it to be named
NAMED = 2  #: readings named at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """`floor`: the step of the sensor. `effect`: a deviation that matters to anybody.

    `harmless`: the ways, -1 below and 1 above, in which it makes nobody odd by itself.
    """

    name: str
    value: pl.Expr
    floor: float
    effect: float = 0.0
    harmless: tuple[int, ...] = ()
    ratio: bool = False

    def told(self, deviation: float) -> str:
        """The deviation in words."""
        way = "above" if deviation > 0 else "below"
        amount = f"{abs(np.expm1(deviation)):.1%}" if self.ratio else f"{abs(deviation):.1f} C"
        return f"{self.name} {amount} {way}"


def _log(name: str) -> pl.Expr:
    return pl.when(pl.col(name) > 0).then(pl.col(name).cast(pl.Float64).log())


LOADS: tuple[Reading, ...] = (
    Reading(name="sm_active_ratio", value=pl.col("sm_active_ratio"), floor=0.01),
    Reading(name="pipes", value=pl.max_horizontal("tensor_active_ratio", "fp_active_ratio"), floor=0.01),
    Reading(name="dram_active_ratio", value=pl.col("dram_active_ratio"), floor=0.01),
)
"""What the work is: allowed for, never judged."""

READINGS: tuple[Reading, ...] = (
    Reading(name="clock", value=_log("effective_clock_mhz"), floor=0.003, effect=0.02, harmless=(-1, 1), ratio=True),
    Reading(name="power", value=_log("power_w"), floor=0.003, effect=0.03, ratio=True),
    Reading(name="temperature", value=pl.col("temperature_c"), floor=1.0, effect=5.0, harmless=(-1,)),
    Reading(name="memory temperature", value=pl.col("memory_temperature_max_c"), floor=1.0, effect=5.0, harmless=(-1,)),
)
"""How the GPU answers, judged together. Floors: clocks step by 15 MHz; V100s at their cap spread by 0.2 %."""

Rows = NDArray[np.intp]


def odd_combinations(windows: pl.DataFrame, *, chance: float = 0.01) -> pl.DataFrame:
    """Whether each GPU's readings are odd together, by how much, and which: `odd_combination`, `_value` and `_text`.

    Grain: the rows of `windows`, same order; null where nothing can be said. `windows`: rows of WINDOWS of one window
    with peer_group, slot and `eligible` (busy enough to be judged). A cell is a peer group, class and load bin with at
    least `MIN_ROWS` GPUs; the model of each is fitted to the window itself, so that the same window always says the
    same. Taken out first: what a slot does on all nodes, and what is common to the GPUs of one node, which is its job's
    or its air's (heat of a whole node is `hot`). The value is the distance over the one that a healthy GPU among all
    judged passes with `chance`: odd is above 1, with a reading that is `effect` away from what the others lead to; a
    clock alone is a matter of speed, and being cool of none.
    """
    value = np.full(len(windows), np.nan)
    texts: dict[int, str] = {}
    cells = list(_cells(windows))
    judged = sum(len(cell.rows) for cell in cells)
    for cell in cells:
        value[cell.rows] = _judged(cell, chance / judged, texts)
    told = pl.Series(value, dtype=pl.Float64).fill_nan(None)
    words = pl.Series(texts.values(), dtype=pl.String) if texts else None
    text = pl.Series([None], dtype=pl.String).new_from_index(0, len(windows))
    if words is not None:
        text = text.scatter(list(texts), words)
    return pl.DataFrame(
        {
            "odd_combination": pl.select(pl.when(told.is_not_null()).then(text.is_not_null())).to_series(),
            "odd_combination_value": told,
            "odd_combination_text": text,
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """GPUs of one peer group, class and load bin: their rows in the window; nodes and slots as numbers, -1 unknown."""

    rows: Rows
    node: NDArray[np.int64]
    slot: NDArray[np.int64]
    values: Floats
    loads: tuple[Reading, ...]
    responses: tuple[Reading, ...]


def _cells(windows: pl.DataFrame) -> Iterator[_Cell]:
    keys = [pl.col(name).cast(pl.Categorical).to_physical() for name in ("peer_group", "workload_class", "node")]
    rows = windows.select(
        "eligible", *keys, load_bin(), pl.col("slot").cast(pl.Int64).fill_null(-1).alias("slot"),
        *(one.value.cast(pl.Float64).alias(one.name) for one in (*LOADS, *READINGS)),
    ).with_row_index("row").filter("eligible")  # fmt: skip
    contest = ["peer_group", "workload_class", "load_bin"]
    sizes = rows.group_by(contest).agg(pl.len(), pl.col("row").first()).filter(pl.col("len") >= MIN_ROWS).sort("row")
    for *key, size, _ in sizes.iter_rows():
        mine = [pl.col(name).eq_missing(value) for name, value in zip(contest, key, strict=True)]
        cell = rows if size == len(rows) else rows.filter(*mine)
        known = cell.select(pl.col(one.name).count() for one in (*LOADS, *READINGS)).row(0, named=True)
        loads, responses = (
            tuple(one for one in some if known[one.name] >= SUPPORT * size) for some in (LOADS, READINGS)
        )
        names = [one.name for one in (*loads, *responses)]
        if any(known[name] < size for name in names):
            cell = cell.drop_nulls(names)
        if len(responses) < 2 or len(cell) < MIN_ROWS:  # one reading alone is no combination
            continue
        yield _Cell(
            rows=cell["row"].to_numpy().astype(np.intp),
            node=cell["node"].to_numpy().astype(np.int64),
            slot=cell["slot"].to_numpy(),
            values=cell.select(names).to_numpy(order="fortran"),
            loads=loads,
            responses=responses,
        )


def _judged(cell: _Cell, chance: float, texts: dict[int, str]) -> Floats:
    """The value of each row of the cell; adds the texts of those that are odd, by row of the window.

    All are held against the whole cell, and the far ones against their nodes too.
    """
    loads, floors = len(cell.loads), np.array([one.floor for one in (*cell.loads, *cell.responses)])
    some = _sample(cell.node)
    effects = _slot_effects(cell.values[some], cell.slot[some], int(cell.slot.max()))
    model = fit(cell.values[some] - effects[cell.slot[some]], loads=loads, floors=floors)
    residuals = model.residuals(cell.values)
    for response, shift in enumerate((effects @ model.gain).T):
        residuals[:, response] -= shift[cell.slot]
    distance = model.distances(residuals)
    ratio = np.sqrt(distance / model.limit(chance))
    near = np.flatnonzero(distance > np.quantile(distance[some], max(CANDIDATES, 1 - MOST / len(distance))))
    candidates = [(model, residuals[i]) for i in near]
    within, many = _within(cell.values[some] - effects[cell.slot[some]], cell.node[some])
    if np.count_nonzero(many) >= MIN_ROWS:
        inner = fit(within[many], loads=loads, floors=floors)
        around = np.flatnonzero(np.isin(cell.node, cell.node[near]))
        centred, known = _within(cell.values[around] - effects[cell.slot[around]], cell.node[around])
        place = np.searchsorted(around, near)
        known, rest = known[place], inner.residuals(centred[place])
        ratio[near] = np.where(known, np.sqrt(inner.distances(rest) / inner.limit(chance)), ratio[near])
        candidates = [(inner, rest[k]) if known[k] else one for k, one in enumerate(candidates)]
    for i, (fitted, residual) in zip(near, candidates, strict=True):
        text = _text(cell, fitted, residual) if ratio[i] > 1 else None
        if text is not None:
            texts[int(cell.rows[i])] = text
    return ratio


def _text(cell: _Cell, model: Model, residual: Floats) -> str | None:
    """The readings that deviate most, None if none of them matters."""
    deviations, z = (found[0] for found in model.alone(residual[None, :]))
    named = [
        (abs(z[i]), one.told(deviations[i]), int(np.sign(deviations[i])) in one.harmless)
        for i, one in enumerate(cell.responses)
        if abs(z[i]) >= MIN_Z and abs(deviations[i]) >= one.effect
    ]
    if all(harmless for _, _, harmless in named):
        return None
    return ", ".join(text for _, text, _ in sorted(named, reverse=True)[:NAMED])


def _sample(node: NDArray[np.int64]) -> Rows:
    """Rows of the cell, or of a large one all those of some of its nodes: the same ones for the same rows."""
    if len(node) <= SAMPLE:
        return np.arange(len(node))
    every = max(1, round(len(node) * NODE_PEERS * 2 / SAMPLE))
    return np.flatnonzero(np.isin(node, node[::every]))[: 2 * SAMPLE]


def _slot_effects(values: Floats, slot: NDArray[np.int64], last: int) -> Floats:
    """Median of each slot less that of all, by slot number; zeros last, for slot -1, and where too few fill a slot."""
    effects = np.zeros((last + 2, values.shape[1]))
    middle = np.median(values, axis=0)
    for one in np.unique(slot[slot >= 0]):
        mine = values[slot == one]
        if len(mine) >= SLOT_ROWS:
            effects[one] = np.median(mine, axis=0) - middle
    return effects


def _within(values: Floats, node: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
    """Rows less the medians of the others of their nodes, and which of them have enough neighbours for that.

    Of the others: with its own value in it, a median lies on one or two of the rows, and all rest stand out.
    """
    _, unit, count = np.unique(node, return_inverse=True, return_counts=True)
    size = count[unit]
    first = (np.cumsum(count) - count)[unit]
    out = values.copy()
    for column in out.T:
        order = np.lexsort((column, unit))
        ordered = column[order]
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        rank -= first
        low, high = (size - 2) // 2, (size - 1) // 2  # places of the middle among the others
        low, high = low + (rank <= low), high + (rank <= high)
        last = len(order) - 1
        column -= (ordered[np.minimum(first + low, last)] + ordered[np.minimum(first + high, last)]) / 2
    return out, size >= NODE_PEERS
