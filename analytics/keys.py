"""GPUs as row numbers: inside the scorer `gpu` (UInt32) is a GPU's row in `State.gpus`, ordered by node, then gpu_uuid.

Frames stay sorted by it and say so: joining a million GPUs then merges instead of hashing texts, a tenth of the time.
"""

import polars as pl

KEY = pl.UInt32()
_FEW = 64  # times fewer names than GPUs: looked up one by one instead of joined


def rows_of(uuids: pl.Series, wanted: pl.Series) -> pl.Series:
    """For each of `wanted` its row in `uuids` (each once), null where it is not there."""
    if wanted.equals(uuids):
        return pl.int_range(len(uuids), dtype=KEY, eager=True).alias("gpu")
    there = pl.DataFrame({"gpu_uuid": uuids, "gpu": pl.int_range(len(uuids), dtype=KEY, eager=True)})
    if len(wanted) * _FEW < len(uuids):  # a table of all would cost more than a look at each
        there = there.filter(pl.col("gpu_uuid").is_in(wanted.implode()))
    names = pl.DataFrame({"gpu_uuid": wanted})
    return names.join(there, on="gpu_uuid", how="left", maintain_order="left")["gpu"]


def by_gpu(frame: pl.DataFrame, uuids: pl.Series, at: pl.Series | None = None) -> pl.DataFrame:
    """`frame` with `gpu` in place of `gpu_uuid`, sorted by it; rows of GPUs that are not in `uuids` are left out.

    `at`: `rows_of` them, where it is known already.
    """
    gpu = rows_of(uuids, frame["gpu_uuid"]) if at is None else at
    rows = frame.drop("gpu_uuid").insert_column(0, gpu)
    return in_order(rows.filter(pl.col("gpu").is_not_null()) if gpu.null_count() else rows)


def beside(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """`left` with the columns of `right`, which has each `gpu` once at most; null where it has not."""
    if right["gpu"].equals(left["gpu"]):  # free where both speak of the same GPUs, as most frames of a step do
        return left.hstack(right.drop("gpu"))
    return left.join(right, on="gpu", how="left", maintain_order="left")


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` sorted by `gpu`; rows of one GPU keep their order. Free where the frame already says that it is."""
    if frame["gpu"].flags["SORTED_ASC"]:
        return frame
    if frame["gpu"].is_sorted():
        return known_in_order(frame)
    return frame.sort("gpu", maintain_order=True)


def known_in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame`, which is in the order of `gpu` by construction, saying so."""
    return frame.with_columns(pl.col("gpu").set_sorted())


def renumbered(frame: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """`frame` with each `gpu` replaced by `rows[gpu]`, in that order; rows of one GPU keep theirs."""
    return in_order(frame.with_columns(rows.gather(frame["gpu"]).alias("gpu")))


def once(frame: pl.DataFrame) -> pl.Series:
    """True for rows whose `gpu` occurs once; `frame` is in the order of `gpu`."""
    gpu = pl.col("gpu")
    alone = gpu.ne_missing(gpu.shift(1)) & gpu.ne_missing(gpu.shift(-1))
    return frame.select(alone.alias("once")).to_series()


def number(column: str) -> pl.Expr:
    """A number for each text that occurs in the column, null for null; below 2^24, and never the same for two."""
    return pl.col(column).cast(_TEXTS).to_physical().cast(pl.UInt64)


_TEXTS = pl.Categorical(pl.Categories("isotach", "scoring", physical=pl.UInt32))
_BITS = 20


def contest(*columns: str) -> pl.Expr:
    """`contest`: one number below 2^40 for each combination of two columns of labels; null is a label like any other.

    Labels are texts of which a fleet has few: peer groups, classes, scopes. Groups of one number are found several
    times sooner than groups of several texts. The numbers mean nothing beyond the process.
    """
    parts = [pl.col(name).cast(_LABELS).to_physical().cast(pl.UInt64).fill_null(2**20 - 1) for name in columns]
    combined = parts[0]
    for part in parts[1:]:
        combined = combined * 2**20 + part
    return combined.alias("contest")


def node_number(column: str = "node") -> pl.Expr:
    """A number below 2^24 for each node that occurs, null for null."""
    return pl.col(column).cast(_NODES).to_physical().cast(pl.UInt64)


_LABELS = pl.Categorical(pl.Categories("labels", "isotach", physical=pl.UInt32))
_NODES = pl.Categorical(pl.Categories("nodes", "isotach", physical=pl.UInt32))
