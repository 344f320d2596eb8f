"""The inventory as the scorer reads it: once when it changes, not in every step.

To read another column of it: `_listed`.
"""

from dataclasses import dataclass

import polars as pl

from analytics.groups import odd_drivers
from analytics.keys import by_gpu, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """Newest inventory of each GPU, and the same in the order of the state's rows."""

    gpus: pl.DataFrame  #: rows of GPUS that it was read from
    nodes: pl.DataFrame  #: rows of NODES
    #: gpu_uuid, inventory_node, model, memory_total_bytes, inventory_limit_w, power_limit_default_w, mig_enabled, slot,
    #: driver_version, seen_ns
    listed: pl.DataFrame
    drivers: pl.DataFrame  #: gpu, words: rows of `groups.odd_drivers`
    missing: pl.DataFrame  #: nodes that show fewer GPUs than expected
    uuids: pl.Series  #: of the state's rows
    others: pl.DataFrame  #: `listed` for GPUs that have no row there
    rows: pl.DataFrame  #: `listed` without gpu_uuid, one row for each of `uuids`; nulls for GPUs that are not listed


def read(book: Book | None, *, gpus: pl.DataFrame, nodes: pl.DataFrame, uuids: pl.Series) -> Book:
    """The book of these frames for these GPUs; `book` itself, or what can be kept of it, where they are the same."""
    same = book is not None and book.gpus is gpus and book.nodes is nodes
    if book is not None and same and book.uuids is uuids:
        return book
    listed = book.listed if book is not None and same else _listed(gpus)
    at = rows_of(listed["gpu_uuid"], uuids)
    return Book(
        gpus=gpus,
        nodes=nodes,
        listed=listed,
        drivers=by_gpu(odd_drivers(listed), uuids),
        missing=nodes.filter(pl.col("seen_gpus") < pl.col("expected_gpus")).select("node").unique(),
        uuids=uuids,
        others=listed.join(uuids.to_frame("gpu_uuid"), on="gpu_uuid", how="anti"),
        rows=listed.drop("gpu_uuid").select(pl.all().gather(at)),
    )


def _listed(gpus: pl.DataFrame) -> pl.DataFrame:
    newest = gpus.sort("seen_ns", "node").unique("gpu_uuid", keep="last", maintain_order=True)
    return newest.select(
        "gpu_uuid",
        pl.col("node").alias("inventory_node"),
        "model",
        "memory_total_bytes",
        pl.coalesce("power_limit_w", "power_limit_default_w").alias("inventory_limit_w"),
        pl.col("power_limit_default_w").cast(pl.Float64),
        "mig_enabled",
        "slot",
        "driver_version",
        "seen_ns",
    )
