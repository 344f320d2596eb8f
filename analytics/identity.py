"""Who a row of a stranger's file speaks of: identities of GPUs and names of nodes out of its cells.

To know another way to number GPUs: `_INDEX` or `_BUS_ID`.
"""

from collections.abc import Sequence

import polars as pl

from analytics.cells import texts
from analytics.column_names import parts_of

_UUID = r"(?i)^(?:GPU-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$"
_INDEX = r"(?i)^(?:(?:gpu|cuda|nvidia|device|dev)[ _:.#]*)?([0-9]{1,3})$"
_BUS_ID = r"(?i)^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)$"


def node_names(table: pl.DataFrame, column: str, there: Sequence[str]) -> pl.Series:
    """Names of nodes; `a+b` joins columns with a dash; null for -1 and for what says "none"."""
    parts = [texts(table[part]).alias(str(i)) for i, part in enumerate(parts_of(column, there))]
    known = pl.DataFrame(parts).with_columns(pl.when(pl.all() != "-1").then(pl.all()))
    return known.select(pl.concat_str(pl.all(), separator="-")).to_series()


def gpu_identity(gpu: str, node: str) -> pl.Expr:
    """The identity of a GPU: `GPU-<uuid>` in lower case; `node/index`; else the text as it stands; null if unknown."""
    text = pl.col(gpu)
    place = pl.coalesce(
        text.str.extract(_INDEX).cast(pl.Int64).cast(pl.String), text.str.extract(_BUS_ID).str.to_lowercase()
    )
    return (
        pl.when(text.str.contains(_UUID))
        .then(pl.lit("GPU-") + text.str.extract(_UUID).str.to_lowercase())
        .when(place.is_not_null())
        .then(pl.col(node) + "/" + place)
        .when(text != "-1")
        .then(text)
    )


def is_index(text: pl.Expr) -> pl.Expr:
    """Whether a GPU is named by its place in its node only."""
    return text.str.contains(_INDEX) | text.str.contains(_BUS_ID)
