"""What people and programs read on a terminal: tables by rich, JSON and CSV with the API's field names.

To add a column for people: one line in `COLUMNS`.
"""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

TIER_STYLES = {"premium": "green", "standard": "", "degraded": "yellow", "quarantine": "bold red", "unknown": "dim"}
BARS = "▁▂▃▄▅▆▇█"
WIDE = 200  #: characters a line where nobody looks at it
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


def _where(row: Row) -> str:
    nodes = row.get("nodes") or []
    shown = ", ".join(f"{one['node']} ({len(one['gpus'])})" for one in nodes[:8])
    return shown + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")


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
    "place": (
        ("#", _of("rank")),
        ("level", _of("level")),
        ("block", _of("value")),
        ("slowdown", _slowdown),
        ("penalty", _of("locality_penalty")),
        ("spare GPUs", _of("spare_gpus")),
        ("nodes (GPUs)", _where),
        ("slowest GPU", _of("slowest_gpu")),
    ),
    "replacement": (
        ("#", _of("rank")),
        ("node", _of("node")),
        ("nearest level", _of("level")),
        ("block", _of("value")),
        ("slowdown", _slowdown),
        ("GPUs", lambda row: str(len(row.get("gpus") or []))),
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
    console = terminal()
    console.print(table(items, by=by))
    if not items:
        console.print("Nothing to rank yet.")
    total = answer.get("total", len(items))
    stale = "  [bold red]stale: no fresh evidence, every tier is unknown[/]" if answer.get("stale") else ""
    console.print(f"{len(items)} of {total}, as of {answer.get('as_of') or 'never'}{stale}", highlight=False)


def explanation(answer: Mapping[str, Any], *, form: str) -> None:
    """Print what the API knows of one GPU: as it is, or as a story in a few lines."""
    if form == "json":
        json.dump(answer, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    console = terminal()
    score, inventory = answer["score"], answer.get("inventory") or {}
    place = " > ".join(f"{level} {value}" for level, value in answer.get("place") or [])
    where = [f"node {score.get('node') or 'unknown'}", place, inventory.get("model") or ""]
    console.print(Text(f"{score['gpu_uuid']}  {', '.join(filter(None, where))}", style="bold"))
    style = TIER_STYLES.get(score["tier"], "")
    console.print(Text(f"{score['tier']} since {_time(score['tier_since_ns'])}; recommended: {score['action']}", style))
    if score.get("cause"):
        console.print(f"Cause: {score['cause']}", highlight=False)
    for reason in score.get("reasons") or []:
        console.print(f"  {reason['code']}: {reason['text']}", highlight=False)
    for name, speed in (score.get("speeds") or {}).items():
        console.print(
            f"{name}: {speed['speed']:.3f} of its typical peer, "
            f"90 % interval {speed['low']:.3f} to {speed['high']:.3f}, "
            f"from {speed['samples']} {speed['source']} samples",
            highlight=False,
        )
    if not score.get("speeds"):
        console.print("No speed: it was never seen busy enough, and nothing was measured on it.")
    console.print(f"Compared with {score['peers']} peers: {score.get('peer_group') or 'none'}", highlight=False)
    for line in _shares(answer.get("variance") or []):
        console.print(line, highlight=False)
    if clocks := [w["effective_clock_mhz"] for w in reversed(answer.get("windows") or [])]:
        console.print(f"Effective clock, last {len(clocks)} windows: {sparkline(clocks)}", highlight=False)
    for change in answer.get("transitions") or []:
        moved = f"{change['from_tier'] or 'first seen'} -> {change['to_tier']}"
        console.print(f"  {_time(change['time_ns'])}  {moved}  {_reasons(change)}", highlight=False)
    for event in answer.get("events") or []:
        line = f"  {_time(event['time_ns'])}  {event['kind']} {event['code'] or ''} {event.get('detail') or ''}"
        console.print(line.rstrip(), highlight=False)
    stale = " (stale)" if answer.get("stale") else ""
    console.print(f"As of {answer.get('as_of') or 'never'}{stale}", highlight=False)


def _shares(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a contest: whose the differences between the peers are."""
    contests: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        contests.setdefault((row["name"], row["scope"]), []).append(row)
    lines = []
    for (name, scope), levels in contests.items():
        known = [row for row in levels if row["share"] is not None]
        told = ", ".join(f"{row['level']} {'nil' if row['nil'] else format(row['share'], '.0%')}" for row in known)
        note = f" ({levels[0]['note']})" if levels[0].get("note") else ""
        lines.append(f"Differences in {name} ({scope} results) are: {told or 'not to be told apart'}{note}")
    return lines


def sparkline(values: Sequence[float | None]) -> str:
    """A line of bars from the lowest to the highest value, which it names; a gap where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "never busy"
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    bars = "".join(" " if v is None else BARS[min(7, int(8 * (v - low) / span))] for v in values)
    return f"{bars} ({low:.0f} to {high:.0f} MHz)"


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def table(items: Sequence[Row], *, by: str) -> RichTable:
    """A table of ranked GPUs, nodes or blocks for people."""
    columns = COLUMNS.get(by, COLUMNS["block"])
    shown = RichTable(box=None, header_style="bold", pad_edge=False)
    for title, _ in columns:
        right = title in ("#", "speed", "slowdown")
        shown.add_column(title, justify="right" if right else "left", overflow="fold", no_wrap=right or title == "tier")
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
    terminal().print(shown)


def terminal() -> Console:
    """Standard output: as wide as it is, or wide enough for a ranking where it is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else str(value)
