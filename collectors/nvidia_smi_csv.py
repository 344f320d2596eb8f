"""`nvidia-smi --query-gpu=... --format=csv`: its table as a listing, and the fields that are asked for.

To ask for one more field: name it as a metric's `smi_query` in the catalogue.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence

from collectors.listing import STATICS, Cell, Fields, ListedGpu, Listing, lost_handles, read_gpu
from telemetry.errors import BadInput
from telemetry.metrics import SAMPLED

FIELDS = Fields(
    uuid="uuid",
    bus_id="pci.bus_id",
    model="name",
    serial="serial",
    driver_version="driver_version",
    mig="mig.mode.current",
    fabric_state="fabric.state",
    fabric_status="fabric.status",
    xml=False,
)
QUERY: tuple[str, ...] = tuple(
    dict.fromkeys(
        (
            *(FIELDS.uuid, FIELDS.bus_id, FIELDS.model, FIELDS.serial, FIELDS.driver_version),
            *(FIELDS.mig, FIELDS.fabric_state, FIELDS.fabric_status),
            *(path for metric in (*SAMPLED, *STATICS) for path in metric.smi_query),
        )
    )
)
"""Everything worth asking for; an older nvidia-smi refuses some of it by name."""

# A heading shows a field's full name, also when it was asked for by its short one.
_FULL_NAMES: Mapping[str, str] = {
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "gpu_name": "name",
    "gpu_serial": "serial",
    "clocks.max.mem": "clocks.max.memory",
}
_HEADING = re.compile(r"([\w.]+)(?:\s*\[([^\]]*)\])?", re.ASCII)
_REFUSED = re.compile(r'Field "([^"]*)" is not a valid field to query')


class _RowCells:
    """The cells of one row."""

    def __init__(self, cells: Mapping[str, Cell]) -> None:
        self._cells = cells

    def cell(self, path: str) -> Cell | None:
        return self._cells.get(path)


def refused_field(text: str) -> str | None:
    """The field that this nvidia-smi does not know, by its complaint; None if it complains of nothing like that."""
    match = _REFUSED.search(text)
    return None if match is None else match[1]


def parse_csv(output: bytes, *, asked: Sequence[str] = ()) -> Listing:
    """The GPUs of one table; raises BadInput when there is none in the output.

    With `asked`, columns are also known by the names they were asked for, in that order. A row with too few or too
    many cells is left out and counted; the others are kept.
    """
    text = output.decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if _is_heading(line)), None)
    if start is None:
        raise BadInput("no_listing", f"no heading of a table in {len(output)} bytes")
    headings = [_heading(cell) for cell in _rows([lines[start]])[0]]
    gpus: list[ListedGpu] = []
    broken = 0
    for line in lines[start + 1 :]:
        row = _rows([line])[0]
        if len(row) != len(headings):
            broken += 0 if lost_handles(line) else 1
            continue
        gpus.append(read_gpu(_RowCells(_cells(headings, row, asked)), FIELDS))
    return Listing(
        gpus=gpus,
        complete=not broken,
        lost=lost_handles(text),
        broken={"row:wrong_length": broken} if broken else {},
    )


def _rows(lines: Iterable[str]) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in csv.reader(lines, skipinitialspace=True)]


def _heading(cell: str) -> tuple[str, str]:
    match = _HEADING.fullmatch(cell)
    if match is None:
        return cell, ""
    name = _FULL_NAMES.get(match[1], match[1])
    return name, match[2] or ""


def _is_heading(line: str) -> bool:
    names = {_heading(cell)[0] for cell in _rows([line])[0]}
    return len(names) > 1 and not names.isdisjoint(QUERY)


def _cells(headings: Sequence[tuple[str, str]], row: Sequence[str], asked: Sequence[str]) -> dict[str, Cell]:
    cells = {name: Cell(text, unit) for (name, unit), text in zip(headings, row, strict=True)}
    if len(asked) == len(row):
        for name, (_, unit), text in zip(asked, headings, row, strict=True):
            cells.setdefault(name, Cell(text, unit))
    return cells
