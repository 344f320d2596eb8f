"""Makers of messages that break the wire format, each with the rule that must refuse it. All synthetic.

To add a trick: one entry in `TRICKS`; the tests of decoding and of the window job run over all of them.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import orjson
import zstandard
from support.fleet import START, batch, encoded, gpu

from streams import Outgoing
from streams.topics import TELEMETRY
from telemetry.codec import Encoded, decompress

_GOOD: Encoded = encoded(batch("hostile", seconds=5))
_BODY = decompress(_GOOD.value)
_SECOND = 10**9


def _pack(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(body)


def arrow(value: bytes | None = None, **headers: bytes | None) -> Outgoing:
    """A good Arrow message with another value or other headers; None leaves a header out."""
    changed: dict[str, bytes] = dict(_GOOD.headers)
    for name, text in headers.items():
        name = name.replace("_", "-")
        changed.pop(name, None)
        if text is not None:
            changed[name] = text
    return Outgoing(topic=TELEMETRY, key=b"hostile", value=_GOOD.value if value is None else value, headers=changed)


def body(changed: bytes) -> Outgoing:
    """A good Arrow message with another body, compressed as it should be."""
    return arrow(_pack(changed))


def text(value: object, *, typed: bool = True) -> Outgoing:
    """A JSON message."""
    raw = value if isinstance(value, bytes) else orjson.dumps(value)
    headers = {"content-type": b"application/json"} if typed else {}
    return Outgoing(topic=TELEMETRY, key=b"hostile", value=raw, headers=headers)


def sample(**fields: object) -> dict[str, object]:
    """A good JSON sample with other fields."""
    return {"gpu_uuid": gpu("hostile", 0), "time_ns": START, "power_w": 400.5, **fields}


def samples(*rows: object, **fields: object) -> Outgoing:
    """A JSON message with these samples."""
    return text({"node": "hostile", "interval_s": 1.0, "samples": list(rows), **fields})


def _flip(random_: random.Random) -> Outgoing:
    changed = bytearray(_GOOD.value)
    changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    return arrow(bytes(changed))


Trick = Callable[[random.Random], Outgoing]

TRICKS: Mapping[str, tuple[str, Trick]] = MappingProxyType(
    {
        # name: (rule, maker)
        "empty value": ("empty", lambda _: arrow(b"")),
        "null value": ("empty", lambda _: Outgoing(topic=TELEMETRY, key=b"x", value=None, headers=_GOOD.headers)),
        "garbage": ("not_zstd", lambda r: arrow(r.randbytes(200))),
        "cut zstd": ("not_zstd", lambda r: arrow(_GOOD.value[: r.randrange(1, len(_GOOD.value))])),
        "one bit flipped": ("not_zstd", _flip),
        "trailing bytes": ("not_zstd", lambda r: arrow(_GOOD.value + r.randbytes(9))),
        "bomb": ("decompression_bomb", lambda _: arrow(_BOMB)),
        "bomb without a size": ("decompression_bomb", lambda _: arrow(_SILENT_BOMB)),
        "huge value": ("too_large", lambda _: arrow(_HUGE)),
        "cut body": ("truncated", lambda r: body(_BODY[: r.randrange(1, len(_BODY))])),
        "long body": ("truncated", lambda _: body(_BODY + b"\0" * 8)),
        "no Arrow inside": ("truncated", lambda r: body(r.randbytes(500))),
        "wrong mask": ("wrong_schema", lambda _: arrow(schema=b"isotach.telemetry/1;7")),
        "newer mask": ("unknown_schema", lambda _: arrow(schema=b"isotach.telemetry/1;" + b"f" * 40)),
        "mask of no number": ("unknown_schema", lambda _: arrow(schema=b"isotach.telemetry/1;xyz")),
        "other schema": ("unknown_schema", lambda _: arrow(schema=b"isotach.telemetry/99;1")),
        "no schema": ("unknown_schema", lambda _: arrow(schema=None)),
        "no node": ("bad_node", lambda _: arrow(node=None)),
        "empty node": ("bad_node", lambda _: arrow(node=b"")),
        "absurd node": ("bad_node", lambda _: arrow(node=b"n" * 5_000)),
        "node with a line break": ("bad_node", lambda _: arrow(node=b"n1\nn2")),
        "node of no text": ("bad_header", lambda _: arrow(node=b"\xff\xfe")),
        "no gpus": ("bad_gpus", lambda _: arrow(gpus=None)),
        "empty gpus": ("bad_gpus", lambda _: arrow(gpus=b"")),
        "a gpu without a name": ("bad_gpus", lambda _: arrow(gpus=b"GPU-a,,GPU-b")),
        "a gpu twice": ("bad_gpus", lambda _: arrow(gpus=b"GPU-a,GPU-a")),
        "absurdly many gpus": ("bad_gpus", lambda _: arrow(gpus=b",".join(b"G%d" % i for i in range(2_000)))),
        "no interval": ("bad_interval", lambda _: arrow(interval_s=None)),
        "interval of no number": ("bad_interval", lambda _: arrow(interval_s=b"often")),
        "interval NaN": ("bad_interval", lambda _: arrow(interval_s=b"nan")),
        "interval zero": ("bad_interval", lambda _: arrow(interval_s=b"0")),
        "interval infinite": ("bad_interval", lambda _: arrow(interval_s=b"inf")),
        "unknown content type": ("unknown_content_type", lambda _: arrow(content_type=b"text/csv")),
        "no content type": ("unknown_content_type", lambda _: arrow(content_type=None)),
        "JSON of no kind": ("not_json", lambda _: text(b"{" * 50)),
        "JSON with NaN": ("not_json", lambda _: text(b'{"node": NaN}')),
        "JSON cut": ("not_json", lambda _: text(b'{"node": "n1", "samples": [', typed=False)),
        "JSON of no UTF-8": ("not_json", lambda _: text(b'{"node": "\xff"}')),
        "JSON nested deeply": ("not_json", lambda _: text(b"[" * 100_000)),
        "JSON list": ("not_an_object", lambda _: text([1, 2])),
        "JSON number": ("not_an_object", lambda _: text(7)),
        "JSON without a node": ("bad_node", lambda _: text({"interval_s": 1, "samples": [sample()]})),
        "JSON node a number": ("bad_node", lambda _: samples(sample(), node=7)),
        "JSON interval a text": ("bad_interval", lambda _: samples(sample(), interval_s="1")),
        "JSON interval true": ("bad_interval", lambda _: samples(sample(), interval_s=True)),
        "JSON interval negative": ("bad_interval", lambda _: samples(sample(), interval_s=-1)),
        "JSON samples an object": ("wrong_type", lambda _: samples(samples={})),
        "JSON without samples": ("missing_field", lambda _: samples()),
        "JSON sample a number": ("not_an_object", lambda _: samples(sample(), 7)),
        "JSON sample without a gpu": ("missing_field", lambda _: samples({"time_ns": START})),
        "JSON sample without a time": ("missing_field", lambda _: samples(sample(time_ns=None))),
        "JSON gpu a list": ("wrong_type", lambda _: samples(sample(gpu_uuid=[]))),
        "JSON gpu empty": ("bad_gpus", lambda _: samples(sample(gpu_uuid=""))),
        "JSON time a text": ("wrong_type", lambda _: samples(sample(time_ns="2026-01-01"))),
        "JSON time a fraction": ("wrong_type", lambda _: samples(sample(time_ns=1.5))),
        "JSON power a text": ("wrong_type", lambda _: samples(sample(power_w="512.5 W"))),
        "JSON power true": ("wrong_type", lambda _: samples(sample(power_w=True))),
        "JSON clock a fraction": ("wrong_type", lambda _: samples(sample(sm_clock_mhz=1980.5))),
        "JSON clock an object": ("wrong_type", lambda _: samples(sample(sm_clock_mhz={"value": 1980}))),
        "JSON time before 2000": ("bad_time", lambda _: samples(sample(time_ns=17))),
        "JSON time beyond int64": ("bad_time", lambda _: samples(sample(time_ns=2**63 + 1))),
        "Arrow time in 1970": ("bad_time", lambda _: _encoded(start_ns=0)),
        "Arrow time in 2200": ("bad_time", lambda _: _encoded(start_ns=7_258_118_400 * _SECOND)),
        "gpu index outside": ("unknown_gpu", lambda _: arrow(gpus=b"GPU-only")),
        "from the future": ("future", lambda r: _encoded(start_ns=START + r.randrange(90_000, 10**6) * _SECOND)),
        "long ago": ("late", lambda r: _encoded(start_ns=START - r.randrange(90_000, 10**6) * _SECOND)),
    }
)
"""Every trick by name: the rule that refuses the message or its rows, and the maker."""

_BOMB = _pack(b"\0" * (64 << 20))
_HUGE = random.Random(0).randbytes((1 << 20) + 1)


def _silent_bomb() -> bytes:
    maker = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
    return maker.compress(b"\0" * (64 << 20)) + maker.flush()


_SILENT_BOMB = _silent_bomb()


def _encoded(*, start_ns: int) -> Outgoing:
    one = encoded(batch("hostile", seconds=1, gpus=1, start_ns=start_ns))
    return Outgoing(topic=TELEMETRY, key=one.key, value=one.value, headers=one.headers)


def stream(count: int, *, seed: int = 0, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, Outgoing]]:
    """So many hostile messages, every trick in turn, as (rule, message)."""
    random_ = random.Random(seed)
    tricks = [trick for name, trick in TRICKS.items() if name not in without]
    for i in range(count):
        rule, make = tricks[i % len(tricks)]
        yield rule, make(random_)
