"""What parent and child tell each other: length-prefixed JSON over two pipes, and a small shared page of progress.

To tell the parent something new: another key in a message; both sides ignore what they do not know.
"""

import json
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

LENGTH = struct.Struct("<I")
MAX_MESSAGE_BYTES = 1 << 20  #: a GPU's reading has 1 KB
_PROGRESS = struct.Struct("<QQQii40sQ")  #: number of the entry, the entry, its number again
PROGRESS_BYTES = _PROGRESS.size

STARTING, OPENING, READING = 0, 1, 2
"""Phases: each has its own patience."""


class Doing(NamedTuple):
    """The call that a child is in: both times on the machine's monotonic clock, in ns; `target` is -1 for none."""

    call_ns: int
    target_ns: int
    phase: int
    target: int
    call: str


def pack(message: Mapping[str, Any]) -> bytes:
    """The message as it goes through a pipe."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def write(descriptor: int, data: bytes) -> None:
    """All of it, waiting for room; raises OSError when the other side is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Inbox:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole now; raises ValueError for what is no message."""
        held = self._held + data
        found: list[dict[str, Any]] = []
        start = 0
        while len(held) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(held, start)
            if size > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {size} bytes")
            end = start + LENGTH.size + size
            if len(held) < end:
                break
            message = json.loads(held[start + LENGTH.size : end])
            if not isinstance(message, dict):
                raise ValueError("a message that is no object")
            found.append(message)
            start = end
        self._held = held[start:]
        return found


def mark(page: mmap.mmap, entry: int, call_ns: int, target_ns: int, phase: int, target: int, call: bytes) -> None:
    """Say in which call the child is; `entry` is another number each time."""
    _PROGRESS.pack_into(page, 0, entry, call_ns, target_ns, phase, target, call, entry)


def doing(page: mmap.mmap) -> Doing | None:
    """In which call the child is; None while it is in none, or just about to write: half of an entry is no entry."""
    first, call_ns, target_ns, phase, target, call, last = _PROGRESS.unpack_from(page)
    if call_ns == 0 or first != last:
        return None
    return Doing(call_ns, target_ns, phase, target, call.rstrip(b"\0").decode("ascii", "replace"))
