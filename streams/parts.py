"""Messages of `isotach.windows`: window rows as an Arrow stream, in parts that fit a message; the rest in headers.

To add a header: `Part`, `encode_part` and `decode_part` together.
"""

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl
import zstandard
from polars.exceptions import PanicException, PolarsError

from analytics.frames import frame, schema
from streams import Message, Outgoing
from streams.topics import WINDOWS
from telemetry import tables
from telemetry.codec import decompress
from telemetry.errors import BadInput

CONTENT_TYPE = "application/vnd.isotach.windows+zstd"
MAX_PART_BYTES = 900_000
_MAX_PARTITIONS = 1 << 20
_MAX_PARTS = 100_000
_MAX_BODY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One message of `isotach.windows`.

    Part `part` of `parts` of one window of one telemetry partition; 0 of 0 tells progress without a window.
    `watermark_ns`: every window of the partition that ends at or before it has been told, this message included.
    """

    partition: int
    window_start_ns: int
    window_ns: int
    watermark_ns: int
    part: int
    parts: int
    rows: pl.DataFrame

    @property
    def window_end_ns(self) -> int:
        """End of the window."""
        return self.window_start_ns + self.window_ns


def encode_window(
    *, partition: int, window_start_ns: int, window_ns: int, rows: pl.DataFrame, max_bytes: int = MAX_PART_BYTES
) -> Iterator[Outgoing]:
    """The messages of one window of one partition, at least one; only the last tells the window's end as watermark."""
    step = max(1, len(rows))
    while True:
        values = [_pack(rows.slice(at, step)) for at in range(0, max(1, len(rows)), step)]
        largest = max(map(len, values))
        if largest <= max_bytes or step == 1:
            break
        step = max(1, min(step - 1, int(0.9 * step * max_bytes / largest)))
    for i, value in enumerate(values, start=1):
        yield _message(
            value,
            partition=partition,
            window_start_ns=window_start_ns,
            window_ns=window_ns,
            watermark_ns=window_start_ns + (window_ns if i == len(values) else 0),
            part=f"{i}/{len(values)}",
        )


def encode_progress(*, partition: int, window_ns: int, watermark_ns: int) -> Outgoing:
    """A message without a window: the partition has nothing to tell before `watermark_ns`."""
    return _message(
        _pack(frame(tables.WINDOWS)),
        partition=partition,
        window_start_ns=watermark_ns - window_ns,
        window_ns=window_ns,
        watermark_ns=watermark_ns,
        part="0/0",
    )


def _message(
    value: bytes, *, partition: int, window_start_ns: int, window_ns: int, watermark_ns: int, part: str
) -> Outgoing:
    headers = {
        "content-type": CONTENT_TYPE.encode(),
        "partition": b"%d" % partition,
        "window-start-ns": b"%d" % window_start_ns,
        "window-s": f"{window_ns / 1e9:.9g}".encode(),
        "watermark-ns": b"%d" % watermark_ns,
        "part": part.encode(),
    }
    return Outgoing(topic=WINDOWS, key=None, value=value, headers=headers, partition=0)


def _pack(rows: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    rows.rechunk().write_ipc_stream(out)
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(out.getvalue())


def decode_part(message: Message) -> Part:
    """The part in a message of `isotach.windows`; raises BadInput for what no window job writes."""
    if not message.value:
        raise BadInput("empty", "the message has no value")
    partition = _integer(message.headers, "partition", 0, _MAX_PARTITIONS)
    start = _integer(message.headers, "window-start-ns", 0, 2**62)
    watermark = _integer(message.headers, "watermark-ns", 0, 2**62)
    try:
        window_s = float(message.headers.get("window-s", b""))
    except ValueError:
        window_s = math.nan
    if not 0 < window_s <= 86_400:
        raise BadInput("bad_window", f"header window-s is {message.headers.get('window-s', b'')[:40]!r}")
    one, _, of = message.headers.get("part", b"").partition(b"/")
    part = _integer({"part": one}, "part", 0, _MAX_PARTS)
    parts = _integer({"part": of}, "part", 0, _MAX_PARTS)
    if part > parts or (part == 0) != (parts == 0):
        raise BadInput("bad_window", f"header part is {one[:20]!r}/{of[:20]!r}")
    rows = _unpack(message.value)
    window_ns = round(window_s * 1e9)
    if len(rows) and not (rows["window_start_ns"] == start).all():
        raise BadInput("bad_window", f"rows of other windows than {start}")
    if parts == 0 and len(rows):
        raise BadInput("bad_window", f"{len(rows)} rows in a message that tells progress only")
    return Part(
        partition=partition,
        window_start_ns=start,
        window_ns=window_ns,
        watermark_ns=watermark,
        part=part,
        parts=parts,
        rows=rows,
    )


def _integer(headers: Mapping[str, bytes], name: str, low: int, high: int) -> int:
    text = headers.get(name, b"")
    if not (text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise BadInput("bad_window", f"header {name} is {text[:40]!r}")
    return int(text)


def _unpack(value: bytes) -> pl.DataFrame:
    body = decompress(value, limit=_MAX_BODY_BYTES)
    try:
        # polars panics on some malformed input; its panic is a BaseException, and the process is unharmed
        rows = pl.read_ipc_stream(body)
    except (PolarsError, PanicException, ValueError) as error:
        raise BadInput("bad_window", f"no Arrow stream: {str(error)[:200]}") from None
    types = schema(tables.WINDOWS)
    wrong = [name for name, dtype in types.items() if name in rows.columns and rows.schema[name] != dtype]
    required = [column.name for column in tables.WINDOWS.columns if not column.nullable]
    missing = [name for name in required if name not in rows.columns or rows[name].null_count()]
    if wrong or missing:
        raise BadInput("bad_window", f"columns of another type {wrong[:5]}, missing {missing[:5]}")
    return rows.select(  # a newer window job may have more columns, an older one fewer
        pl.col(name) if name in rows.columns else pl.lit(None, dtype).alias(name) for name, dtype in types.items()
    )
