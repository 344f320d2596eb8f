"""Variance components: how much of log speed is the site's, rack's, node's, GPU's own, and how much the run's.

To add a level: its column in `levels`, outermost first; nothing here knows their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Z90 = 1.6448536269514722  #: 0.95 quantile of the normal
RUN = "run"  #: the innermost level: what differs when the same GPU is measured again
MIN_CLUSTERS = 8  #: fewer are no sample of anything; the jackknife goes one level further in
MAX_FOLDS = 60  #: more clusters than this are left out some at a time

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

SCHEMA: dict[str, pl.DataType] = {
    "level": pl.String(), "units": pl.UInt32(), "variance": pl.Float64(), "share": pl.Float64(),
    "share_low": pl.Float64(), "share_high": pl.Float64(), "nil": pl.Boolean(),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """Unit numbers of every row at each level that can be told apart, the whole outermost and the row innermost."""

    names: list[str]
    codes: list[Codes]


def components(values: pl.DataFrame, *, levels: Sequence[str], value: str = "value") -> pl.DataFrame:
    """One row per level, outermost first, `run` last: its variance and its share of the sum.

    `values`: one row per measurement, `value` a log; `levels` name columns, outermost first, each nested in those
    before it (a node number may repeat in another rack). Columns: `level`, `units`, `variance`, `share`, `share_low`
    and `share_high` (90 %), `nil` (the estimate is not above zero, or its level's differences are no larger than the
    levels inside it explain: share 0). Null where a level cannot be told apart: a single unit, or one unit of the next
    level in each of its own. Rows with null in `value` or a level are left out; no rows, no answer.

    Estimates by the moments of an unbalanced nested design (Henderson 1953, method I, Biometrics 9:226); a level whose
    estimate is negative is nil and the rest is estimated again without it (Thompson 1962). Intervals by the jackknife
    over the outermost level with at least 8 units (Tukey 1958): what one cluster decides alone has a wide one.
    """
    rows = values.select(*levels, value).drop_nulls()
    if len(rows) < 2:
        return pl.DataFrame(schema=SCHEMA)
    nest, units = _nest(rows, levels)
    y = rows[value].to_numpy().astype(np.float64)
    found = _nonnegative(nest, y)
    shares = _shares(found)
    low, high = _jackknife(nest, y, shares)
    order = {name: i for i, name in enumerate(nest.names)}
    return pl.DataFrame(
        [
            (name, units[name], found[i], shares[i], low[i], high[i], bool(found[i] <= 0))
            if (i := order.get(name, -1)) >= 0
            else (name, units[name], None, None, None, None, None)
            for name in (*levels, RUN)
        ],
        schema=SCHEMA,
        orient="row",
    )


def by_contest(values: pl.DataFrame, *, by: Sequence[str], levels: Sequence[str], value: str = "value") -> pl.DataFrame:
    """`components` of each group of rows alike in `by` (class, name, peer group), with `by` in front; sorted by it."""
    parts = []
    for key, rows in sorted(values.partition_by(list(by), as_dict=True).items()):
        found = components(rows, levels=levels, value=value)
        parts.append(found.select(*(pl.lit(k).alias(name) for k, name in zip(key, by, strict=True)), pl.all()))
    return pl.concat(parts) if parts else pl.DataFrame(schema=SCHEMA)


def _nest(rows: pl.DataFrame, levels: Sequence[str]) -> tuple[_Nest, dict[str, int]]:
    names: list[str] = []
    codes: list[Codes] = [np.zeros(len(rows), dtype=np.int64)]
    units: dict[str, int] = {}
    for i, level in enumerate(levels):
        keys = pl.struct(levels[: i + 1])
        unit = rows.select(keys.rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
        units[level] = int(unit.max()) + 1
        if units[level] > units[levels[i - 1]] if i else units[level] > 1:
            names.append(level)
            codes.append(unit)
        elif i and levels[i - 1] in names and units[level] == units[levels[i - 1]]:
            # One GPU in each node: the finer name says what varies, the coarser adds nothing.
            names[-1] = level
    units[RUN] = len(rows)
    if units[RUN] > int(codes[-1].max()) + 1:
        names.append(RUN)
        codes.append(np.arange(len(rows)))
    return _Nest(names=names, codes=codes), units


def _nonnegative(nest: _Nest, y: Floats) -> Floats:
    """Variances in the order of the levels; the most negative level is taken out until none is left."""
    kept = list(range(len(nest.names)))
    found = np.zeros(len(nest.names))
    while kept:
        solved = _moments([nest.codes[0], *(nest.codes[i + 1] for i in kept)], y)
        worst = int(np.argmin(solved))
        if solved[worst] >= 0:
            found[kept] = solved
            return found
        del kept[worst]
    return found


def _moments(codes: Sequence[Codes], y: Floats) -> Floats:
    """Henderson's equations for nested levels: expected sums of squares against observed ones."""
    y = y - y.mean()
    counts = [np.bincount(unit).astype(np.float64) for unit in codes]
    squares = np.array(
        [
            float((np.bincount(unit, y, minlength=len(n)) ** 2 / np.maximum(n, 1)).sum())
            for unit, n in zip(codes, counts, strict=True)
        ]
    )
    size = len(codes)
    expected = np.full((size, size), float(len(y)))
    for inner in range(1, size):
        for outer in range(inner):
            parent = np.zeros(len(counts[inner]), dtype=np.int64)
            parent[codes[inner]] = codes[outer]
            total = np.bincount(parent, counts[inner] ** 2, minlength=len(counts[outer]))
            expected[outer, inner] = float((total / np.maximum(counts[outer], 1)).sum())
    return np.linalg.lstsq(np.diff(expected, axis=0)[:, 1:], np.diff(squares), rcond=None)[0]


def _shares(variances: Floats) -> Floats:
    total = variances.sum()
    return variances / total if total > 0 else np.zeros_like(variances)


def _jackknife(nest: _Nest, y: Floats, shares: Floats) -> tuple[Floats, Floats]:
    clusters = next((c for c in nest.codes[1:] if int(c.max()) + 1 >= MIN_CLUSTERS), nest.codes[-1])
    fold = clusters % min(int(clusters.max()) + 1, MAX_FOLDS)
    told = []
    for left_out in np.unique(fold):
        keep = fold != left_out
        if keep.sum() < 2:
            continue
        part = _Nest(
            names=nest.names,
            codes=[np.unique(unit[keep], return_inverse=True)[1].astype(np.int64) for unit in nest.codes],
        )
        told.append(_shares(_nonnegative(part, y[keep])))
    if len(told) < 2:
        return np.zeros_like(shares), np.ones_like(shares)
    spread = np.array(told)
    sd = np.sqrt((len(told) - 1) * spread.var(axis=0))
    return np.clip(shares - Z90 * sd, 0, 1), np.clip(shares + Z90 * sd, 0, 1)
