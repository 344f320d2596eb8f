"""GPU samples, inventory and events from nvidia-smi: its XML or its CSV, from the command or from captures.

To read another metric: its `smi_xml` or `smi_query` in the catalogue; nothing here.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from collectors import Reading
from collectors.cells import Missing
from collectors.command import Command, Output
from collectors.listing import ListedGpu, Listing, lost_handles, normal_bus_id
from collectors.nvidia_smi_csv import QUERY, parse_csv, refused_field
from collectors.nvidia_smi_xml import parse_xml
from collectors.roster import Roster, is_placeholder
from telemetry.errors import BadInput, SettingsError, SourceUnavailable
from telemetry.metrics import SAMPLED
from telemetry.records import Event, NodeInventory, SampleBatch

log = logging.getLogger(__name__)

SOURCE = "nvidia_smi"
DRIVER_LISTING = Path("/proc/driver/nvidia/gpus")
"""Where the kernel's driver names the GPUs it knows, by bus id: read when nvidia-smi refuses to list any."""

# What nvidia-smi says when it can tell nothing at all, and what that means for the node.
_REFUSALS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Driver/library version mismatch", re.IGNORECASE), "the driver was changed, a reboot is due"),
    (re.compile(r"Failed to initialize NVML: Unknown Error", re.IGNORECASE), "access to the GPUs was lost"),
    (re.compile(r"couldn't communicate with the NVIDIA driver", re.IGNORECASE), "the driver is not loaded"),
    (re.compile(r"Failed to initialize NVML", re.IGNORECASE), "the driver does not answer"),
    (re.compile(r"No devices were found", re.IGNORECASE), "no GPU is found"),
)


class NvidiaSmi:
    """GPU samples from nvidia-smi, one per GPU that answered.

    Fills every sampled metric that has a path of nvidia-smi in the catalogue; has no profiling ratios, energy or
    NVLink counters, and XIDs never appear there. A GPU that is lost costs its neighbours nothing: when the driver
    refuses the whole listing because of it, the others are asked one by one. Samples carry the time at which the
    answer came; their interval is the agent's. With `files`, every capture is one node (named by `nodes`, else by the
    file's stem) and each reading replays them all as of now.

    Raises SourceUnavailable when the command is missing, says that the driver is not there, or no GPU gives a value;
    SourceHangs when it does not answer in `timeout_s`, and as long as a killed one is stuck in the driver.
    """

    def __init__(
        self,
        *,
        node: str,
        mode: Literal["xml", "csv"] = "xml",
        command: Sequence[str] = ("nvidia-smi",),
        files: Sequence[Path] = (),
        nodes: Sequence[str] = (),
        timeout_s: float = 20.0,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        expected_gpus: int | None = None,
        place: Sequence[tuple[str, str]] = (),
        driver_listing: Path = DRIVER_LISTING,
    ) -> None:
        if mode not in ("xml", "csv"):
            raise SettingsError(f"nvidia-smi mode is {mode!r}; xml or csv")
        if not files and not command:
            raise SettingsError("nvidia-smi needs a command or files")
        names = tuple(nodes) or tuple(path.stem for path in map(Path, files))
        if len(names) != len(files) or len(set(names)) != len(names):
            raise SettingsError(f"{len(files)} captures need as many different node names, not {list(names)}")
        self._files = dict(zip(names, map(Path, files), strict=True))
        self._mode = mode
        self._command = Command(command or ("nvidia-smi",), monotonic=monotonic)
        self._timeout_s = timeout_s
        self._clock_ns = clock_ns
        self._monotonic = monotonic
        self._driver_listing = driver_listing
        self._fields = list(QUERY)
        self._rosters = {
            name: Roster(node=name, expected_gpus=expected_gpus, place=place) for name in (names or (node,))
        }
        self._reported: set[str] = set()

    def collect(self) -> Reading:
        """This moment's samples, with inventory when it changed and events when something happened."""
        samples: list[SampleBatch] = []
        inventory: list[NodeInventory] = []
        events: list[Event] = []
        rejected: Counter[str] = Counter()
        for name, listing in self._listings(rejected).items():
            if listing.gpus and not any(gpu.answered or gpu.lost for gpu in listing.gpus):
                reasons = {str(reason) for gpu in listing.gpus for reason in gpu.missing.values()}
                raise SourceUnavailable(f"no GPU of {name} gives a value: {', '.join(sorted(reasons))}")
            self._report_placeholders(name, listing)
            time_ns = self._clock_ns()
            changes = self._rosters[name].update(listing, time_ns=time_ns)
            if changes.answered:
                samples.append(_batch(name, changes.answered, time_ns))
            if changes.inventory is not None:
                inventory.append(changes.inventory)
            events += changes.events
            rejected.update(changes.rejected)
            rejected.update(_reasons(changes.answered))
        self._report(rejected)
        return Reading(samples=samples, inventory=inventory, events=events, rejected=dict(rejected))

    def close(self) -> None:
        """Kill a call that is still running."""
        self._command.close()

    def _listings(self, rejected: Counter[str]) -> dict[str, Listing]:
        if not self._files:
            return {name: self._ask(roster) for name, roster in self._rosters.items()}
        listings: dict[str, Listing] = {}
        problems: list[str] = []
        for name, path in self._files.items():
            try:
                content = path.read_bytes()
                listings[name] = parse_xml(content) if b"<nvidia_smi_log" in content else parse_csv(content)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                rejected["capture:unreadable"] += 1
            except BadInput as error:
                problems.append(f"{path}: {error}")
                rejected[f"capture:{error.rule}"] += 1
        if not listings:
            raise SourceUnavailable(f"no capture can be read: {'; '.join(problems)}")
        for problem in problems:
            self._once(problem, "%s", problem)
        return listings

    def _ask(self, roster: Roster) -> Listing:
        until = self._monotonic() + self._timeout_s
        output = self._query(until)
        try:
            listing = self._parse(output)
        except BadInput as error:
            lost = lost_handles(output.text)
            if not lost:
                raise _refusal(output, error) from None
            listing = Listing(gpus=(), lost=lost)
        if listing.gpus or not listing.lost:
            return listing
        return self._ask_one_by_one(roster, listing.lost, until)

    def _ask_one_by_one(self, roster: Roster, lost: Mapping[str, str], until: float) -> Listing:
        """The other GPUs, when the lost ones made nvidia-smi refuse the whole listing."""
        buses = [bus for bus in dict.fromkeys((*roster.buses, *self._driver_buses())) if bus not in lost]
        gpus: list[ListedGpu] = []
        gone = dict(lost)
        complete = True
        for bus in buses:
            output = self._query(until, "-i", bus)
            try:
                gpus += self._parse(output).gpus
            except BadInput:
                found = lost_handles(output.text)
                gone |= found
                complete = complete and bool(found)
        if not gpus and not roster.buses:
            raise SourceUnavailable(f"no GPU answers; lost: {', '.join(sorted(gone))}")
        return Listing(gpus=gpus, lost=gone, complete=complete)

    def _driver_buses(self) -> list[str]:
        try:
            names = sorted(path.name for path in self._driver_listing.iterdir())
        except OSError:
            return []
        return [bus for bus in map(normal_bus_id, names) if bus is not None]

    def _query(self, until: float, *selection: str) -> Output:
        """One answer; in CSV mode fields that this nvidia-smi refuses are dropped, for good."""
        while True:
            left = max(0.1, until - self._monotonic())
            if self._mode == "xml":
                return self._command.run("-q", "-x", *selection, deadline_s=left)
            query = f"--query-gpu={','.join(self._fields)}"
            output = self._command.run(query, "--format=csv", *selection, deadline_s=left)
            refused = refused_field(output.text)
            if refused is None or refused not in self._fields or len(self._fields) == 1:
                return output
            self._fields.remove(refused)
            log.info("this nvidia-smi does not know the field %s: going on without it", refused)

    def _parse(self, output: Output) -> Listing:
        xml = self._mode == "xml"
        listing = parse_xml(output.stdout) if xml else parse_csv(output.stdout, asked=self._fields)
        return replace(listing, lost={**lost_handles(output.text), **listing.lost})

    def _once(self, key: str, message: str, *values: object) -> None:
        if key not in self._reported:
            self._reported.add(key)
            log.warning(message, *values)

    def _report(self, rejected: Mapping[str, int]) -> None:
        for reason in rejected:
            self._once(reason, "nvidia-smi gives no usable value: %s (said once, counted always)", reason)

    def _report_placeholders(self, node: str, listing: Listing) -> None:
        if any(gpu.uuid is not None and is_placeholder(gpu.uuid) for gpu in listing.gpus):
            self._once("placeholder", "%s: scrubbed UUIDs are no identity: made unique with the node's name", node)


def _refusal(output: Output, error: BadInput) -> SourceUnavailable:
    words = next((line.strip() for line in output.text.splitlines() if line.strip()), "no output")
    meaning = next((text for pattern, text in _REFUSALS if pattern.search(output.text)), str(error))
    return SourceUnavailable(f"{meaning}: nvidia-smi says {words[:200]!r} (status {output.status})")


def _reasons(gpus: Mapping[str, ListedGpu]) -> Counter[str]:
    """Values that failed, by "metric:reason"; what the model does not have is no failure."""
    return Counter(
        f"{metric}:{reason}"
        for gpu in gpus.values()
        for metric, reason in gpu.missing.items()
        if reason is not Missing.UNSUPPORTED
    )


def _batch(node: str, gpus: Mapping[str, ListedGpu], time_ns: int) -> SampleBatch:
    rows = list(gpus.values())
    columns = {metric.name: [gpu.values.get(metric.name) for gpu in rows] for metric in SAMPLED}
    return SampleBatch(
        node=node,
        gpus=tuple(gpus),
        interval_s=0.0,
        source=SOURCE,
        time_ns=[time_ns] * len(rows),
        gpu=list(range(len(rows))),
        columns={name: values for name, values in columns.items() if any(value is not None for value in values)},
    )
