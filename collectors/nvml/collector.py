"""GPU samples, inventory and events from NVML, once a second, without root and without a host engine.

To fill another metric: `collectors/nvml_child`; to tell of another change: `collectors/roster.py`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from collectors import Reading
from collectors.cells import Missing
from collectors.clock import STEP_S
from collectors.listing import ListedGpu, Listing
from collectors.nvml.crew import NO_PERMISSION, Crew
from collectors.nvml.jobs import Jobs
from collectors.nvml.kernel_log import KERNEL_LOG, KernelLog
from collectors.nvml.patience import Patience
from collectors.nvml.seat import Hang, Look, Seat, Trouble
from collectors.nvml.values import check
from collectors.nvml.xids import XidLedger
from collectors.pods import POD_LOGS, Pods
from collectors.proc import PROC, Proc
from collectors.roster import Changes, Roster
from telemetry.metrics import METRICS, SAMPLED, Kind
from telemetry.records import Event, NodeJobs, SampleBatch

log = logging.getLogger(__name__)

SOURCE = "nvml"
SET_BACK_NS = round(STEP_S * 1e9)
"""A reading from so long before the last one is no repeat: the wall clock was set back, and goes on from there."""
PCI_DEVICES = Path("/sys/bus/pci/devices")
"""Where Linux says to which NUMA node a PCI device belongs: NVML's own call speaks of the GPU's memory."""
_STATICS = frozenset(metric.name for metric in METRICS.values() if metric.kind is Kind.STATIC)
_TEXTS = frozenset(metric.name for metric in METRICS.values() if metric.type == "string")
JOBS_EVERY_S = 10.0  #: between two looks at who holds the GPUs: a job lasts longer
RESET = {"recovery_action": 1}
"""What "reset required" says, in the words of the driver's recovery actions."""

Row = tuple[int, dict[str, int | float]]


class Nvml:
    """GPU samples from NVML, one per GPU that answered in time, with the time at which the child began to read it.

    Fills what each model and driver supports, activity by GPM included. A GPU that hangs or is slow costs itself only:
    it is read by a process of its own, the others at their full rate. Raises SourceUnavailable when NVML as a whole
    cannot be used (library, driver, permission, access lost), SourceHangs when no GPU answers any more.
    `environment` is added to that of the children. Every `jobs_every_s` seconds the processes on the GPUs say which
    jobs run there, by the control groups under `proc` and the folders of `pod_logs`; None: never, and nothing of it is
    asked.
    """

    def __init__(
        self,
        *,
        node: str,
        interval_s: float = 1.0,
        patience: Patience | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        expected_gpus: int | None = None,
        place: Sequence[tuple[str, str]] = (),
        kernel_log: Path = KERNEL_LOG,
        pci_devices: Path = PCI_DEVICES,
        environment: Mapping[str, str] = MappingProxyType({}),
        jobs_every_s: float | None = JOBS_EVERY_S,
        proc: Path = PROC,
        pod_logs: Path = POD_LOGS,
    ) -> None:
        self._node = node
        self._crew = Crew(patience or Patience.of(interval_s), environment=environment, who_every_s=jobs_every_s)
        self._jobs = Jobs(node, Proc(proc), Pods(pod_logs))
        self._clock_ns = clock_ns
        self._expected = expected_gpus
        self._place = tuple(place)
        self._pci_devices = pci_devices
        self._numa: dict[str, int | None] = {}
        self._kernel_log = KernelLog(kernel_log, clock_ns=clock_ns)
        self._xids = XidLedger(node)
        self._roster: Roster | None = None
        self._names: dict[str, str] = {}  # bus id -> gpu_uuid
        self._last_ns: dict[str, int] = {}
        self._silent: set[int] = set()
        self._reported: set[str] = set()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the children, for whoever counts what they cost."""
        return self._crew.pids

    @property
    def starts(self) -> int:
        """How many children were started so far."""
        return self._crew.starts

    def pace(self, interval_s: float) -> None:
        """Be as patient from now on as one reading in so many seconds allows."""
        self._crew.patience = Patience.of(interval_s)

    @property
    def driver(self) -> str | None:
        """The driver's version, once it was read."""
        return self._crew.driver

    @property
    def reads_kernel_log(self) -> bool:
        """Whether XIDs are read from the kernel's log too."""
        return self._kernel_log.readable

    def collect(self) -> Reading:
        """This moment's samples, with inventory when it changed and events when something happened."""
        look = self._crew.look()
        time_ns = self._clock_ns()
        listing, rows, rejected, silent = self._listing(look)
        if self._roster is None:
            self._roster = Roster(node=self._node, expected_gpus=self._expected or self._counted(), place=self._place)
        changes = self._roster.update(listing, time_ns=time_ns)
        self._names |= {gpu.bus_id: name for name, gpu in changes.answered.items() if gpu.bus_id is not None}
        rejected.update(changes.rejected)
        events = [
            *changes.events,
            *self._hangs(look, time_ns),
            *self._silences(silent, time_ns),
            *self._xid_events(look, time_ns, rejected),
            *(self._event(time_ns, "", "collector_failed", note) for note in look.notes),
        ]
        jobs = self._running(look, changes, time_ns, rejected)
        self._report(rejected)
        return Reading(
            samples=self._batch(changes, rows),
            inventory=() if changes.inventory is None else (changes.inventory,),
            events=events,
            jobs=jobs,
            rejected=dict(rejected),
        )

    def close(self) -> None:
        """Kill the children; safe to call from another thread, and more than once."""
        self._crew.close()
        self._kernel_log.close()

    def _counted(self) -> int | None:
        """What NVML counts, if one of these never showed who it is: it will be missed. GPUs of others do not count."""
        seats = [seat for seat in self._crew.seats.values() if seat.code != NO_PERMISSION]
        return len(seats) if any(seat.bus is None for seat in seats) else None

    def _listing(self, look: Look) -> tuple[Listing, dict[str, list[Row]], Counter[str], dict[int, str]]:
        gpus: list[ListedGpu] = []
        waiting: set[str] = set()
        rows: dict[str, list[Row]] = {}
        rejected: Counter[str] = Counter()
        silent: dict[int, str] = {}
        hidden = False
        for seat in self._crew.seats.values():
            readings = look.readings.get(seat.number, ())
            listed: ListedGpu | None = None
            for reading in readings:
                codes = reading.get("x", {})
                values, missing = (dict(RESET), {}) if "reset" in reading else check(reading.get("v", {}), codes)
                rejected.update(f"{name}:{why}" for name, why in missing.items() if why is not Missing.UNSUPPORTED)
                if values:
                    silent.pop(seat.number, None)
                    self._silent.discard(seat.number)
                    listed = self._listed(seat, values, missing)
                    rows.setdefault(seat.bus or "", []).append((int(reading["t"]), values))
                else:
                    silent[seat.number] = ", ".join(sorted({str(why).replace("_", " ") for why in missing.values()}))
            if listed is not None:
                gpus.append(listed)
            elif seat.trouble is Trouble.LOST:
                gpus.append(self._listed(seat, {}, {}, lost=seat.words))
            elif seat.bus is not None:
                waiting.add(seat.bus)
            else:
                hidden = hidden or seat.code != NO_PERMISSION  # it may be any of those we know
        return Listing(gpus=gpus, complete=not hidden, waiting=frozenset(waiting)), rows, rejected, silent

    def _listed(
        self,
        seat: Seat,
        values: Mapping[str, int | float],
        missing: Mapping[str, Missing],
        *,
        lost: str | None = None,
    ) -> ListedGpu:
        known = seat.statics
        numbers = {name: value for name, value in known.items() if name in _STATICS and name not in _TEXTS}
        texts = {name: str(value) for name, value in known.items() if name in _TEXTS}
        mig = known.get("mig_enabled")
        return ListedGpu(
            uuid=seat.uuid,
            bus_id=seat.bus,
            model=_text(known.get("model")),
            serial=_text(known.get("serial")),
            driver_version=self._crew.driver,
            mig_enabled=mig if isinstance(mig, bool) else None,
            fabric_state=_text(known.get("fabric_state")),
            fabric_status=_text(known.get("fabric_status")),
            values=values,
            statics={**check(numbers, {})[0], **texts, **self._numa_node(seat)},
            missing=missing,
            lost=lost,
        )

    def _numa_node(self, seat: Seat) -> dict[str, int]:
        bus = seat.bus or ""
        if bus not in self._numa:
            path = self._pci_devices / bus[4:] / "numa_node"  # Linux writes the domain with four digits
            try:
                number = int(path.read_text(encoding="ascii"))
            except (OSError, ValueError):
                number = -1
            self._numa[bus] = number if 0 <= number < 2**16 else None
        found = self._numa[bus]
        return {} if found is None else {"numa_node": found}

    def _batch(self, changes: Changes, rows: Mapping[str, list[Row]]) -> tuple[SampleBatch, ...]:
        gpus = tuple(changes.answered)
        times: list[int] = []
        index: list[int] = []
        each: list[dict[str, int | float]] = []
        for place, (name, gpu) in enumerate(changes.answered.items()):
            for time_ns, values in sorted(rows.get(gpu.bus_id or "", ()), key=lambda row: row[0]):
                last_ns = self._last_ns.get(name, 0)
                if time_ns > last_ns or time_ns <= last_ns - SET_BACK_NS:
                    self._last_ns[name] = time_ns
                    times.append(time_ns)
                    index.append(place)
                    each.append(values)
        if not each:
            return ()
        names = set().union(*each)
        columns = {metric.name: [row.get(metric.name) for row in each] for metric in SAMPLED if metric.name in names}
        return (
            SampleBatch(
                node=self._node, gpus=gpus, interval_s=0.0, source=SOURCE, time_ns=times, gpu=index, columns=columns
            ),
        )

    def _event(self, time_ns: int, gpu_uuid: str, kind: str, detail: str) -> Event:
        log.warning("%s: %s %s: %s", self._node, kind, gpu_uuid, detail)
        return Event(time_ns=time_ns, node=self._node, gpu_uuid=gpu_uuid, kind=kind, detail=detail)

    def _name(self, seat: Seat) -> str:
        return self._names.get(seat.bus or "") or seat.uuid or ""

    def _hangs(self, look: Look, time_ns: int) -> list[Event]:
        return [self._event(time_ns, self._name(hang.seat), "collector_hang", _told(hang)) for hang in look.hangs]

    def _silences(self, silent: Mapping[int, str], time_ns: int) -> list[Event]:
        """GPUs that answer every call and give nothing that can be: no telemetry, and no word that they are gone."""
        fresh = silent.keys() - self._silent
        self._silent |= silent.keys()
        return [
            self._event(
                time_ns,
                self._name(self._crew.seats[number]),
                "collector_failed",
                f"NVML gives no usable value for it: {silent[number] or 'nothing is supported'}",
            )
            for number in sorted(fresh)
        ]

    def _xid_events(self, look: Look, time_ns: int, rejected: Counter[str]) -> list[Event]:
        """The kernel's first: they have their own time and words."""
        kernel = []
        for xid in self._kernel_log.read():
            if xid.bus in self._names:
                kernel.append((xid.time_ns, self._names[xid.bus], xid.code, xid.detail))
            else:
                log.warning("XID %d of %s, which is no GPU known here: %s", xid.code, xid.bus, xid.detail)
                rejected["xid:unknown_gpu"] += 1
        nvml = [
            (time_ns, self._name(self._crew.seats[number]), code, "")
            for number, code in look.xids
            if number in self._crew.seats
        ]
        return [*self._xids.tell("kernel", kernel), *self._xids.tell("nvml", nvml)]

    def _running(self, look: Look, changes: Changes, time_ns: int, rejected: Counter[str]) -> tuple[NodeJobs, ...]:
        """Jobs, of those GPUs whose processes were read with these readings."""
        for gone in changes.replaced:
            self._jobs.forget(gone)
        here = {gpu.bus_id: name for name, gpu in changes.answered.items()}
        lists = {
            here[bus]: reading["p"]
            for number, readings in look.readings.items()
            if (bus := self._crew.seats[number].bus) in here
            for reading in readings
            if "p" in reading
        }
        return self._jobs.update(lists, time_ns=time_ns, rejected=rejected)

    def _report(self, rejected: Mapping[str, int]) -> None:
        for reason in rejected:
            if reason not in self._reported:
                self._reported.add(reason)
                log.warning("NVML gives no usable value: %s (said once, counted always)", reason)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _told(hang: Hang) -> str:
    if hang.over:
        return f"answers again; {hang.call} had hung for {hang.seconds:.1f} s"
    return f"query hangs: {hang.call} gives no answer for {hang.seconds:.1f} s"
