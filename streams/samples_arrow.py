"""Samples from Arrow bodies: equal layouts at once through numpy, the others joined behind one schema through polars.

To change what is read: `telemetry/codec.py` checks a body; here it only becomes columns.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from telemetry.codec import END_OF_STREAM, Layout, columns_of, metrics_of, schema_prefix

JOIN = 25  #: bodies behind one schema: more make polars slower, fewer pay the schema too often (measured)
_STACK = 40  #: bodies copied at once: what stays near the cache (measured)
_FEW = 4  #: below that many bodies of one layout, joining them with others is cheaper
_DTYPES = {
    "uint8": "<u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int16": "<i2",
    "int64": "<i8",
    "float32": "<f4",
    "float64": "<f8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A checked body and the index of its message."""

    message: int
    mask: int
    layout: Layout
    data: bytes


def read_bodies(bodies: Sequence[Body]) -> tuple[list[pl.DataFrame], list[int]]:
    """Frames with `message`, `time_ns`, `gpu` and metrics, one or more a mask; and the messages that polars refused.

    Each frame is in message order.
    """
    alike: defaultdict[tuple[int, int], list[Body]] = defaultdict(list)
    for body in bodies:
        alike[body.mask, id(body.layout)].append(body)  # layouts of equal frames are one object: see codec.layout
    frames: list[pl.DataFrame] = []
    others: defaultdict[int, list[Body]] = defaultdict(list)
    for (mask, _), group in alike.items():
        if group[0].layout.plain and len(group) >= _FEW:
            frames.append(_stacked(mask, group))
        else:
            others[mask].extend(group)
    refused: list[int] = []
    for mask, group in others.items():
        group.sort(key=lambda body: body.message)
        for i in range(0, len(group), JOIN):
            frames.extend(_joined(mask, group[i : i + JOIN], refused))
    return frames, refused


def _stacked(mask: int, group: Sequence[Body]) -> pl.DataFrame:
    """Bodies without nulls of one layout: a column is the same slice of each."""
    layout = group[0].layout
    types = [np.dtype(_DTYPES[name]) for name in ("int64", "uint16", *(metric.type for metric in metrics_of(mask)))]
    blocks = [np.empty((len(group), layout.rows * dtype.itemsize), dtype=np.uint8) for dtype in types]
    for i in range(0, len(group), _STACK):
        some = group[i : i + _STACK]
        table = np.frombuffer(b"".join(body.data for body in some), dtype=np.uint8).reshape(len(some), -1)
        for block, (_, _, offset, _) in zip(blocks, layout.buffers, strict=True):
            at = layout.start + offset
            block[i : i + _STACK] = table[:, at : at + block.shape[1]]
    columns = {"message": np.repeat(np.array([body.message for body in group], dtype=np.uint32), layout.rows)}
    for name, dtype, block in zip(columns_of(mask), types, blocks, strict=True):
        columns[name] = block.reshape(-1).view(dtype)
    return pl.DataFrame(columns)


def _joined(mask: int, group: Sequence[Body], refused: list[int]) -> list[pl.DataFrame]:
    """One frame of the group; if polars refuses it, one frame a body, and the bad ones in `refused`."""
    rows = [body.layout.rows for body in group]
    try:
        # polars panics on some malformed input; its panic is a BaseException, and the process is unharmed
        frame = pl.read_ipc_stream(schema_prefix(mask) + b"".join(body.data for body in group) + END_OF_STREAM)
    except (PolarsError, PanicException, ValueError):
        frame = None
    if frame is not None and len(frame) == sum(rows) and tuple(frame.columns) == columns_of(mask):
        messages = np.repeat(np.array([body.message for body in group], dtype=np.uint32), rows)
        return [frame.rechunk().insert_column(0, pl.Series("message", messages))]
    if len(group) == 1:
        refused.append(group[0].message)
        return []
    return [frame for body in group for frame in _joined(mask, [body], refused)]
