"""A group of nodes that move on together: those that share jobs, and as many more as fit the processor's cache.

To let a change of another kind take effect between ticks: its tick in `_boundaries`, its effect in `_begin`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.conditions import Conditions, healthy
from collectors.simulated.fault import Fault
from collectors.simulated.faults import FAULTS, SWAPS
from collectors.simulated.fleet import Fleet
from collectors.simulated.observation import Grid, Moment, Observer
from collectors.simulated.physics import WORKING, Load, Physics
from collectors.simulated.silicon import Silicon, draw
from collectors.simulated.workloads import CLASSES, PHASE_NAMES, PHASES, Job

_POWER = np.array([PHASES[name].power for name in PHASE_NAMES])
_NONE, _INPUT, _CHECKPOINT, _GAP = (PHASE_NAMES.index(name) for name in ("none", "input", "checkpoint", "gap"))
COUNTED: dict[str, tuple[str, ...]] = {
    "ecc_uncorrected": ("ecc_uncorrected_total", "remapped_rows_uncorrected_total"),
    "row_remap_pending": ("remapped_rows_corrected_total",),
    "row_remap_failed": ("remapped_rows_uncorrected_total",),
}


@dataclass(slots=True, kw_only=True)
class Segment:
    """Ticks between two changes: grids by metric, and which GPUs gave samples and worked."""

    first: int
    ticks: int
    columns: dict[str, Grid]
    absent: NDArray[np.bool_]
    working: Grid


class Group:
    """Nodes of a fleet, by index, with all the jobs that they take part in."""

    def __init__(
        self, fleet: Fleet, nodes: Sequence[int], jobs: Sequence[Job], *, seed: int, interval_s: float, start_s: float
    ) -> None:
        self.nodes = tuple(nodes)
        self._fleet = fleet
        self._seed = seed
        self._interval_s = interval_s
        self._start_s = start_s
        self._jobs = tuple(jobs)
        counts = [fleet.nodes[node].gpus for node in nodes]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        self.rows = {node: slice(int(a), int(b)) for node, a, b in zip(nodes, offsets, offsets[1:], strict=False)}
        self.faults = tuple(fault for fault in fleet.faults if any(node in self.rows for node, _ in fault.targets))
        self._fault_rows = {fault.name: self.targets(fault) for fault in self.faults}
        metrics = {name: None for node in nodes for name in fleet.nodes[node].metrics}
        self.silicon = self._draw({})
        self._observer = Observer(self.silicon, metrics=tuple(metrics), interval_s=interval_s)
        self._physics = Physics(self.silicon, interval_s=interval_s, start_s=start_s)
        self._progress = np.array([job.key % 2**20 / 2**20 for job in jobs] + [0.0])
        self._pace_gaps = [_Breaks(job, interval_s) for job in jobs]
        self._bounds = np.array([_bounds(job) for job in jobs] + [[1.0] * 5]).reshape(-1, 5)
        self._kinds = np.array([_kinds(job) for job in jobs] + [[_NONE] * 5]).reshape(-1, 5)
        self._edges = self._boundaries()
        self.tick = 0

    def targets(self, fault: Fault) -> NDArray[np.intp]:
        """Rows of this group that a fault acts on."""
        rows = [self.rows[node].start + slot for node, slot in fault.targets if node in self.rows]
        return np.array(rows, dtype=np.intp)

    def node_rows(self, fault: Fault) -> NDArray[np.intp]:
        """Rows of all the GPUs of the nodes that a fault acts on."""
        chosen = sorted({node for node, _ in fault.targets if node in self.rows})
        return np.concatenate([np.arange(self.rows[node].start, self.rows[node].stop) for node in chosen])

    def active(self, fault: Fault, tick: int) -> bool:
        """Whether a fault acts at a tick."""
        start, end = fault.ticks(self._interval_s)
        return start <= tick and (end is None or tick < end)

    def paused(self, fault: Fault, tick: int) -> bool:
        """Whether the nodes of a swap or a driver reload are away at a tick."""
        start = fault.ticks(self._interval_s)[0]
        return fault.kind in SWAPS and start <= tick < start + math.ceil(fault.size / self._interval_s)

    def advance(self, until: int) -> Iterator[Segment]:
        """The segments up to a tick, which is not included."""
        while self.tick < until:
            if self.tick == 0 or self.tick in self._edges:
                self._begin(self.tick)
            stop = min([until, *(edge for edge in self._edges if edge > self.tick)])
            yield self._segment(self.tick, stop)
            self.tick = stop

    def conditions(self, tick: int, *, only: Fault | None = None) -> Conditions:
        """What acts at a tick: all that is scheduled then, or one fault alone."""
        conditions = healthy(self.silicon)
        for fault in self.faults:
            apply = FAULTS[fault.kind].apply
            if apply is not None and (fault is only if only is not None else self.active(fault, tick)):
                apply(conditions, self._fault_rows[fault.name], fault, self._interval_s)
        if only is None:
            for fault in self.faults:
                if self.paused(fault, tick):
                    conditions.absent[self.node_rows(fault)] = True
        return conditions

    def _draw(self, generations: dict[tuple[str, int], int]) -> Silicon:
        return draw(
            [self._fleet.nodes[node] for node in self.nodes],
            seed=self._seed,
            interval_s=self._interval_s,
            node_spread_c=self._fleet.node_spread_c,
            generations=generations,
        )

    def _boundaries(self) -> frozenset[int]:
        edges: set[int] = set()
        for fault in self.faults:
            start, end = fault.ticks(self._interval_s)
            edges.add(start)
            if end is not None:
                edges.add(end)
            if fault.kind in SWAPS:
                edges.add(start + math.ceil(fault.size / self._interval_s))
            if fault.kind == "drift":
                edges.add(start + math.ceil(fault.ramp_s / self._interval_s))
        for job in self._jobs:
            edges.add(math.ceil(job.workload.start_s / self._interval_s))
            if math.isfinite(job.workload.end_s):
                edges.add(math.ceil(job.workload.end_s / self._interval_s))
        return frozenset(edges)

    def _begin(self, tick: int) -> None:
        for fault in self.faults:
            if fault.ticks(self._interval_s)[0] == tick:
                self._strike(fault, tick)
        conditions = self.conditions(tick)
        self._settle_drifts(conditions, tick)
        self._conditions = conditions
        self._load = self._load_at(tick)
        self._physics.begin(conditions, self._load)
        shares = np.array([0.55 + 0.4 * (job.key >> 20 & 0xFFFF) / 0x10000 for job in self._jobs] + [0.0])
        self._memory_share = shares[self._load.job]
        if tick == 0:
            self._physics.settle(0, np.append(_POWER[self._kinds[:-1, 1]], 0.0)[self._load.job])

    def _strike(self, fault: Fault, tick: int) -> None:
        rows = self._fault_rows[fault.name]
        for name in COUNTED.get(fault.kind, ()):
            grown = fault.size if name == "ecc_uncorrected_total" else 1
            self._observer.counters[name][rows] += int(grown)
        if fault.kind == "gpu_swap":
            names = [(self._fleet.nodes[node].name, slot) for node, slot in fault.targets if node in self.rows]
            fresh = self._draw({name: generation_at(self._fleet, name, tick, self._interval_s) for name in names})
            self.silicon.put(rows, fresh.take(rows))
        if fault.kind in SWAPS:
            self._observer.reset(self.node_rows(fault))

    def _settle_drifts(self, conditions: Conditions, tick: int) -> None:
        for fault in self.faults:
            if fault.kind != "drift" or not self.active(fault, tick):
                continue
            rows = self._fault_rows[fault.name]
            if tick >= fault.ticks(self._interval_s)[0] + math.ceil(fault.ramp_s / self._interval_s):
                conditions.drift_per_tick[rows] = 0.0
                conditions.silicon[rows] *= 1.0 - fault.size

    def _load_at(self, tick: int) -> Load:
        job_of = np.full(len(self.silicon.key), len(self._jobs), dtype=np.intp)
        order: list[NDArray[np.intp]] = []
        jobs: list[int] = []
        synchronous = np.zeros(len(job_of), dtype=np.bool_)
        for i, job in enumerate(self._jobs):
            if not job.workload.start_s <= tick * self._interval_s < job.workload.end_s:
                continue
            rows = np.concatenate([np.arange(self.rows[node].start, self.rows[node].stop) for node in job.nodes])
            rows = rows[~self._conditions.absent[rows]]
            job_of[rows] = i
            if job.workload.synchronous and len(rows):
                synchronous[rows] = True
                order.append(rows)
                jobs.append(i)
        sizes = [len(rows) for rows in order]
        return Load(
            job=job_of,
            synchronous=synchronous,
            order=np.concatenate(order) if order else np.zeros(0, dtype=np.intp),
            starts=np.cumsum([0, *sizes[:-1]]).astype(np.intp) if sizes else np.zeros(0, dtype=np.intp),
            jobs=np.array(jobs, dtype=np.intp),
            classes=[*(CLASSES[job.workload.work_class] for job in self._jobs), None],
        )

    def _segment(self, first: int, stop: int) -> Segment:
        n, count = len(self.silicon.key), stop - first
        shape = (count, n)
        clock, power, temperature, busy, work = (np.empty(shape, dtype=np.float32) for _ in range(5))
        flags = np.empty(shape, dtype=np.uint8)
        phases = np.empty((count, len(self._jobs) + 1), dtype=np.intp)
        steps = np.array([self._interval_s / job.workload.step_s for job in self._jobs] + [0.0])
        for i in range(count):
            phase = self._phases(first + i)
            phases[i] = phase
            pace = self._physics.rates()
            done = self._physics.tick(first + i, _POWER[phase], pace)
            clock[i], power[i], temperature[i] = done.clock, done.power_w, done.temperature_c
            busy[i], work[i], flags[i] = done.busy, done.work, done.flags
            paused = (phase == _GAP) | (phase == _CHECKPOINT)
            self._progress = (self._progress + np.where(paused, 0.0, pace * steps)) % 1.0

        def by_gpu(values: Grid) -> Grid:
            return np.ascontiguousarray(values.T)

        moment = Moment(
            ticks=np.arange(first, stop, dtype=np.uint64),
            clock=by_gpu(clock),
            power_w=by_gpu(power),
            temperature_c=by_gpu(temperature),
            busy=by_gpu(busy),
            work=by_gpu(work),
            flags=by_gpu(flags),
            phase=by_gpu(phases),
            job=self._load.job,
            conditions=self._conditions,
            memory_share=self._memory_share,
        )
        return Segment(
            first=first,
            ticks=count,
            columns=self._observer.columns(moment),
            absent=self._conditions.absent,
            working=(moment.flags & np.uint8(WORKING)) != 0,
        )

    def _phases(self, tick: int) -> NDArray[np.intp]:
        index = (self._progress[:, None] >= self._bounds).sum(axis=1)
        phase: NDArray[np.intp] = self._kinds[np.arange(len(index)), np.minimum(index, 4)]
        for i, breaks in enumerate(self._pace_gaps):
            if breaks.some and (forced := breaks.at(tick)) is not None:
                phase[i] = forced
        return phase


class _Breaks:
    """When a job pauses: gaps between pieces of work, and checkpoints."""

    def __init__(self, job: Job, interval_s: float) -> None:
        self._work = job.workload
        self._interval_s = interval_s
        self._offset = (job.key >> 40 & 0xFFFF) / 0x10000
        self.some = bool(self._work.gap_every_s or self._work.checkpoint_every_s)

    def at(self, tick: int) -> int | None:
        """The phase that replaces that of the step, if any."""
        work = self._work
        since = tick * self._interval_s - work.start_s
        for every, lasts, phase in (
            (work.gap_every_s, work.gap_s, _GAP),
            (work.checkpoint_every_s, work.checkpoint_s, _CHECKPOINT),
        ):
            if every and (since + self._offset * every) % every >= every - lasts:
                return phase
        return None


def _bounds(job: Job) -> list[float]:
    """Where in a step each phase ends: input first, then those of the class."""
    shares = [1.0 - job.workload.utilization]
    shares += [share * job.workload.utilization for _, share in CLASSES[job.workload.work_class].steps]
    ends = np.cumsum(shares).tolist()
    return [*ends[:-1], 1.0, 1.0][:5] if len(ends) == 4 else [*ends[:-1], *[1.0] * (6 - len(ends))]


def _kinds(job: Job) -> list[int]:
    kinds = [_INPUT, *(PHASE_NAMES.index(name) for name, _ in CLASSES[job.workload.work_class].steps)]
    return [*kinds, *[kinds[-1]] * (5 - len(kinds))]


def generation_at(fleet: Fleet, place: tuple[str, int], tick: int, interval_s: float) -> int:
    """How many times the GPU in a slot has been swapped up to and including a tick."""
    name, slot = place
    return sum(
        1
        for fault in fleet.faults
        if fault.kind == "gpu_swap"
        and fault.ticks(interval_s)[0] <= tick
        and any(fleet.nodes[node].name == name and at == slot for node, at in fault.targets)
    )


def groups_of(
    fleet: Fleet, own: Sequence[int], *, seed: int, interval_s: float, start_s: float, gpus: int = 1_024
) -> list[Group]:
    """Groups that hold the wanted nodes and every node that shares a job with one of them, about `gpus` GPUs each."""
    parent = list(range(len(fleet.nodes)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for job in fleet.jobs:
        for node in job.nodes[1:]:
            parent[root(node)] = root(job.nodes[0])
    wanted = {root(node) for node in own}
    members: dict[int, list[int]] = {}
    for node in range(len(fleet.nodes)):
        if root(node) in wanted:
            members.setdefault(root(node), []).append(node)
    jobs: dict[int, list[Job]] = {}
    for job in fleet.jobs:
        jobs.setdefault(root(job.nodes[0]), []).append(job)
    made: list[Group] = []
    nodes: list[int] = []
    doing: list[Job] = []
    for i, (top, together) in enumerate(members.items()):
        nodes += together
        doing += jobs.get(top, [])
        if sum(fleet.nodes[node].gpus for node in nodes) >= gpus or i == len(members) - 1:
            made.append(Group(fleet, nodes, doing, seed=seed, interval_s=interval_s, start_s=start_s))
            nodes, doing = [], []
    return made
