"""What people and programs read on a terminal: tables by rich, JSON and CSV with the API's field names.

To add a column for people: one line in `COLUMNS`.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

TIER_STYLES = {"premium": "green", "standard": "", "degraded": "yellow", "quarantine": "bold red", "unknown": "dim"}
Row = Mapping[str, Any]


def _speed(row: Row) -> str:
    return "-" if row.get("speed") is None else f"{row['speed']:.3f}"


def _interval(row: Row) -> str:
    low, high = row.get("speed_low"), row.get("speed_high")
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def _slowdown(row: Row) -> str:
    return "-" if row.get("expected_slowdown") is None else f"{row['expected_slowdown']:.3f}"


def _reasons(row: Row) -> str:
    return ", ".join(str(reason.get("code", "")) for reason in row.get("reasons") or [])


def _of(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(name) is None else str(row[name])


COLUMNS: Mapping[str, tuple[tuple[str, Callable[[Row], str]], ...]] = {
    "gpu": (
        ("#", _of("rank")),
        ("GPU", _of("gpu_uuid")),
        ("node", _of("node")),
        ("class", _of("workload_class")),
        ("speed", _speed),
        ("90 % interval", _interval),
        ("tier", _of("tier")),
        ("reasons", _reasons),
        ("action", _of("action")),
    ),
    "node": (
        ("#", _of("rank")),
        ("node", _of("node")),
        ("class", _of("workload_class")),
        ("slowdown", _slowdown),
        ("healthy", lambda row: f"{row.get('healthy_gpus', '-')}/{row.get('gpus', '-')}"),
        ("slowest GPU", _of("slowest_gpu")),
    ),
    "block": (
        ("#", _of("rank")),
        ("block", _of("value")),
        ("class", _of("workload_class")),
        ("slowdown", _slowdown),
        ("healthy", lambda row: f"{row.get('healthy_gpus', '-')}/{row.get('gpus', '-')}"),
        ("full nodes", lambda row: f"{row.get('full_nodes', '-')}/{row.get('nodes', '-')}"),
        ("slowest GPU", _of("slowest_gpu")),
    ),
}


def ranking(answer: Mapping[str, Any], *, by: str, form: str) -> None:
    """Print a ranking of the API: `items` with as_of and total."""
    items: Sequence[Row] = answer["items"]
    if form != "table":
        rows(items, form=form)
        return
    console = Console()
    console.print(table(items, by=by))
    if not items:
        console.print("Nothing to rank yet.")
    total = answer.get("total", len(items))
    stale = "  [bold red]stale: no fresh evidence, every tier is unknown[/]" if answer.get("stale") else ""
    console.print(f"{len(items)} of {total}, as of {answer.get('as_of') or 'never'}{stale}", highlight=False)


def table(items: Sequence[Row], *, by: str) -> RichTable:
    """A table of ranked GPUs, nodes or blocks for people."""
    columns = COLUMNS.get(by, COLUMNS["block"])
    shown = RichTable(box=None, header_style="bold", pad_edge=False)
    for title, _ in columns:
        shown.add_column(title, justify="right" if title in ("#", "speed", "slowdown") else "left", no_wrap=True)
    for row in items:
        shown.add_row(*(Text(value(row)) for _, value in columns), style=TIER_STYLES.get(str(row.get("tier")), ""))
    return shown


def rows(items: Sequence[Row], *, form: str) -> None:
    """Print plain rows as a JSON list, CSV, or a table of all their columns."""
    if form == "json":
        json.dump(list(items), sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    names = list(items[0]) if items else []
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in items:
            writer.writerow([_cell(row.get(name)) for name in names])
        return
    shown = RichTable(*names, box=None, header_style="bold", pad_edge=False)
    for row in items:
        shown.add_row(*(Text(_cell(row.get(name))) for name in names))
    Console().print(shown)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else str(value)
