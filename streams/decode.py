"""Telemetry messages to one frame of samples, and what was refused with the rule that refused it.

To add a check of a message: here, its rule in `streams/deadletter.py`; of a value: its range in `telemetry/metrics.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import polars as pl
import zstandard

from analytics.frames import SAMPLE_KEYS, dtype
from streams import Message
from streams.deadletter import Rejected
from streams.samples_arrow import Body, read_bodies
from streams.samples_json import JsonSamples, read_json
from telemetry.codec import (
    ARROW,
    JSON,
    MAX_BODY_BYTES,
    MAX_GPUS,
    MAX_VALUE_BYTES,
    decompress,
    layout,
)
from telemetry.errors import BadInput
from telemetry.head import Head, check_interval, check_name, read_head
from telemetry.metrics import METRICS, SAMPLED

MIN_TIME_NS = 946_684_800 * 10**9  #: 2000-01-01
_REMEMBERED_BYTES = 1_024  #: of headers, above which they are read anew: what strangers send stays small
MAX_TIME_NS = 4_102_444_800 * 10**9  #: 2100-01-01
_KEYS = ("message", "gpu_uuid", "node", "time_ns", "interval_s", "rejected_values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What some messages held.

    `rows`: one row per sample, in message order: `message` (index of its message, UInt32), `gpu_uuid`, `node`,
    `time_ns`, `interval_s`, `rejected_values` (values made null in that row), then those sampled metrics that occur at
    all, in wire order and their own types. `rejected`: in message order. `garbage`: values made null, by metric.
    `unknown_values`: values of JSON samples under names that are no metric.
    """

    rows: pl.DataFrame
    rejected: list[Rejected]
    garbage: Mapping[str, int] = field(default_factory=dict)
    unknown_values: int = 0


def slices(messages: Sequence[Message], *, max_bytes: int = 256 << 20) -> Iterator[Sequence[Message]]:
    """The messages in runs that decompress to at most about `max_bytes` each, so that no batch can fill the memory."""
    start, total = 0, 0
    for i, message in enumerate(messages):
        size = _body_bytes(message.value or b"")
        if total + size > max_bytes and i > start:
            yield messages[start:i]
            start, total = i, 0
        total += size
    if start < len(messages):
        yield messages[start:] if start else messages


def _body_bytes(value: bytes) -> int:
    try:
        size = int(zstandard.frame_content_size(value))
    except zstandard.ZstdError:
        return len(value)
    return MAX_BODY_BYTES if size < 0 else min(size, MAX_BODY_BYTES)


def decode(messages: Sequence[Message]) -> Decoded:
    """The samples of messages of `isotach.telemetry`. Never raises for what a message holds."""
    heads: dict[int, Head] = {}
    bodies: list[Body] = []
    texts: dict[int, JsonSamples] = {}
    rejected: list[Rejected] = []
    for i, message in enumerate(messages):
        try:
            value, kind = _content(message)
            if kind == JSON:
                texts[i] = _checked_json(value)
            else:
                head = _checked_head(message.headers)
                data = decompress(value)
                bodies.append(Body(message=i, mask=head.mask, layout=layout(data, head.mask), data=data))
                heads[i] = head
        except BadInput as error:
            rejected.append(Rejected(message=i, rule=error.rule, detail=error.detail))
    frames, refused = read_bodies(bodies)
    rejected += [Rejected(message=i, rule="unreadable", detail="the Arrow reader refused the body") for i in refused]
    garbage: dict[str, int] = {}
    parts = [_ranged(_named(frame, heads, rejected), garbage) for frame in frames]
    if texts:
        parts.append(_rows_of(texts))
        for samples in texts.values():
            for name, count in samples.garbage.items():
                garbage[name] = garbage.get(name, 0) + count
    rows = _timely(_ordered(parts), rejected)
    rejected.sort(key=lambda one: one.message)
    unknown = sum(samples.unknown for samples in texts.values())
    return Decoded(rows=rows, rejected=rejected, garbage=garbage, unknown_values=unknown)


def _content(message: Message) -> tuple[bytes, str]:
    """The value, and the content type: ARROW or JSON."""
    value = message.value
    if not value:
        raise BadInput("empty", "the message has no value")
    given = message.headers.get("content-type")
    kind = (given or b"").decode("latin-1").partition(";")[0].strip().lower()
    if kind == ARROW or (kind == JSON or (given is None and value.lstrip()[:1] == b"{")):
        if len(value) > MAX_VALUE_BYTES:
            raise BadInput("too_large", f"value of {len(value)} bytes; at most {MAX_VALUE_BYTES}")
        return value, ARROW if kind == ARROW else JSON
    raise BadInput("unknown_content_type", f"content type {kind[:80]!r}; {ARROW} or {JSON}")


def _checked_head(headers: Mapping[str, bytes]) -> Head:
    given = headers.get("schema"), headers.get("node"), headers.get("gpus"), headers.get("interval-s")
    if sum(len(text or b"") for text in given) > _REMEMBERED_BYTES:
        return read_head(*given)
    return _remembered_head(*given)


_remembered_head = lru_cache(maxsize=16_384)(read_head)  # a node says the same with every message


def _checked_json(value: bytes) -> JsonSamples:
    samples = read_json(value)
    check_name(samples.node, "bad_node")
    check_interval(samples.interval_s)
    gpus = set(samples.gpu_uuid)
    if len(gpus) > MAX_GPUS:
        raise BadInput("bad_gpus", f"{len(gpus)} GPUs; at most {MAX_GPUS}")
    for gpu in gpus:
        check_name(gpu, "bad_gpus")
    return samples


def _named(frame: pl.DataFrame, heads: Mapping[int, Head], rejected: list[Rejected]) -> pl.DataFrame:
    """The frame with names for `gpu` and `message`; rows whose index names no GPU go to `rejected`."""
    if not frame.height:
        return frame.drop("gpu").with_columns(
            pl.lit("").alias("gpu_uuid"), pl.lit("").alias("node"), pl.lit(0.0, pl.Float32).alias("interval_s")
        )
    last = int(frame["message"][-1]) + 1
    counts, first = np.zeros(last, dtype=np.int64), np.zeros(last, dtype=np.int64)
    gpus: list[str] = []
    nodes, intervals = [""] * last, np.zeros(last, dtype=np.float32)
    for i in frame["message"].unique().to_list():
        head = heads[i]
        first[i], counts[i], nodes[i], intervals[i] = len(gpus), len(head.gpus), head.node, head.interval_s
        gpus.extend(head.gpus)
    message = frame["message"].to_numpy()
    bad = frame["gpu"].is_null().to_numpy() | (frame["gpu"].fill_null(0).to_numpy() >= counts[message])
    if bad.any():
        rejected += refuse(frame.filter(pl.Series(bad)), "unknown_gpu", "the row's index is outside the list of GPUs")
        frame = frame.filter(pl.Series(~bad))
        message = frame["message"].to_numpy()
    at = first[message] + frame["gpu"].to_numpy()
    return frame.drop("gpu").with_columns(
        pl.Series("gpu_uuid", gpus, dtype=pl.String).gather(at),
        pl.Series("node", nodes, dtype=pl.String).gather(message),
        pl.Series("interval_s", intervals[message]),
    )


def _ranged(frame: pl.DataFrame, garbage: dict[str, int]) -> pl.DataFrame:
    """The frame with values outside their metric's range made null and counted in `rejected_values`."""
    valid = {name: _valid(name) for name in frame.columns if name in METRICS}
    checks = {name: expr for name, expr in valid.items() if expr is not None}
    fine = frame.select(expr.all(ignore_nulls=True).alias(name) for name, expr in checks.items())
    broken = [name for name in fine.columns if not fine[name][0]] if frame.height else []
    if not broken:
        return frame.with_columns(pl.lit(0, pl.UInt16).alias("rejected_values"))
    masks = frame.select((~checks[name]).fill_null(False).alias(name) for name in broken)
    for name in broken:
        garbage[name] = garbage.get(name, 0) + int(masks[name].sum())
    return frame.with_columns(
        *(pl.when(~masks[name]).then(frame[name]).alias(name) for name in broken),
        masks.sum_horizontal().cast(pl.UInt16).alias("rejected_values"),
    )


def _valid(name: str) -> pl.Expr | None:
    """True where a value lies in the metric's range (false for NaN), None if every value of its type does."""
    metric, column = METRICS[name], pl.col(name)
    low, high = metric.low, metric.high
    if metric.type.startswith("uint"):
        low = low if low else None
        high = None if high is not None and high >= 2 ** int(metric.type[4:]) - 1 else high
    if low is None and high is None:
        return column.is_finite() if metric.type.startswith("float") else None
    if low is None:
        return column <= high
    if high is None:
        return column >= low
    return column.is_between(low, high)


def _rows_of(texts: Mapping[int, JsonSamples]) -> pl.DataFrame:
    """The samples of JSON messages, already ranged, as one frame."""
    names = [metric for metric in SAMPLED if any(metric.name in samples.columns for samples in texts.values())]
    columns: dict[str, pl.Series] = {}
    for metric in names:
        values: list[int | float | None] = []
        for samples in texts.values():
            values.extend(samples.columns.get(metric.name) or [None] * len(samples.time_ns))
        columns[metric.name] = pl.Series(metric.name, values, dtype=dtype(metric.type))
    sizes = [len(samples.time_ns) for samples in texts.values()]
    message = np.repeat(np.array(list(texts), dtype=np.uint32), sizes)
    at = np.repeat(np.arange(len(texts)), sizes)
    keys = [
        pl.Series("message", message),
        pl.Series("gpu_uuid", [gpu for s in texts.values() for gpu in s.gpu_uuid], dtype=pl.String),
        pl.Series("node", [s.node for s in texts.values()], dtype=pl.String).gather(at),
        pl.Series("time_ns", [t for s in texts.values() for t in s.time_ns], dtype=pl.Int64),
        pl.Series("interval_s", [s.interval_s for s in texts.values()], dtype=pl.Float32).gather(at),
        pl.Series("rejected_values", [n for s in texts.values() for n in s.garbage_rows], dtype=pl.UInt16),
    ]
    return pl.DataFrame([*keys, *columns.values()])


def _ordered(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The parts as one frame in message order, keys first, then the metrics in wire order."""
    if not parts:
        types = {"message": pl.UInt32(), **SAMPLE_KEYS}
        return pl.DataFrame(schema={name: types[name] for name in _KEYS})
    rows = parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal")
    message = rows["message"].to_numpy()
    if len(parts) > 1 and (message[1:] < message[:-1]).any():
        rows = rows.sort("message", maintain_order=True)
    present = set(rows.columns)
    return rows.select(*_KEYS, *(metric.name for metric in SAMPLED if metric.name in present))


def _timely(rows: pl.DataFrame, rejected: list[Rejected]) -> pl.DataFrame:
    """The rows whose time is a plausible one; the others go to `rejected`."""
    fine = rows["time_ns"].is_between(MIN_TIME_NS, MAX_TIME_NS, closed="left").fill_null(False)
    if fine.all():
        return rows
    rejected += refuse(rows.filter(~fine), "bad_time", "the row's time is missing or outside the years 2000 to 2099")
    return rows.filter(fine)


def refuse(rows: pl.DataFrame, rule: str, detail: str) -> list[Rejected]:
    """One rejection for each message that has rows here; `message` itself is left out of the rows."""
    return [
        Rejected(message=int(key), rule=rule, detail=detail, rows=part.drop("message"))
        for (key,), part in rows.group_by("message", maintain_order=True)
    ]
