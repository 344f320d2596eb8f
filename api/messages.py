"""What is posted, checked before it is accepted: the body of each topic as messages for the log.

To accept another topic: one line in `TOPICS` and its check. The rules have the names of docs/deadletters.md.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from telemetry.codec import ARROW, JSON, MAX_GPUS, check_body, decompress
from telemetry.errors import BadInput
from telemetry.head import check_interval, check_name, read_head
from telemetry.metrics import SAMPLED
from telemetry.rows import check_event, check_inventory, check_jobs, check_measurement

TELEMETRY = "isotach.telemetry"
_SAMPLED = frozenset(metric.name for metric in SAMPLED)


class Checked(NamedTuple):
    """One message for the log."""

    key: bytes
    headers: Mapping[str, bytes]
    value: bytes


def check(topic: str, key: bytes | None, headers: Mapping[str, bytes], body: bytes) -> list[Checked]:
    """The messages in a request's body, at least one; raises BadInput naming what is wrong, and where in a list."""
    kind = headers.get("content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if not body:
        raise BadInput("empty", "the request has no body")
    if topic == TELEMETRY:
        is_json = kind == JSON or (kind != ARROW and body.lstrip()[:1] == b"{")
        if not is_json and kind != ARROW:
            raise BadInput("unknown_content_type", f"content type {kind[:80]!r}; {ARROW} or {JSON}")
        node = _checked_json(_parsed(body)) if is_json else _checked_arrow(headers, body)
        sent = dict(headers) | {"content-type": (JSON if is_json else ARROW).encode()}
        return [Checked(_same_key(key, node), sent, body)]
    if kind not in (JSON, "", "application/x-www-form-urlencoded"):  # the last is what curl sends unless told
        raise BadInput("unknown_content_type", f"content type {kind[:80]!r}; {topic} takes {JSON}")
    sent = dict(headers) | {"content-type": JSON.encode()}
    parsed = _parsed(body)
    if not isinstance(parsed, list):
        return [Checked(_key(topic, key, parsed), sent, body)]
    if not parsed:
        raise BadInput("empty", "the list has no objects")
    out = []
    for i, one in enumerate(parsed):
        try:
            out.append(Checked(_key(topic, None, one), sent, orjson.dumps(one)))
        except BadInput as error:
            raise BadInput(error.rule, f"[{i}]: {error.detail}") from None
    return out


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInput("not_json", f"body of {len(body)} bytes: {error}") from None


def _key(topic: str, key: bytes | None, message: object) -> bytes:
    """The key of a checked message: given, or made of its content; an inventory's and that of jobs is the node."""
    made = TOPICS[topic](message)
    return _same_key(key, made) if topic in ("isotach.inventory", "isotach.jobs") else key or made.encode()


def _same_key(key: bytes | None, node: str) -> bytes:
    if key and key != node.encode():
        raise BadInput("wrong_key", f"Isotach-Key is {key[:80]!r}, the message is of node {node!r}")
    return node.encode()


def _event(message: object) -> str:
    row = check_event(message)
    return str(row["gpu_uuid"] or row["node"])


def _inventory(message: object) -> str:
    return str(check_inventory(message)[0]["node"])


def _measurement(message: object) -> str:
    return str(check_measurement(message)["subject"])


def _jobs(message: object) -> str:
    return check_jobs(message)[0]


def _checked_arrow(headers: Mapping[str, bytes], body: bytes) -> str:
    """The node of an Arrow message whose headers and frame are right."""
    head = read_head(headers.get("schema"), headers.get("node"), headers.get("gpus"), headers.get("interval-s"))
    if not check_body(decompress(body), head.mask):
        raise BadInput("empty", "the batch has no rows")
    return head.node


def _checked_json(message: object) -> str:
    """The node of a JSON telemetry message whose fields have the right types; ranges are the decoder's matter."""
    if not isinstance(message, dict):
        raise BadInput("not_an_object", f"expected an object, got {type(message).__name__}")
    node = message.get("node")
    if not isinstance(node, str):
        raise BadInput("bad_node", f"node must be text, got {type(node).__name__}")
    check_name(node, "bad_node")
    interval = message.get("interval_s")
    if isinstance(interval, bool) or not isinstance(interval, int | float):
        raise BadInput("bad_interval", f"interval_s must be a number, got {type(interval).__name__}")
    check_interval(interval)
    samples = message.get("samples")
    if not isinstance(samples, list):
        raise BadInput("wrong_type", f"samples must be a list, got {type(samples).__name__}")
    if not samples:
        raise BadInput("missing_field", "samples is empty")
    gpus = {_checked_sample(sample, f"samples[{i}]") for i, sample in enumerate(samples)}
    if len(gpus) > MAX_GPUS:
        raise BadInput("bad_gpus", f"{len(gpus)} GPUs; at most {MAX_GPUS}")
    return node


def _checked_sample(sample: object, where: str) -> str:
    if not isinstance(sample, dict):
        raise BadInput("not_an_object", f"{where} must be an object, got {type(sample).__name__}")
    gpu_uuid, time_ns = sample.get("gpu_uuid"), sample.get("time_ns")
    if gpu_uuid is None or time_ns is None:
        raise BadInput("missing_field", f"{where}.{'gpu_uuid' if gpu_uuid is None else 'time_ns'} is required")
    if not isinstance(gpu_uuid, str):
        raise BadInput("wrong_type", f"{where}.gpu_uuid must be text, got {type(gpu_uuid).__name__}")
    integral = isinstance(time_ns, int) or (isinstance(time_ns, float) and time_ns.is_integer())
    if isinstance(time_ns, bool) or not integral:
        raise BadInput("wrong_type", f"{where}.time_ns must be an integer, got {time_ns!r:.80}")
    for name in _SAMPLED & sample.keys():
        value = sample[name]
        if value is not None and not isinstance(value, int | float):
            raise BadInput("wrong_type", f"{where}.{name} must be a number, got {type(value).__name__}")
    return check_name(gpu_uuid, "bad_gpus")


TOPICS: Mapping[str, Callable[[object], str]] = MappingProxyType(
    {
        TELEMETRY: _checked_json,
        "isotach.events": _event,
        "isotach.inventory": _inventory,
        "isotach.measurements": _measurement,
        "isotach.jobs": _jobs,
    }
)
"""Topics that may be posted to, and what checks a JSON message of each and returns its key."""
