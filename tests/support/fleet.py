"""Synthetic telemetry of small fleets as messages: plausible shapes, invented values.

To add a scenario: a function here that returns batches or messages.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from streams import Message, Outgoing
from streams.topics import TELEMETRY
from telemetry.codec import Encoded, Encoder
from telemetry.records import SampleBatch

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND  #: 2026-01-01, a multiple of every window used in tests
_encoder = Encoder()


def gpu(node: str, index: int) -> str:
    """The UUID of a GPU of a node."""
    return f"GPU-{node}-{index}"


def batch(
    node: str,
    *,
    first_s: float = 0,
    seconds: int = 10,
    gpus: int = 2,
    power_w: float = 500.0,
    start_ns: int = START,
    interval_s: float = 1.0,
) -> SampleBatch:
    """Samples of one node, one a second and GPU, beginning `first_s` after `start_ns`; energy grows with time."""
    offsets = np.repeat(np.arange(seconds), gpus)
    time_ns = start_ns + int(first_s * SECOND) + offsets.astype(np.int64) * SECOND
    rows = len(time_ns)
    return SampleBatch(
        node=node,
        gpus=tuple(gpu(node, i) for i in range(gpus)),
        interval_s=interval_s,
        source="synthetic",
        time_ns=time_ns,
        gpu=np.tile(np.arange(gpus, dtype=np.uint16), seconds),
        columns={
            "sm_clock_mhz": np.full(rows, 1755, dtype=np.uint16),
            "temperature_c": (60 + offsets % 7).astype(np.int16),
            "power_w": np.full(rows, power_w, dtype=np.float32),
            "utilization_ratio": np.ones(rows, dtype=np.float32),
            "energy_mj": ((time_ns - START) // SECOND * 500_000 + 10**12).astype(np.uint64),
        },
    )


def rows_batch(node: str, rows: Sequence[tuple[int, float]], *, value: float = 0.0) -> SampleBatch:
    """A batch of chosen rows, as (GPU index, seconds after START); `value` goes into the power, to tell rows apart."""
    return SampleBatch(
        node=node,
        gpus=tuple(gpu(node, i) for i in range(1 + max(index for index, _ in rows))),
        interval_s=1.0,
        source="synthetic",
        time_ns=np.array([START + int(second * SECOND) for _, second in rows], dtype=np.int64),
        gpu=np.array([index for index, _ in rows], dtype=np.uint16),
        columns={
            "power_w": np.full(len(rows), value, dtype=np.float32),
            "energy_mj": np.array([int(second * 1_000) + 10**9 for _, second in rows], dtype=np.uint64),
        },
    )


def encoded(made: SampleBatch) -> Encoded:
    """The batch as any transport carries it."""
    return _encoder.encode(made)


def message(made: SampleBatch, *, offset: int, time_ns: int, partition: int = 0) -> Message:
    """The batch as read from the log."""
    one = encoded(made)
    return Message(
        topic=TELEMETRY,
        partition=partition,
        offset=offset,
        time_ns=time_ns,
        key=one.key,
        headers=one.headers,
        value=one.value,
    )


def outgoing(made: SampleBatch, *, partition: int | None = None) -> Outgoing:
    """The batch as written to the log."""
    one = encoded(made)
    return Outgoing(topic=TELEMETRY, key=one.key, value=one.value, headers=one.headers, partition=partition)


def numbered(batches: Iterable[SampleBatch], *, time_ns: int, partition: int = 0) -> list[Message]:
    """The batches as messages of one partition, taken in at one time."""
    return [message(made, offset=i, time_ns=time_ns, partition=partition) for i, made in enumerate(batches)]
