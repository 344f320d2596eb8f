"""The wire format of `isotach.telemetry`: a bare Arrow record batch, zstd around the whole value, the rest in headers.

To add a column: nothing here; the schema header is a bit mask over `metrics.SAMPLED`, which is only ever appended to.
"""

import io
import struct
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import nanoarrow
import zstandard
from nanoarrow import ipc

from telemetry.errors import BadInput
from telemetry.metrics import SAMPLED, Metric
from telemetry.records import SampleBatch

ARROW = "application/vnd.isotach.arrow+zstd"
JSON = "application/json"
SCHEMA_VERSION = "isotach.telemetry/1"
MAX_VALUE_BYTES = 1 << 20  #: compressed; Kafka's own default limit
MAX_BODY_BYTES = 16 << 20  #: decompressed; what a batch may grow to
MAX_GPUS = 1_024  #: GPUs in one message
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_KEY_COLUMNS: tuple[tuple[str, str], ...] = (("time_ns", "int64"), ("gpu", "uint16"))
_FORMATS: Mapping[str, tuple[str, int]] = {  # of a buffer: array's and struct's letters, bytes a value
    "uint8": ("B", 1),
    "uint16": ("H", 2),
    "uint32": ("IL", 4),
    "uint64": ("QL", 8),
    "int16": ("h", 2),
    "int64": ("ql", 8),
    "float32": ("f", 4),
    "float64": ("d", 8),
}
_RECORD_BATCH = 3  # MessageHeader.RecordBatch in Arrow's Message.fbs
_MAX_METADATA_BYTES = 64 << 10  #: of a batch with every column there is: 3 KiB
_PREFIX = struct.Struct("<II")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A message ready for any transport: key (the node), headers, value."""

    key: bytes
    headers: Mapping[str, bytes]
    value: bytes


class Encoder:
    """Turns sample batches into messages; holds one compressor, so one a thread."""

    def __init__(self, *, level: int = 1) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)

    def encode(self, batch: SampleBatch) -> Encoded:
        """One message; raises ValueError for a batch that its collector built wrongly."""
        mask = _mask(tuple(batch.columns))
        if not len(batch) or len(batch.gpus) > MAX_GPUS:
            raise ValueError(f"batch of {batch.node}: {len(batch)} rows, {len(batch.gpus)} GPUs")
        columns = [batch.time_ns, batch.gpu, *(batch.columns[metric.name] for metric in metrics_of(mask))]
        if any(isinstance(values, list | tuple) for values in columns):
            body = _built(mask, len(batch), columns)
        else:
            body = _joined(batch.node, mask, len(batch), columns)
        headers = {
            "content-type": ARROW.encode(),
            "schema": f"{SCHEMA_VERSION};{mask:x}".encode(),
            "node": batch.node.encode(),
            "gpus": ",".join(batch.gpus).encode(),
            "interval-s": f"{batch.interval_s:g}".encode(),
            "source": batch.source.encode(),
        }
        return Encoded(key=batch.node.encode(), headers=headers, value=self._compressor.compress(body))


@lru_cache(maxsize=256)
def _mask(names: tuple[str, ...]) -> int:
    unknown = set(names) - {metric.name for metric in SAMPLED}
    if unknown:
        raise ValueError(f"batch with unknown columns {sorted(unknown)}")
    return sum(1 << i for i, metric in enumerate(SAMPLED) if metric.name in names)


def _built(mask: int, rows: int, columns: Sequence[Sequence[Any]]) -> bytes:
    """The record batch as nanoarrow builds it, with nulls where a list holds None."""
    children = [_array(values, name) for values, name in zip(columns, _types_of(mask), strict=True)]
    struct_array = nanoarrow.c_array_from_buffers(_schema(mask), rows, [None], children=children)
    return _stream(nanoarrow.c_array_stream(struct_array))[1]


def _joined(node: str, mask: int, rows: int, columns: Sequence[Any]) -> bytes:
    """The same bytes ten times faster: batches without nulls and of equal shape differ in their buffers only."""
    frame, slots = _frame(mask, rows)
    parts: list[Any] = [frame]
    for values, (name, formats, size, padding) in zip(columns, slots, strict=True):
        view = memoryview(values)
        if view.nbytes != size or view.format not in formats or not view.c_contiguous:
            raise ValueError(
                f"batch of {node}: {name} has {view.nbytes} bytes of format {view.format!r} for {rows} rows"
            )
        parts += (view, padding)
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _frame(mask: int, rows: int) -> tuple[bytes, tuple[tuple[str, str, int, bytes], ...]]:
    """What goes before the buffers of a batch of this shape, and for each its name, formats, bytes and padding."""
    names = _types_of(mask)
    body = _built(mask, rows, [array(_FORMATS[name][0][0], bytes(_FORMATS[name][1] * rows)) for name in names])
    found = _layout(body[: 8 + _PREFIX.unpack_from(body)[1]], mask, len(body))
    data = [(offset, length) for _, _, offset, length in found.buffers]
    ends = [*(offset for offset, _ in data[1:]), len(body) - found.start]
    slots = tuple(
        (column, _FORMATS[name][0], length, bytes(end - offset - length))
        for column, name, (offset, length), end in zip(columns_of(mask), names, data, ends, strict=True)
    )
    return body[: found.start], slots


@lru_cache(maxsize=256)
def metrics_of(mask: int) -> tuple[Metric, ...]:
    """The sampled metrics whose bits are set, in wire order."""
    return tuple(metric for i, metric in enumerate(SAMPLED) if mask >> i & 1)


def columns_of(mask: int) -> tuple[str, ...]:
    """Column names of a batch with this mask, in wire order: time_ns, gpu, then metrics."""
    return tuple(name for name, _ in _KEY_COLUMNS) + tuple(metric.name for metric in metrics_of(mask))


def parse_schema(header: str) -> int:
    """The mask in a schema header; raises BadInput if the schema is another one or newer than this program."""
    version, _, mask_text = header.partition(";")
    if version != SCHEMA_VERSION:
        raise BadInput("unknown_schema", f"schema {header[:80]!r}; this program reads {SCHEMA_VERSION}")
    try:
        mask = int(mask_text, 16)
    except ValueError:
        raise BadInput("unknown_schema", f"schema {header[:80]!r} has no column mask") from None
    if not 0 <= mask < 1 << len(SAMPLED):
        raise BadInput("unknown_schema", f"schema {header[:80]!r} has newer columns: upgrade this side first")
    return mask


@lru_cache(maxsize=256)
def _types_of(mask: int) -> tuple[str, ...]:
    return tuple(name for _, name in _KEY_COLUMNS) + tuple(metric.type for metric in metrics_of(mask))


@lru_cache(maxsize=256)
def _schema(mask: int) -> Any:
    fields = {name: _type(type_name) for name, type_name in _KEY_COLUMNS}
    return nanoarrow.c_schema(nanoarrow.struct(fields | {m.name: _type(m.type) for m in metrics_of(mask)}))


def _type(name: str) -> Any:
    return getattr(nanoarrow, name)()


@lru_cache(maxsize=256)
def schema_prefix(mask: int) -> bytes:
    """The IPC schema message that goes before bare batches of this mask to make a readable stream."""
    return _stream(nanoarrow.c_array_stream([], schema=_schema(mask)))[0]


def _stream(arrays: Any) -> tuple[bytes, bytes]:
    """The schema message of an IPC stream, and the record batches after it without the end marker."""
    out = io.BytesIO()
    with ipc.StreamWriter.from_writable(out) as writer:
        writer.write_stream(arrays)
    stream = out.getvalue()
    split = 8 + int(struct.unpack_from("<I", stream, 4)[0])
    return stream[:split], stream[split : -len(END_OF_STREAM)]


def _array(values: Sequence[Any], type_name: str) -> Any:
    if isinstance(values, list | tuple):
        return nanoarrow.c_array(values, _type(type_name))
    return nanoarrow.c_array_from_buffers(_type(type_name), len(values), [None, values])


def decompress(value: bytes, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body inside a zstd value; raises BadInput for what is no zstd, is damaged, or would grow beyond `limit`."""
    if len(value) > MAX_VALUE_BYTES:
        raise BadInput("too_large", f"value of {len(value)} bytes; at most {MAX_VALUE_BYTES}")
    size = -1
    try:
        size = zstandard.frame_content_size(value)
        if size > limit:
            raise BadInput("decompression_bomb", f"value says it grows to {size} bytes; at most {limit}")
        return _decompressor().decompress(value, max_output_size=limit, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        if size < 0 and _grows_beyond(value, limit):
            raise BadInput("decompression_bomb", f"value of {len(value)} bytes grows beyond {limit}") from None
        raise BadInput("not_zstd", f"value of {len(value)} bytes: {error}") from None


def _grows_beyond(value: bytes, limit: int) -> bool:
    """Whether a frame that does not say its size has more than `limit` bytes inside."""
    try:
        with _decompressor().stream_reader(value) as reader:
            return len(reader.read(limit + 1)) > limit
    except zstandard.ZstdError:
        return False


_local = threading.local()  # a decompressor costs more to make than a batch to read, and serves one thread


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Where a batch keeps its buffers. Batches of equal frame share one object, so compare with `is`.

    `buffers` holds, for each column, offset and bytes of its validity bits (0 bytes: no nulls) and of its values,
    counted from `start`; `nulls` the nulls of each column.
    """

    rows: int
    start: int
    nulls: tuple[int, ...]
    buffers: tuple[tuple[int, int, int, int], ...]
    plain: bool  #: no column has validity bits


def check_body(body: bytes, mask: int) -> int:
    """Rows of a bare record batch, after checking its frame against the schema; raises BadInput."""
    return layout(body, mask).rows


def layout(body: bytes, mask: int) -> Layout:
    """Where the buffers of a bare record batch are, after checking its frame against the schema; raises BadInput.

    Reads the few fields of Arrow's Message.fbs that a decoder would trust: a batch that passes has the right number
    of columns and buffers, equal lengths, buffers that lie inside the body and are long enough for its rows, and as
    many nulls as it says.
    """
    if len(body) < 8:
        raise BadInput("truncated", f"body of {len(body)} bytes is no Arrow record batch")
    marker, metadata_length = _PREFIX.unpack_from(body)
    if marker != 0xFFFF_FFFF or metadata_length > len(body) - 8:
        raise BadInput("truncated", "no Arrow message at the start of the body")
    if metadata_length > _MAX_METADATA_BYTES:
        raise BadInput("wrong_schema", f"Arrow metadata of {metadata_length} bytes; at most {_MAX_METADATA_BYTES}")
    found = _layout(body[: 8 + metadata_length], mask, len(body))
    if not found.plain:
        _check_validity(body, found)
    return found


@lru_cache(maxsize=512)
def _layout(head: bytes, mask: int, body_bytes: int) -> Layout:
    try:
        rows, nodes, buffers, body_length = _read_frame(head, body_bytes)
    except (struct.error, IndexError, OverflowError):
        raise BadInput("truncated", f"body of {body_bytes} bytes is no Arrow record batch") from None
    types = _types_of(mask)
    if len(nodes) != len(types) or len(buffers) != 2 * len(types):
        raise BadInput(
            "wrong_schema", f"batch has {len(nodes)} columns and {len(buffers)} buffers, schema {len(types)}"
        )
    if rows < 0 or any(length != rows or not 0 <= nulls <= rows for length, nulls in nodes):
        raise BadInput("wrong_schema", "columns differ in length")
    if any(offset < 0 or length < 0 or offset + length > body_length for offset, length in buffers):
        raise BadInput("truncated", "a buffer reaches outside the body")
    places = tuple((*validity, *data) for validity, data in zip(buffers[::2], buffers[1::2], strict=True))
    bits = (rows + 7) // 8
    for name, (_, nulls), (_, validity_bytes, _, data_bytes) in zip(types, nodes, places, strict=True):
        needed = rows * _FORMATS[name][1]
        if data_bytes < needed or (validity_bytes < bits and (validity_bytes or nulls)):
            raise BadInput("truncated", f"a buffer is too short for {rows} rows")
        if data_bytes > needed + 63:  # writers may pad to 64 bytes
            raise BadInput("wrong_schema", f"a buffer of {data_bytes} bytes for {rows} rows of {name}")
    return Layout(
        rows=rows,
        start=len(head),
        nulls=tuple(nulls for _, nulls in nodes),
        buffers=places,
        plain=not any(validity_bytes for _, validity_bytes, _, _ in places),
    )


def _check_validity(body: bytes, found: Layout) -> None:
    """Raises BadInput if a column has other nulls than it says: a decoder would trust the number."""
    for nulls, (offset, size, _, _) in zip(found.nulls, found.buffers, strict=True):
        if size:
            at = found.start + offset
            bits = int.from_bytes(body[at : at + (found.rows + 7) // 8], "little") & ((1 << found.rows) - 1)
            if bits.bit_count() != found.rows - nulls:
                raise BadInput("wrong_schema", f"a column says it has {nulls} nulls and has another number of them")


def _read_frame(head: bytes, body_bytes: int) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]], int]:
    start = 8
    message = start + struct.unpack_from("<I", head, start)[0]
    header_type = _field(head, message, 1, "<B")
    if header_type != _RECORD_BATCH:
        raise BadInput("wrong_schema", f"Arrow message of type {header_type} where a record batch belongs")
    body_length = _field(head, message, 3, "<q")
    if body_length < 0 or len(head) + body_length != body_bytes:
        raise BadInput("truncated", f"body of {body_bytes} bytes says it has {len(head) + body_length}")
    batch = _pointer(head, message, 2)
    if _slot(head, batch, 3):
        raise BadInput("wrong_schema", "Arrow buffer compression is not used here: zstd goes around the whole value")
    rows = _field(head, batch, 0, "<q")
    return rows, _pairs(head, _pointer(head, batch, 1)), _pairs(head, _pointer(head, batch, 2)), body_length


def _slot(body: bytes, table: int, index: int) -> int:
    """Offset of a flatbuffer field inside its table, 0 if absent."""
    vtable = table - struct.unpack_from("<i", body, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    size = struct.unpack_from("<H", body, vtable)[0]
    position = 4 + 2 * index
    return struct.unpack_from("<H", body, vtable + position)[0] if position < size else 0


def _field(body: bytes, table: int, index: int, fmt: str) -> int:
    slot = _slot(body, table, index)
    return int(struct.unpack_from(fmt, body, table + slot)[0]) if slot else 0


def _pointer(body: bytes, table: int, index: int) -> int:
    slot = _slot(body, table, index)
    if not slot:
        raise IndexError(index)
    return table + slot + int(struct.unpack_from("<I", body, table + slot)[0])


def _pairs(body: bytes, vector: int) -> list[tuple[int, int]]:
    count = struct.unpack_from("<I", body, vector)[0]
    if count > 4 * (len(SAMPLED) + len(_KEY_COLUMNS)):
        raise BadInput("wrong_schema", f"batch with {count} columns or buffers")
    numbers = struct.unpack_from(f"<{2 * count}q", body, vector + 4)
    return list(zip(numbers[::2], numbers[1::2], strict=True))
