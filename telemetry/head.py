"""The headers of a telemetry message, and the names in it, checked: the same for the decoder and for what is posted.

To add a header: a field of `Head`, its check in `read_head`, its rule in docs/deadletters.md.
"""

from dataclasses import dataclass

from telemetry.codec import MAX_GPUS, parse_schema
from telemetry.errors import BadInput

MAX_NAME = 253  #: characters of a node's or a GPU's name: what DNS allows
MAX_INTERVAL_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Checked headers of one Arrow message."""

    node: str
    gpus: list[str]
    interval_s: float
    mask: int


def read_head(schema: bytes | None, node: bytes | None, gpus: bytes | None, interval_s: bytes | None) -> Head:
    """The headers of these names, None where a header is missing; raises BadInput."""
    mask = parse_schema(_text(schema, "schema", "unknown_schema"))
    name = check_name(_text(node, "node", "bad_node"), "bad_node")
    listed = _text(gpus, "gpus", "bad_gpus")
    names = listed.split(",")
    if len(names) > MAX_GPUS or len(set(names)) != len(names):
        raise BadInput("bad_gpus", f"{len(names)} GPUs, {len(set(names))} of them distinct; at most {MAX_GPUS}")
    if not listed.isprintable() or not all(names) or len(max(names, key=len)) > MAX_NAME:
        raise BadInput("bad_gpus", f"a name in {listed[:80]!r} is empty, unprintable or over {MAX_NAME} characters")
    interval = _text(interval_s, "interval-s", "bad_interval")
    try:
        seconds = float(interval)
    except ValueError:
        raise BadInput("bad_interval", f"interval-s is {interval[:80]!r}") from None
    return Head(node=name, gpus=names, interval_s=check_interval(seconds), mask=mask)


def check_name(name: str, rule: str) -> str:
    """The name, if it can name a node or a GPU; raises BadInput."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise BadInput(rule, f"name {name[:80]!r} of {len(name)} characters; 1 to {MAX_NAME}, printable")
    return name


def check_interval(interval_s: float) -> float:
    """The seconds between two samples of a GPU, if they can be that; raises BadInput."""
    if not 0 < interval_s <= MAX_INTERVAL_S:  # also refuses NaN
        raise BadInput("bad_interval", f"interval is {interval_s} s; above 0 and up to {MAX_INTERVAL_S:g}")
    return interval_s


def _text(value: bytes | None, name: str, absent: str) -> str:
    if value is None:
        raise BadInput(absent, f"header {name} is missing")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadInput("bad_header", f"header {name} is no UTF-8: {value[:40]!r}") from None
