"""Samples from JSON messages: for anyone who wants to produce without Arrow.

To accept another field of the message: `_read`; metrics come from `telemetry/metrics.py` by themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from telemetry.errors import BadInput
from telemetry.metrics import SAMPLED, ArrowType, Metric

_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in SAMPLED}
_TOP: Mapping[ArrowType, int] = {
    "uint8": 2**8 - 1,
    "uint16": 2**16 - 1,
    "uint32": 2**32 - 1,
    "uint64": 2**64 - 1,
    "int16": 2**15 - 1,
    "int64": 2**63 - 1,
}


@dataclass(slots=True, kw_only=True)
class JsonSamples:
    """One JSON message, column by column.

    `columns` holds, for each metric that occurs, as many values as there are rows; garbage is None there and counted
    in `garbage` by row and metric. `unknown` counts values under names that are no metric.
    """

    node: str
    interval_s: float
    gpu_uuid: list[str] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    columns: dict[str, list[int | float | None]] = field(default_factory=dict)
    garbage_rows: list[int] = field(default_factory=list)
    garbage: dict[str, int] = field(default_factory=dict)
    unknown: int = 0


def parse_json(value: bytes) -> Any:
    """The JSON value; raises BadInput. NaN and infinity are no JSON."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadInput("not_json", f"value of {len(value)} bytes: {error}") from None


def read_json(value: bytes) -> JsonSamples:
    """The samples of one message, names and interval unchecked; raises BadInput naming the field."""
    message = parse_json(value)
    if not isinstance(message, dict):
        raise BadInput("not_an_object", f"expected an object, got {type(message).__name__}")
    node = message.get("node")
    if not isinstance(node, str):
        raise BadInput("bad_node", f"node must be text, got {type(node).__name__}")
    interval = message.get("interval_s")
    if isinstance(interval, bool) or not isinstance(interval, int | float):
        raise BadInput("bad_interval", f"interval_s must be a number, got {type(interval).__name__}")
    samples = message.get("samples")
    if not isinstance(samples, list):
        raise BadInput("wrong_type", f"samples must be a list, got {type(samples).__name__}")
    if not samples:
        raise BadInput("missing_field", "samples is empty")
    out = JsonSamples(node=node, interval_s=float(interval))
    for row, sample in enumerate(samples):
        _read_sample(out, row, sample)
    for values in out.columns.values():
        values.extend([None] * (len(samples) - len(values)))
    return out


def _read_sample(out: JsonSamples, row: int, sample: object) -> None:
    where = f"samples[{row}]"
    if not isinstance(sample, dict):
        raise BadInput("not_an_object", f"{where} must be an object, got {type(sample).__name__}")
    gpu_uuid, time_ns = sample.get("gpu_uuid"), sample.get("time_ns")
    if gpu_uuid is None or time_ns is None:
        raise BadInput("missing_field", f"{where}.{'gpu_uuid' if gpu_uuid is None else 'time_ns'} is required")
    if not isinstance(gpu_uuid, str):
        raise BadInput("wrong_type", f"{where}.gpu_uuid must be text, got {type(gpu_uuid).__name__}")
    if isinstance(time_ns, float) and time_ns.is_integer():
        time_ns = int(time_ns)
    if isinstance(time_ns, bool) or not isinstance(time_ns, int):
        raise BadInput("wrong_type", f"{where}.time_ns must be an integer, got {type(time_ns).__name__}")
    out.gpu_uuid.append(gpu_uuid)
    out.time_ns.append(max(-(2**63), min(time_ns, 2**63 - 1)))
    garbage = 0
    for name, value in sample.items():
        metric = _BY_NAME.get(name)
        if metric is None:
            out.unknown += name not in ("gpu_uuid", "time_ns")
            continue
        if value is None:
            continue
        checked = _check(metric, value, where)
        if checked is None:
            garbage += 1
            out.garbage[name] = out.garbage.get(name, 0) + 1
            continue
        column = out.columns.setdefault(name, [])
        column.extend([None] * (row - len(column)))
        column.append(checked)
    out.garbage_rows.append(garbage)


def _check(metric: Metric, value: object, where: str) -> int | float | None:
    """The value in the metric's type, None if it is outside the valid range; raises BadInput for a wrong type."""
    if isinstance(value, bool):
        if metric.unit != "bool":
            raise BadInput("wrong_type", f"{where}.{metric.name} must be a number, got a truth value")
        return int(value)
    if not isinstance(value, int | float):
        raise BadInput("wrong_type", f"{where}.{metric.name} must be a number, got {type(value).__name__}")
    top = _TOP.get(metric.type)
    if top is not None and isinstance(value, float) and math.isfinite(value):
        if not value.is_integer():
            raise BadInput("wrong_type", f"{where}.{metric.name} must be an integer, got {value}")
        value = int(value)
    low = metric.low if metric.low is not None else -math.inf
    high = min(math.inf if metric.high is None else metric.high, math.inf if top is None else top)
    if not low <= value <= high:
        return None
    return float(value) if top is None else value
