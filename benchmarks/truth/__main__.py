"""Print how far the scores agree with real measurements; only the sets named, or all that lie beside the checkout.

Run: python -m benchmarks.truth [--longhorn CSV] [--azure CSV] [--bytedance PARQUET...] [--pal CSV...]
[--pal-traces CSV...] [--gemm CSV] [--campaign SEEDS] [--json OUT]. To add a set: a module with `figures`, one option.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.truth import azure, bytedance, gemm, longhorn, pal
from benchmarks.truth.figure import Figure, table, write

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if something was told, 1 if nothing could be (no data, or only parts that are not installed)."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--longhorn", type=Path, metavar="CSV")
    parser.add_argument("--azure", type=Path, metavar="CSV")
    parser.add_argument("--bytedance", type=Path, nargs="+", default=[], metavar="PARQUET")
    parser.add_argument("--pal", type=Path, nargs="+", default=[], metavar="CSV", help="profiles: shares of variance")
    parser.add_argument("--pal-traces", type=Path, nargs="+", default=[], metavar="CSV", help="job traces: placement")
    parser.add_argument("--gemm", type=Path, metavar="CSV", help="repeated measurements with columns Node, GPU, Time")
    parser.add_argument("--campaign", type=int, metavar="SEEDS", help="simulated faults, so many seeds")
    parser.add_argument("--json", type=Path, metavar="OUT")
    chosen = parser.parse_args(arguments)
    if not _named(chosen):
        if not DATA.is_dir():
            sys.stderr.write(f"No set was named and {DATA} is absent: nothing to compare with.\n")
            return 1
        _take_all(chosen)
    rows = list(_rows(chosen))
    if not rows:
        return 1
    print(table(rows))
    missed = [row for row in rows if row["holds"] is False]
    judged = sum(row["holds"] is not None for row in rows)
    print(f"\n{judged - len(missed)} of {judged} targets hold; {len(rows) - judged} figures without a target")
    if chosen.json:
        write(rows, chosen.json)
    return 0


def _named(chosen: argparse.Namespace) -> bool:
    return any(
        getattr(chosen, name) for name in ("longhorn", "azure", "bytedance", "pal", "pal_traces", "gemm", "campaign")
    )


def _take_all(chosen: argparse.Namespace) -> None:
    """Every set of the folder of real measurements; no simulated campaign, which is not data."""
    chosen.longhorn = DATA / "longhorn" / "sgemm.csv"
    chosen.azure = DATA / "azure_a100" / "benchmarks.csv"
    chosen.bytedance = sorted((DATA / "bytedance").glob("trace-*.parquet"))
    chosen.pal = sorted((DATA / "pal").glob("*-agg.csv"))
    chosen.pal_traces = sorted((DATA / "pal").glob("workload-*.csv"))


def _rows(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if chosen.longhorn:
        yield from _own(chosen.longhorn, longhorn.figures(chosen.longhorn))
    for path in chosen.pal:
        yield from _own(path, pal.figures(path))
    if chosen.azure:
        yield from _own(chosen.azure, azure.figures(chosen.azure))
    for path in chosen.bytedance:
        yield from _own(path, bytedance.figures(path))
    if chosen.gemm:
        yield from _own(chosen.gemm, gemm.figures(chosen.gemm))
    if chosen.pal_traces:
        yield from _others("benchmarks.placement", _with_profiles(chosen.pal_traces))
    if chosen.campaign:
        yield from _others("benchmarks.campaign", chosen.campaign)


def _with_profiles(traces: Sequence[Path]) -> list[Path]:
    """The traces and the profiles that lie beside them, or else with the real measurements: a job's time follows from
    both."""
    beside = {profile for trace in traces for profile in trace.parent.glob("*-agg.csv")}
    return sorted({*traces, *(beside or (DATA / "pal").glob("*-agg.csv"))})


def _own(path: Path, figures: Iterable[Figure]) -> Iterator[dict[str, Any]]:
    yield from _timed(str(path), (figure.row() for figure in figures))


def _timed(what: str, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, with a word on standard error before and after: some sets take minutes."""
    began = time.monotonic()
    sys.stderr.write(f"{what} ...\n")
    count = 0
    for count, row in enumerate(rows, start=1):  # noqa: B007 - told below
        yield row
    sys.stderr.write(f"{what}: {count} figures in {time.monotonic() - began:.0f} s\n")


def _others(module: str, argument: Any) -> Iterator[dict[str, Any]]:
    """Figures of a part of its own: `figures(argument)` gives rows with set, figure, value, target, holds, n."""
    try:
        part = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name != module:
            raise
        sys.stderr.write(f"{module} is not here: its figures are left out.\n")
        return
    told = part.figures(argument)
    yield from _timed(module, (row if isinstance(row, dict) else row.row() for row in told))


if __name__ == "__main__":
    sys.exit(main())
