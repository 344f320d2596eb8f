"""Print how far the scores agree with real measurements; only the sets named, or all that lie beside the checkout.

Run: python -m benchmarks.truth [--longhorn CSV] [--azure CSV] [--bytedance PARQUET...] [--pal CSV...]
[--pal-traces CSV...] [--gemm CSV] [--campaign SEEDS] [--json OUT]. To add a set: a module with `figures`, one option.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from polars.exceptions import PolarsError

from benchmarks.truth import azure, bytedance, gemm, longhorn, pal
from benchmarks.truth.figure import table, write

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 if every set was told, 1 if one could not be read, or none was there."""
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
    unread: list[str] = []
    rows = [row for what, figures in _sets(chosen) for row in _told(what, figures, unread)]
    if not rows:
        return 1
    print(table(rows))
    missed = [row for row in rows if row["holds"] is False]
    judged = sum(row["holds"] is not None for row in rows)
    print(f"\n{judged - len(missed)} of {judged} targets hold; {len(rows) - judged} figures without a target")
    if chosen.json:
        write(rows, chosen.json)
    return 1 if unread else 0


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


def _sets(chosen: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Iterable[Any]]]]:
    """What is told, and what tells it."""
    if chosen.longhorn:
        yield str(chosen.longhorn), partial(longhorn.figures, chosen.longhorn)
    for path in chosen.pal:
        yield str(path), partial(pal.figures, path)
    if chosen.azure:
        yield str(chosen.azure), partial(azure.figures, chosen.azure)
    for path in chosen.bytedance:
        yield str(path), partial(bytedance.figures, path)
    if chosen.gemm:
        yield str(chosen.gemm), partial(gemm.figures, chosen.gemm)
    if chosen.pal_traces:
        yield "job traces", partial(_placement, _with_profiles(chosen.pal_traces))
    if chosen.campaign:
        yield "campaign", partial(_campaign, chosen.campaign)


def _placement(files: Sequence[Path]) -> Iterable[Any]:
    from benchmarks import placement

    return placement.figures(files)


def _campaign(seeds: int) -> Iterable[Any]:
    from benchmarks import campaign  # it has one thread for everything that loads after it

    return campaign.figures(seeds)


def _with_profiles(traces: Sequence[Path]) -> list[Path]:
    """The traces and the profiles that lie beside them, or else with the real measurements: a job's time follows from
    both."""
    beside = {profile for trace in traces for profile in trace.parent.glob("*-agg.csv")}
    return sorted({*traces, *(beside or (DATA / "pal").glob("*-agg.csv"))})


def _told(what: str, figures: Callable[[], Iterable[Any]], unread: list[str]) -> Iterator[dict[str, Any]]:
    """The rows, with a word on standard error before and after: some sets take minutes. A file that is none of its kind
    is named there and among `unread`, and the other sets are told all the same."""
    began = time.monotonic()
    sys.stderr.write(f"{what} ...\n")
    count = 0
    try:
        for row in figures():
            count += 1
            yield row if isinstance(row, dict) else row.row()
    except (OSError, ValueError, PolarsError) as error:
        unread.append(what)
        sys.stderr.write(f"{what} cannot be read: {str(error).splitlines()[0]}\n")
        return
    sys.stderr.write(f"{what}: {count} figures in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    sys.exit(main())
