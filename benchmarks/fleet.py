"""A synthetic fleet at 1 Hz as telemetry messages, in the order in which its agents send them.

To change what is sent: `collectors/simulated/scale.yaml`, which is the fleet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectors.simulated import Simulated
from streams import Outgoing
from streams.topics import TELEMETRY
from telemetry.codec import Encoder
from telemetry.records import SampleBatch

START_NS = 1_767_225_600 * 10**9  #: 2026-01-01, a multiple of every window
STEP_S = 10
WINDOW_S = 60
PARTS = 12_500  #: nodes of the fleet, each of 8 GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """Messages of one minute, those that close it last; `samples` are rows times metrics of the minute."""

    messages: Sequence[Outgoing]
    gpus: int
    rows: int
    metrics: int

    @property
    def samples(self) -> int:
        """Values of metrics in the minute."""
        return self.rows * self.metrics


def minute(*, nodes: int, partitions: int = 1, by_time: bool = True) -> Minute:
    """One minute of so many nodes (a divisor of 12,500), and for each partition one message well after it.

    Rows of a message are in order of time, as an agent takes them, or by GPU. Partitions are dealt out in turn.
    """
    encoder = Encoder()
    messages: list[Outgoing] = []
    gpus: set[str] = set()
    rows = metrics = 0
    closing: dict[int, Outgoing] = {}
    for step, batches in enumerate(_steps(nodes)):
        for i, batch in enumerate(batches):
            late = step * STEP_S >= WINDOW_S
            if late and i % partitions in closing:
                continue
            one = encoder.encode(_by_time(batch) if by_time else batch)
            message = Outgoing(
                topic=TELEMETRY, key=one.key, headers=one.headers, value=one.value, partition=i % partitions
            )
            if late:
                closing[i % partitions] = message
            else:
                messages.append(message)
                rows += len(batch)
                metrics = len(batch.columns)
                gpus.update(batch.gpus)
    return Minute(messages=[*messages, *closing.values()], gpus=len(gpus), rows=rows, metrics=metrics)


def _steps(nodes: int) -> Iterator[Sequence[SampleBatch]]:
    """The minute's steps, and one step that lies beyond the lateness of any job here."""
    for start_ns, steps in ((START_NS, WINDOW_S // STEP_S), (START_NS + 3 * WINDOW_S * 10**9, 1)):
        fleet = Simulated(fleet="scale", start_ns=start_ns, step_s=STEP_S, shard=(0, PARTS // nodes))
        for step in range(steps):
            batches = fleet.collect().samples
            yield batches
            if step == 0 and len(batches) != nodes:
                raise ValueError(f"{nodes} nodes are no even part of {PARTS}")
        fleet.close()


def _by_time(batch: SampleBatch) -> SampleBatch:
    order = np.argsort(np.asarray(batch.time_ns), kind="stable")

    def ordered(values: Any) -> Any:
        return np.asarray(values)[order]

    return replace(
        batch,
        time_ns=ordered(batch.time_ns),
        gpu=ordered(batch.gpu),
        columns={name: ordered(values) for name, values in batch.columns.items()},
    )
