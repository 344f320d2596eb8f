"""A listing: the GPUs of one node as nvidia-smi shows them at one moment, in the catalogue's metrics and units.

To read another format: give its cells by path (`Cells`) and its names of the identity fields (`Fields`).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from collectors.cells import Missing, excuse, parse, plain_text
from telemetry.metrics import METRICS, SAMPLED, Kind, Metric

_BUS_ID = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.ASCII | re.IGNORECASE)
_HANDLE = re.compile(
    r"device handle for GPU\s*\d*:?\s*((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\s*:\s*([^\n<]*)",
    re.ASCII | re.IGNORECASE,
)
STATICS: tuple[Metric, ...] = tuple(metric for metric in METRICS.values() if metric.kind is Kind.STATIC)
"""Metrics that belong to the inventory."""


class Cell(NamedTuple):
    """The text of one value, and the unit of its heading if it has one."""

    text: str
    unit: str = ""


class Cells(Protocol):
    """The cells of one GPU."""

    def cell(self, path: str) -> Cell | None:
        """The cell at this path; None if the listing does not have it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Where a format keeps what is no metric; and which of a metric's paths are its own."""

    uuid: str
    bus_id: str
    model: str
    serial: str
    driver_version: str
    mig: str
    fabric_state: str
    fabric_status: str
    xml: bool

    def paths(self, metric: Metric) -> tuple[str, ...]:
        """The metric's alternatives in this format, best first."""
        return metric.smi_xml if self.xml else metric.smi_query


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGpu:
    """One GPU of a listing. `values` are its sampled metrics, `missing` says why others have none.

    `lost` holds the driver's words when it says that the GPU is lost; `uuid` is then often unreadable.
    """

    uuid: str | None
    bus_id: str | None
    model: str | None
    serial: str | None
    driver_version: str | None
    mig_enabled: bool | None
    fabric_state: str | None
    fabric_status: str | None
    values: Mapping[str, int | float]
    statics: Mapping[str, int | float | str]
    missing: Mapping[str, Missing]
    lost: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the GPU gave at least one value."""
        return self.lost is None and bool(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All GPUs of a node.

    `complete` is False when the output was cut off or damaged: an absent GPU then proves nothing. `lost` maps the bus
    ids of GPUs that are not listed, because the driver has no handle for them, to its words. `waiting` holds bus ids of
    GPUs that were asked and have not answered yet: neither lost nor gone. `broken` counts rows that could not be read,
    by reason.
    """

    gpus: Sequence[ListedGpu]
    complete: bool = True
    lost: Mapping[str, str] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    broken: Mapping[str, int] = field(default_factory=dict)


def normal_bus_id(text: str | None) -> str | None:
    """The bus id as `00000000:9b:00.0`, whichever of the usual spellings it came in; None if it is none."""
    match = _BUS_ID.fullmatch((text or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{(domain or '0').rjust(8, '0')}:{bus}:{device}.{function or '0'}".lower()


def lost_handles(text: str) -> dict[str, str]:
    """The bus ids that the driver has no handle for, with its words, from what nvidia-smi wrote around its listing."""
    found = {normal_bus_id(bus_id): words.strip() for bus_id, words in _HANDLE.findall(text)}
    return {bus_id: words for bus_id, words in found.items() if bus_id is not None}


def read_gpu(cells: Cells, fields: Fields, *, driver_version: str | None = None) -> ListedGpu:
    """One GPU from its cells."""
    values: dict[str, int | float] = {}
    statics: dict[str, int | float | str] = {}
    missing: dict[str, Missing] = {}
    for metric in SAMPLED:
        value = _read(metric, fields.paths(metric), cells)
        if isinstance(value, Missing):
            missing[metric.name] = value
        elif value is not None:
            values[metric.name] = value
    for metric in STATICS:
        if metric.type == "string":
            word = plain_text(_text(cells, fields.paths(metric)[0]))
            if word is not None:
                statics[metric.name] = word
            continue
        value = _read(metric, fields.paths(metric), cells)
        if isinstance(value, Missing):
            missing[metric.name] = value
        elif value is not None:
            statics[metric.name] = value
    uuid = _text(cells, fields.uuid)
    lost = Missing.LOST in missing.values() or excuse(uuid or "") is Missing.LOST
    mig = plain_text(_text(cells, fields.mig))
    return ListedGpu(
        uuid=plain_text(uuid),
        bus_id=normal_bus_id(_text(cells, fields.bus_id)),
        model=plain_text(_text(cells, fields.model)),
        serial=plain_text(_text(cells, fields.serial)),
        driver_version=plain_text(_text(cells, fields.driver_version)) or driver_version,
        mig_enabled=None if mig is None else mig.casefold() == "enabled",
        fabric_state=plain_text(_text(cells, fields.fabric_state)),
        fabric_status=_status(_text(cells, fields.fabric_status)),
        values=values,
        statics=statics,
        missing=missing,
        lost="GPU is lost" if lost else None,
    )


def _text(cells: Cells, path: str) -> str | None:
    cell = cells.cell(path)
    return None if cell is None else cell.text


def _status(text: str | None) -> str | None:
    """The fabric's status: an error's own words are the status here, so that "Unknown Error" is kept."""
    if text is None or excuse(text) in (Missing.UNSUPPORTED, Missing.NO_PERMISSION, Missing.LOST):
        return None
    return text.strip()


def _read(metric: Metric, alternatives: Sequence[str], cells: Cells) -> int | float | Missing | None:
    """The first alternative that has a value, else the weightiest excuse; None where the listing knows none of them."""
    reason: Missing | None = None
    for alternative in alternatives:
        parts = [cells.cell(path) for path in alternative.split("+")]
        present = [cell for cell in parts if cell is not None]
        if len(present) < len(parts):
            continue
        total = _sum([parse(metric, cell.text, unit=cell.unit) for cell in present])
        if not isinstance(total, Missing):
            return total
        if reason is None or reason is Missing.UNSUPPORTED:
            reason = total
    return reason


def _sum(values: Sequence[int | float | Missing]) -> int | float | Missing:
    """Parts that the model lacks are left out; a failed part makes the sum unknown: a lower one would look reset."""
    failed = [value for value in values if isinstance(value, Missing) and value is not Missing.UNSUPPORTED]
    if failed:
        return failed[0]
    known = [value for value in values if not isinstance(value, Missing)]
    return sum(known) if known else Missing.UNSUPPORTED
