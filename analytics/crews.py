"""Medians of many small groups at once: the GPUs of each node, a hundred thousand times.

`Crews` once for a grouping, `median` for each value; one large group among them is as right, only slower.
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

_WIDEST = 128  # members of a group for which a row of a matrix is the faster way


class Crews:
    """Rows grouped by a number each; values that are null or no number are left out.

    `group`: each row's group, numbered as they appear; `first`: each group's first row.
    """

    def __init__(self, key: pl.Series) -> None:
        _, first, number = np.unique(key.to_numpy(), return_index=True, return_inverse=True)
        by_appearance = np.argsort(first)  # what a key's number is must not matter
        place = np.empty_like(by_appearance)
        place[by_appearance] = np.arange(len(first))
        self.group: NDArray[np.int64] = place[number]
        self.first: NDArray[np.int64] = first[by_appearance]
        order = np.argsort(self.group, kind="stable")
        sizes = np.bincount(self.group)
        self._seat = np.empty(len(number), dtype=np.int64)
        self._seat[order] = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._shape = (len(sizes), int(sizes.max()) if len(sizes) else 0)

    def count(self, mask: pl.Series) -> pl.Series:
        """How many rows of each row's group are true."""
        true = mask.fill_null(value=False).to_numpy()
        return pl.Series(mask.name, np.bincount(self.group[true], minlength=self._shape[0])[self.group])

    def median(self, value: pl.Series) -> pl.Series:
        """Float64, one per row; null in a group without a value."""
        return pl.Series(value.name, self._of_groups(value)[self.group], nan_to_null=True)

    def medians(self, value: pl.Series) -> pl.Series:
        """Float64, one per group, in the order of `first`, each group's first row."""
        return pl.Series(value.name, self._of_groups(value), nan_to_null=True)

    def most(self, value: pl.Series) -> pl.Series:
        """The largest value of each group, null in a group without one; one per group, in the order of `first`."""
        most = np.full(self._shape[0], -np.inf)
        np.maximum.at(most, self.group, value.cast(pl.Float64).fill_null(-np.inf).to_numpy())
        return pl.Series(value.name, np.where(np.isinf(most), np.nan, most), nan_to_null=True)

    def _of_groups(self, value: pl.Series) -> NDArray[np.float64]:
        groups, width = self._shape
        if not groups:
            return np.empty(0)
        numbers = value.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        if width > _WIDEST:
            told = pl.DataFrame({"group": self.group, "value": value.cast(pl.Float64)})
            middle = told.group_by("group").agg(pl.col("value").median()).sort("group")["value"]
            return middle.fill_null(float("nan")).to_numpy()
        table = np.full((groups, width), np.nan)
        table[self.group, self._seat] = numbers
        table.sort(axis=1)  # NaN last
        known = width - np.isnan(table).sum(axis=1)
        row = np.arange(groups)
        low, high = np.maximum(known - 1, 0) // 2, np.minimum(known // 2, width - 1)
        return np.asarray((table[row, low] + table[row, high]) / 2)
