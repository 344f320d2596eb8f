"""The contract of every collector, and the list of them. The agent's one loop runs, times and counts them all.

To add a collector: one file, one line in `COLLECTORS`, one captured input under `tests/data`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from telemetry.records import Event, Measurement, NodeInventory, NodeJobs, SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one call of a collector saw. Everything may be empty.

    `samples` holds one batch a node; the agent joins batches of a node until ~10 s are full, and publishes a batch
    that is as long as that at once. A batch whose `interval_s` is 0 leaves the promise to the agent that paces its
    collector: it puts its own interval there. `inventory` is given whenever it is new or changed; the agent repeats
    the last one from time to time. `jobs` is all that runs on a node now, at every call that knows it; the agent
    publishes what has changed, and the whole from time to time. `rejected` counts values that were garbage or
    unreadable, by "metric:reason". `due` is for
    collectors that spread their work over calls: how many samples of GPUs the time since the last call should have
    given; None: one of every GPU that is known.
    """

    samples: Sequence[SampleBatch] = ()
    inventory: Sequence[NodeInventory] = ()
    events: Sequence[Event] = ()
    measurements: Sequence[Measurement] = ()
    jobs: Sequence[NodeJobs] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    due: int | None = None


class Collector(Protocol):
    """A source of readings."""

    def collect(self) -> Reading:
        """This moment's reading.

        Raises NoData when there is nothing now, SourceUnavailable when the source is gone as a whole, and EndOfInput
        when a recording is at its end.
        """
        ...

    def close(self) -> None:
        """Let go of processes, files and handles."""
        ...


COLLECTORS: Mapping[str, str] = MappingProxyType(
    {
        "dcgm": "collectors.dcgm.collector:Dcgm",
        "nvidia_smi": "collectors.nvidia_smi:NvidiaSmi",
        "nvml": "collectors.nvml.collector:Nvml",
        "replay": "collectors.replay:Replay",
        "simulated": "collectors.simulated:Simulated",
    }
)
"""Every collector: where its class is, resolved with `pkgutil.resolve_name` so that a node loads only what it runs."""
