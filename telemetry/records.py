"""The records that collectors produce: samples, inventory, events, measurements, jobs.

To add a field: a column in `tables.py` first, then here. Everything is frozen; units are in the names; null is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Samples of one node, one row per GPU and time.

    `gpu[i]` indexes into `gpus`. `columns` maps a sampled metric's name to as many values as there are rows: a list
    with None for what could not be read, or a buffer (array, numpy) without nulls in the metric's own type. A metric
    that is absent was unsupported for every row. `interval_s` is what the collector promises between two samples of
    one GPU; completeness is measured against it.
    """

    node: str
    gpus: tuple[str, ...]
    interval_s: float
    source: str
    time_ns: Sequence[int]
    gpu: Sequence[int]
    columns: Mapping[str, Sequence[Value]]

    def __len__(self) -> int:
        """Rows."""
        return len(self.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInventory:
    """One GPU as its node sees it; the columns of the table `gpus` without node and time."""

    gpu_uuid: str
    slot: int | None = None
    bus_id: str | None = None
    model: str | None = None
    serial: str | None = None
    driver_version: str | None = None
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    mig_enabled: bool | None = None
    fabric: str | None = None
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """One node: its GPUs, what it should have, and its place as an ordered list of (level, value), nearest first."""

    node: str
    seen_ns: int
    gpus: tuple[GpuInventory, ...]
    expected_gpus: int | None = None
    driver_version: str | None = None
    agent_version: str | None = None
    place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at a time: XID, lost GPU, reset, driver reload; see the table `events`."""

    time_ns: int
    node: str
    gpu_uuid: str
    kind: str
    code: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A result of a benchmark, probe or job; see the table `measurements`."""

    time_ns: int
    scope: str
    subject: str
    name: str
    workload_class: str
    value: float
    unit: str
    higher_is_better: bool
    node: str | None = None
    evidence: Mapping[str, float | int | str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job on one GPU; the columns of the table `jobs` without node and time.

    `started_ns` None: nobody knows; the agent puts there when it first saw it. `seen_ns`: when it was last seen, if
    that was before the snapshot that it is in, whose source cannot say whether it still runs; else None.
    """

    gpu_uuid: str
    job_id: str
    source: str
    name: str | None = None
    namespace: str | None = None
    workload_class: str | None = None
    started_ns: int | None = None
    ended: bool = False
    processes: int | None = None
    memory_bytes: int | None = None
    seen_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJobs:
    """All jobs on a node's GPUs at a time: one that is no longer among them has ended."""

    node: str
    seen_ns: int
    jobs: tuple[Job, ...] = ()
