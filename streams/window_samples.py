"""The rows of one window in the form that features want: every column, by GPU and time, equal ones once.

To change which of two equal rows stays: `sorted_samples`; what a sample is made of: `analytics/frames.py`.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from analytics.frames import sample_schema


def columns_of(frames: Sequence[pl.DataFrame]) -> list[str]:
    """The columns that occur in any of the frames, in the order of a samples frame."""
    present = {name for one in frames for name in one.columns}
    return [name for name in sample_schema() if name in present]


def sorted_samples(frames: Sequence[pl.DataFrame], base: pl.DataFrame | None) -> pl.DataFrame:
    """One frame of the rows; `base` are the last rows of the window before, as counter base.

    Of rows with equal gpu_uuid and time_ns the one that came first stays.
    """
    flagged = [one.with_columns(pl.lit(False).alias("carry")) for one in frames]
    if base is not None:
        flagged.append(base.with_columns(pl.lit(True).alias("carry")))
    rows = pl.concat(flagged, how="diagonal") if len(flagged) > 1 else flagged[0]
    names = rows["gpu_uuid"].unique().sort()
    # one integer key sorts several times faster than text and time: rank of the GPU, then time
    rank = rows["gpu_uuid"].cast(pl.Enum(names)).to_physical().cast(pl.UInt64).to_numpy()
    times = rows["time_ns"].to_numpy()
    first = int(times.min())
    span = np.uint64(int(times.max()) - first + 1)
    key = rank * span + (times - first).astype(np.uint64)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    order = order[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    picks = pl.Series(order.astype(np.uint32))
    # column by column in one piece each: picking out of many small pieces takes five times as long
    rows = pl.DataFrame([column.rechunk().gather(picks) for column in rows])
    types = sample_schema()
    return rows.select(
        pl.col(name) if name in rows.columns else pl.lit(None, dtype).alias(name) for name, dtype in types.items()
    )
