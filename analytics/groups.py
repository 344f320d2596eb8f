"""Peer groups as the measurements show them: two kinds under one name, and what a slot does to whoever sits in it.

To use another test of two kinds: `modes`, whose docstring says what it must withstand.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

MIN_SEPARATION = 5.0  #: Ashman's D; two halves of one normal group stand 2.7 apart, of a uniform one 3.5
SMALL_GROUP = 30.0  #: D more for n GPUs: 30 / n; so that chance cuts fewer than one in a hundred groups of eight
MIN_DISTANCE = 0.02  #: log; kinds less than 2 % apart are one kind to every scheduler
MIN_SHARE = 0.2  #: a smaller part is slow, not another kind: 12 % of Azure's A100 nodes have FP32 at half speed
MIN_SIZE = 4  #: of each kind; no one outlier, nor three, makes a group
FLOOR_SD = 0.003  #: log; equal values are no evidence of infinite separation
ODD_DRIVER_SHARE = 0.1  #: more have another driver in an upgrade that is on its way; nobody is odd then

Floats = NDArray[np.float64]


def modes(
    values: pl.DataFrame, *, by: Sequence[str], value: str = "value", min_separation: float = MIN_SEPARATION,
    min_distance: float = MIN_DISTANCE, min_share: float = MIN_SHARE, min_size: int = MIN_SIZE,
) -> pl.DataFrame:  # fmt: skip
    """The rows with `mode`: 0 for the faster kind of their group, 1 for the slower, 0 where the group is one kind.

    Grain: the rows of `values`, same order; `value` is log speed, one row per GPU. Adds `separation` too: Ashman's D
    of the best cut, |m1 - m2| sqrt(2 / (s1^2 + s2^2)), null where there is nothing to cut. A group is split only if
    both parts have `min_size` members and `min_share` of the group, stand `min_distance` and D `min_separation` apart.
    Null values have a null mode. Ashman, Bird and Zepf 1994, Astronomical Journal 108:2348.
    """
    rows = values.with_row_index("_row")
    parts = []
    for group in rows.partition_by(list(by)) if by else [rows]:
        x = group[value].cast(pl.Float64).fill_nan(None)
        known = x.drop_nulls().to_numpy()
        where, separation = cut(
            np.sort(known), min_size=min_size, min_share=min_share, min_distance=min_distance, least=min_separation
        )
        mode = pl.lit(0) if where is None else (x < where).cast(pl.Int32)
        parts.append(
            group.select(
                "_row",
                pl.when(x.is_not_null()).then(mode).cast(pl.Int32).alias("mode"),
                pl.lit(separation, dtype=pl.Float64).alias("separation"),
            )
        )
    found = pl.concat(parts) if parts else rows.select("_row", mode=pl.lit(0), separation=pl.lit(None, pl.Float64))
    return rows.join(found, on="_row", how="left", maintain_order="left").drop("_row")


def cut(
    x: Floats, *, min_size: int, min_share: float, min_distance: float, least: float
) -> tuple[float | None, float | None]:
    """The value that parts two kinds of sorted values, or None, and how far the best cut stands apart; see `modes`."""
    n = len(x)
    fewest = max(min_size, int(np.ceil(min_share * n)))
    if n < 2 * fewest:
        return None, None
    size = np.arange(1, n)
    head, square = np.cumsum(x)[:-1], np.cumsum(x**2)[:-1]
    tail, tail_square = x.sum() - head, (x**2).sum() - square
    within = (square - head**2 / size) + (tail_square - tail**2 / (n - size))
    allowed = (size >= fewest) & (n - size >= fewest)
    best = int(np.argmin(np.where(allowed, within, np.inf)))
    low, high = x[: best + 1], x[best + 1 :]
    spread = max(low.var(ddof=1), FLOOR_SD**2) + max(high.var(ddof=1), FLOOR_SD**2)
    distance = float(high.mean() - low.mean())
    separation = distance * float(np.sqrt(2 / spread))
    apart = separation >= least + SMALL_GROUP / n and distance >= min_distance
    return (float((low[-1] + high[0]) / 2) if apart else None), separation


def without_slots(
    values: pl.DataFrame, *, by: Sequence[str], value: str = "value", slot: str = "slot", min_nodes: int = 4
) -> pl.DataFrame:
    """The rows with `slot_effect` and `<value>_anomaly`, the value with the effect of its slot taken out.

    Grain: the rows of `values`, same order; one row per GPU, `slot` its place in the node. The effect of a slot is the
    median of its GPUs on all nodes less the median of the group (`by`); 0 where fewer than `min_nodes` nodes fill that
    slot. For comparisons of anomalies only: a GPU in a hot slot really is slower, so speed keeps the effect.
    """
    group, seat = list(by), [*by, slot]
    middle = pl.col(value).median().over(group) if group else pl.col(value).median()
    enough = pl.col(value).count().over(seat) >= min_nodes
    effect = (
        pl.when(enough & pl.col(slot).is_not_null()).then(pl.col(value).median().over(seat) - middle).otherwise(0.0)
    )
    rows = values.with_columns(effect.alias("slot_effect"))
    return rows.with_columns((pl.col(value) - pl.col("slot_effect")).alias(f"{value}_anomaly"))


def odd_drivers(gpus: pl.DataFrame, *, few: float = ODD_DRIVER_SHARE, min_gpus: int = 16) -> pl.DataFrame:
    """GPUs whose driver is another one than that of nearly all of their model: gpu_uuid and `words` (which, and usual).

    `gpus`: gpu_uuid, model, driver_version (null: unknown, not odd). Only where at most `few` of a model's GPUs, of
    at least `min_gpus`, have another driver than the usual one.
    """
    told = gpus.filter(pl.col("driver_version").is_not_null() & pl.col("model").is_not_null())
    if told["driver_version"].n_unique() < 2:
        return pl.DataFrame(schema={"gpu_uuid": pl.String, "words": pl.String})
    usual = pl.col("driver_version").mode().sort().first().over("model")
    rows = told.with_columns(usual.alias("usual")).with_columns(
        (pl.col("driver_version") != pl.col("usual")).alias("odd")
    )
    odd = rows.filter(
        pl.col("odd") & (pl.col("odd").mean().over("model") <= few) & (pl.len().over("model") >= min_gpus)
    )
    return odd.select("gpu_uuid", pl.format("{}, not {}", "driver_version", "usual").alias("words"))
