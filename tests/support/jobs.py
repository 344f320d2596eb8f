"""Jobs as a process runs them: a thread each over a real transport, with a clock that tests move.

To run another job: a `with running(...)` around the test's body.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl

from analytics.frames import frame
from streams import Message, TopicPartition, Transport
from streams.parts import Part, decode_part
from streams.topics import DEADLETTER, WINDOWS
from telemetry.tables import WINDOWS as WINDOWS_TABLE

PATIENCE_S = 30.0


class Clock:
    """A time in ns that stands still until it is moved."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        """The time."""
        return self.now_ns

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += int(seconds * 1e9)


class Running:
    """A job in a thread; an error in it fails the test."""

    def __init__(self, job: Callable[..., None], *args: Any, **settings: Any) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(job, args, settings), daemon=True)
        self._thread.start()

    def _run(self, job: Callable[..., None], args: tuple[Any, ...], settings: dict[str, Any]) -> None:
        try:
            job(*args, stop=self.stop, **settings)
        except BaseException as error:  # noqa: BLE001 - carried to the test
            self.errors.append(error)

    def end(self) -> None:
        """Stop it, wait, and raise what it raised."""
        self.stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the job does not stop"
        if self.errors:
            raise self.errors[0]


@contextmanager
def running(job: Callable[..., None], *args: Any, **settings: Any) -> Iterator[Running]:
    """The job, running until the end of the block."""
    one = Running(job, *args, **settings)
    try:
        yield one
    finally:
        one.end()


def eventually(done: Callable[[], Any], what: str = "it", *, patience_s: float = PATIENCE_S) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what} did not happen in time"
        time.sleep(0.02)
    return found


class Tail:
    """Everything in some topics, read again and again."""

    def __init__(self, transport: Transport, *topics: str) -> None:
        start = {TopicPartition(topic, p): 0 for topic in topics for p in range(transport.partitions(topic))}
        self._reader = transport.read(start)
        self._found: list[Message] = []

    def messages(self) -> Sequence[Message]:
        """All messages up to now."""
        while found := self._reader.poll(timeout_s=0.02, max_messages=5_000):
            self._found += found
        return self._found

    def close(self) -> None:
        """Let go."""
        self._reader.close()


def window_parts(transport: Transport) -> list[Part]:
    """Every message of the topic of windows, decoded."""
    tail = Tail(transport, WINDOWS)
    try:
        _read_to_end(tail)
        return [decode_part(message) for message in tail.messages()]
    finally:
        tail.close()


def window_rows(transport: Transport) -> pl.DataFrame:
    """Rows of all windows published, the newest of each GPU and window."""
    rows = pl.concat([frame(WINDOWS_TABLE), *(part.rows for part in window_parts(transport))])
    return rows.unique(subset=list(WINDOWS_TABLE.key), keep="last").sort(WINDOWS_TABLE.key)


def dead_letter_rules(transport: Transport) -> list[str]:
    """The rule of each dead letter, in order."""
    tail = Tail(transport, DEADLETTER)
    try:
        _read_to_end(tail)
        return [message.headers["rule"].decode() for message in tail.messages()]
    finally:
        tail.close()


def _read_to_end(tail: Tail) -> None:
    while not tail._reader.caught_up():
        tail.messages()
