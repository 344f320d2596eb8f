"""One node as its exporter shows it, from page to page: samples, inventory, events, jobs.

To fill another metric: its DCGM names in the catalogue; nothing here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectors import Reading
from collectors.cells import Missing
from collectors.clock import STEP_S
from collectors.dcgm.exposition import Series
from collectors.dcgm.fields import (
    DRIVER_VERSION,
    FABRIC_ERROR,
    FABRIC_HEALTH,
    FABRIC_STATUS,
    FIELDS,
    MIG_MODE,
    SERIAL,
    XID_FIELDS,
    blank,
    convert,
)
from collectors.dcgm.labels import JobLabels, Labels
from collectors.dcgm.repeats import Repeats
from collectors.listing import ListedGpu, Listing
from collectors.roster import Roster
from telemetry.metrics import SAMPLED
from telemetry.records import Event, Job, NodeJobs, SampleBatch

SOURCE = "dcgm"
MAX_GPUS = 128
MAX_AGE_NS = 3_600 * 10**9  #: of a time that the page itself gives
MAX_AHEAD_NS = 60 * 10**9
SET_BACK_NS = round(
    STEP_S * 1e9
)  #: a last sample so far ahead of now, or `MAX_AHEAD_NS` by its page: our clock was set

# dcgmFabricManagerStatus_t, in the words that the driver has for the same states.
_FABRIC: Mapping[int, tuple[str | None, str | None]] = {
    1: ("Not Started", None),
    2: ("In Progress", None),
    3: ("Completed", "Success"),
    4: ("Completed", "Failure"),
}
_HEALTH: Mapping[int, str] = {1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"}  # nvmlGpuFabricHealthSummary_t


@dataclass(slots=True)
class _Gpu:
    """One physical GPU of a page."""

    labels: Labels
    values: dict[str, float] = field(default_factory=dict)
    mig: bool = False
    time_ms: int | None = None
    jobs: dict[str, JobLabels] = field(default_factory=dict)


class Node:
    """The GPUs of one node over time, from pages that are `interval_s` apart."""

    def __init__(self, name: str, *, interval_s: float, expected_gpus: int | None = None) -> None:
        self.name = name
        self.gpus = 0  #: that answered last time
        self._interval_s = interval_s
        self._roster = Roster(node=name, expected_gpus=expected_gpus, place=())
        self._repeats = Repeats()
        self._xids: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._seen: set[str] = set()
        self._told_frozen = False
        self._had_jobs = False

    def read(
        self, series: Sequence[Series[Labels]], *, time_ns: int, now: float, damaged: bool, taken: frozenset[str]
    ) -> Reading:
        """What a page says of this node.

        `damaged`: lines of it were unreadable, an absent GPU proves nothing. `taken`: UUIDs that another node shows.
        """
        rejected: Counter[str] = Counter()
        gpus = _gathered(series, rejected, taken)
        fresh = self._repeats.fresh({key: gpu.values for key, gpu in gpus.items()}, now=now)
        missing = self._seen - gpus.keys()
        self._seen = set(gpus)  # one that is absent once may be back in the next page; absent twice it is gone
        listed = {key: _listed(gpu, rejected) for key, gpu in gpus.items()}
        listing = Listing(gpus=list(listed.values()), complete=not damaged and not missing)
        changes = self._roster.update(listing, time_ns=time_ns)
        rejected.update(changes.rejected)
        names = {id(found): name for name, found in changes.answered.items()}
        by_key = {key: names[id(found)] for key, found in listed.items() if id(found) in names}
        events = [*changes.events, *self._xid_events(gpus, by_key, time_ns), *self._frozen(time_ns)]
        self.gpus = len(changes.answered)
        return Reading(
            samples=self._batch({by_key[k]: (listed[k], gpus[k]) for k in by_key if k in fresh}, time_ns, rejected),
            inventory=() if changes.inventory is None else (changes.inventory,),
            events=events,
            jobs=self._jobs(gpus, by_key, time_ns),
            rejected=dict(rejected),
        )

    def _batch(
        self, rows: Mapping[str, tuple[ListedGpu, _Gpu]], time_ns: int, rejected: Counter[str]
    ) -> tuple[SampleBatch, ...]:
        times: dict[str, int] = {}
        for name, (_, gpu) in rows.items():
            when = time_ns
            if gpu.time_ms is not None:
                when = gpu.time_ms * 10**6
                if not -MAX_AGE_NS <= when - time_ns <= MAX_AHEAD_NS:
                    rejected["time:out_of_range"] += 1
                    when = time_ns
            last_ns = self._last_ns.get(name, 0)
            ahead_ns = SET_BACK_NS if gpu.time_ms is None else MAX_AHEAD_NS
            if when > last_ns or last_ns - time_ns >= ahead_ns:  # a page's own time may be that of last time
                times[name] = self._last_ns[name] = when
        if not times:
            return ()
        found = [rows[name][0].values for name in times]
        filled = set().union(*found)
        return (
            SampleBatch(
                node=self.name,
                gpus=tuple(times),
                interval_s=self._interval_s * self._repeats.period_ticks,
                source=SOURCE,
                time_ns=list(times.values()),
                gpu=list(range(len(times))),
                columns={m.name: [one.get(m.name) for one in found] for m in SAMPLED if m.name in filled},
            ),
        )

    def _xid_events(self, gpus: Mapping[str, _Gpu], by_key: Mapping[str, str], time_ns: int) -> list[Event]:
        """A code that is another than last time. The first one seen may be as old as the driver, so it is none."""
        events = []
        for key, gpu in gpus.items():
            number = next((gpu.values[name] for name in XID_FIELDS if name in gpu.values), None)
            if number is None or blank(number, wide=False) is not None or not 0 <= number <= 10_000:
                continue
            code, before = round(number), self._xids.get(key)
            self._xids[key] = code
            if before is not None and code not in (0, before):
                uuid, detail = by_key.get(key, key), "the exporter's last XID changed: others may be hidden by it"
                events.append(
                    Event(time_ns=time_ns, node=self.name, gpu_uuid=uuid, kind="xid", code=code, detail=detail)
                )
        return events

    def _frozen(self, time_ns: int) -> list[Event]:
        since = self._repeats.frozen_since
        if since is None:
            self._told_frozen = False
        elif not self._told_frozen:
            self._told_frozen = True
            detail = "dcgm: the exporter repeats the same numbers: its GPUs are unknown until these move again"
            return [Event(time_ns=time_ns, node=self.name, gpu_uuid="", kind="collector_failed", detail=detail)]
        return []

    def _jobs(self, gpus: Mapping[str, _Gpu], by_key: Mapping[str, str], time_ns: int) -> tuple[NodeJobs, ...]:
        jobs = {
            (by_key[key], job_id): Job(
                gpu_uuid=by_key[key],
                job_id=job.job_id,
                source=job.source,
                name=job.name,
                namespace=job.namespace,
                workload_class=job.workload_class,
            )
            for key, gpu in gpus.items()
            if key in by_key
            for job_id, job in gpu.jobs.items()
        }
        self._had_jobs = self._had_jobs or bool(jobs)
        return (NodeJobs(node=self.name, seen_ns=time_ns, jobs=tuple(jobs.values())),) if self._had_jobs else ()


def _gathered(series: Sequence[Series[Labels]], rejected: Counter[str], taken: frozenset[str]) -> dict[str, _Gpu]:
    """The physical GPUs of a page. Of a GPU cut by MIG what belongs to its instances is left out."""
    gpus: dict[str, _Gpu] = {}
    for one in sorted(series, key=lambda s: s.labels.instance):  # what the whole GPU says comes first
        labels = one.labels
        for rule in labels.doubts:
            rejected[f"labels:{rule}"] += 1
        key = labels.key
        if key in taken:
            rejected["gpu:repeated_uuid"] += 1
            continue
        gpu = gpus.get(key)
        if gpu is not None and labels.bus_id and gpu.labels.bus_id and gpu.labels.bus_id != labels.bus_id:
            key = f"{key} {labels.bus_id}"  # two GPUs that claim one UUID: the roster tells them apart
            gpu = gpus.get(key)
        if gpu is None:
            if len(gpus) >= MAX_GPUS:
                rejected["gpu:too_many"] += 1
                continue
            gpu = gpus[key] = _Gpu(labels)
        gpu.mig = gpu.mig or labels.instance
        if one.time_ms is not None:
            gpu.time_ms = max(gpu.time_ms or 0, one.time_ms)
        if labels.job is not None:
            gpu.jobs.setdefault(labels.job.job_id, labels.job)
        if not gpu.values:
            gpu.values = one.values
            continue
        for name, value in one.values.items():
            known = gpu.values.setdefault(name, value)
            if known != value and known == known and not gpu.mig and name not in XID_FIELDS:
                rejected["metric:conflicting"] += 1
    return gpus


def _listed(gpu: _Gpu, rejected: Counter[str]) -> ListedGpu:
    values: dict[str, int | float] = {}
    statics: dict[str, int | float | str] = {}
    missing: dict[str, Missing] = {}
    texts = gpu.labels.texts
    mig = gpu.mig or gpu.values.get(MIG_MODE) == 1
    for name, number in gpu.values.items():
        known = FIELDS.get(name)
        if known is None or (mig and not known.whole) or known.metric.type == "string":
            continue
        value = convert(known, number)
        metric = known.metric.name
        if not isinstance(value, Missing):
            (values if known.sampled else statics).setdefault(metric, value)
        elif value is not Missing.UNSUPPORTED:
            missing[metric] = value
            rejected[f"{metric}:{value}"] += 1
    for name, text in texts.items():
        known = FIELDS.get(name)
        if known is None or known.sampled or text.startswith("<<<"):
            continue
        if known.metric.type == "string":
            statics.setdefault(known.metric.name, text)
        elif text.isascii() and text.isdigit():
            value = convert(known, float(text[:20]))
            if not isinstance(value, Missing):
                statics.setdefault(known.metric.name, value)
    if (health := _HEALTH.get(_whole(gpu.values.get(FABRIC_HEALTH)))) is not None:
        statics["fabric_health_summary"] = health
    state, status = _FABRIC.get(_whole(gpu.values.get(FABRIC_STATUS)), (None, None))
    if status == "Failure" and (error := _whole(gpu.values.get(FABRIC_ERROR))) > 0:
        status = f"Failure {error}"
    return ListedGpu(
        uuid=gpu.labels.uuid,
        bus_id=gpu.labels.bus_id,
        model=gpu.labels.model,
        serial=_text(texts, SERIAL),
        driver_version=_text(texts, DRIVER_VERSION),
        mig_enabled=True if mig else (False if gpu.values.get(MIG_MODE) == 0 else None),
        fabric_state=state,
        fabric_status=status,
        values=values,
        statics=statics,
        missing=missing,
    )


def _whole(number: float | None) -> int:
    return round(number) if number is not None and 0 <= number < 2**31 - 17 else -1


def _text(texts: Mapping[str, str], name: str) -> str | None:
    text = texts.get(name)
    return None if text is None or text.startswith("<<<") else text
