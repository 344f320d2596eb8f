"""Synthetic telemetry for tests of collectors and agent, and collectors that do what a test wants.

To add a kind of trouble: one class with `collect` and `close`.
"""

import threading
from collections.abc import Callable, Sequence

from collectors import Reading
from streams import Outgoing
from telemetry import codec
from telemetry.errors import EndOfInput, TransportError
from telemetry.records import SampleBatch

START_NS = 1_767_225_600 * 10**9


def batch(
    *,
    node: str = "n1",
    gpus: Sequence[str] = ("GPU-a", "GPU-b"),
    start_ns: int = START_NS,
    samples: int = 1,
    interval_s: float = 1.0,
    clock: int | None = 1980,
    source: str = "synthetic",
) -> SampleBatch:
    """`samples` samples of every GPU, time by time."""
    step = round(interval_s * 1e9) or 10**9
    rows = [(start_ns + i * step, index) for i in range(samples) for index in range(len(gpus))]
    return SampleBatch(
        node=node,
        gpus=tuple(gpus),
        interval_s=interval_s,
        source=source,
        time_ns=[time_ns for time_ns, _ in rows],
        gpu=[index for _, index in rows],
        columns={"sm_clock_mhz": [clock] * len(rows), "power_w": [500.0 + index for _, index in rows]},
    )


class Scripted:
    """A collector that does one thing after the other, then ends (or repeats the last thing for ever)."""

    def __init__(self, *steps: Reading | Exception | Callable[[], Reading], repeat: bool = False) -> None:
        self._steps = list(steps)
        self._repeat = repeat
        self.calls = 0
        self.closed = 0

    def collect(self) -> Reading:
        self.calls += 1
        if not self._steps:
            raise EndOfInput("the script is over")
        step = self._steps[0] if self._repeat and len(self._steps) == 1 else self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, Reading) else step()

    def close(self) -> None:
        self.closed += 1


class Flaky:
    """A producer in front of a real one, whose log a test can take away."""

    def __init__(self) -> None:
        self.away = threading.Event()
        self.sent: list[Outgoing] = []
        self.refusals = 0

    def send(self, message: Outgoing) -> None:
        if self.away.is_set():
            self.refusals += 1
            raise TransportError("broker down")
        self.sent.append(message)

    def flush(self, *, timeout_s: float = 60.0) -> None:
        if self.away.is_set():
            raise TransportError("broker down")

    def close(self, *, timeout_s: float = 60.0) -> None:
        self.flush()


def rows_of(message: Outgoing) -> int:
    """How many rows a telemetry message has."""
    assert message.value is not None
    mask = codec.parse_schema(message.headers["schema"].decode())
    return codec.check_body(codec.decompress(message.value), mask)
