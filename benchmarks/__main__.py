"""`python -m benchmarks [NAME...] [--quick] [--json OUT]`: measure, print one table and the machine.

To add a benchmark: see `benchmarks/__init__.py`; here they only run, one after the other.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks import BENCHMARKS, Figure, NotHere, measure
from benchmarks.machine import machine
from benchmarks.table import as_json, table

for _name in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before anything loads: figures are for one core


def main() -> int:
    """Run the benchmarks asked for; 0 if every one ended, 2 if one could not be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measured figures, side by side.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)}; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes: to see that it runs, not to be quoted")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write figures with every repeat, and the machine")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    where = machine()
    figures: dict[str, list[Figure]] = {}
    absent: dict[str, str] = {}
    began = time.monotonic()
    for name in chosen.names or BENCHMARKS:
        print(f"{time.monotonic() - began:4.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            figures[name] = _in_a_process(name, quick=chosen.quick)
        except NotHere as error:
            absent[name] = str(error)
    if chosen.json:
        found = {name: [as_json(figure) for figure in some] for name, some in figures.items()}
        chosen.json.write_text(json.dumps({"machine": where, "quick": chosen.quick, "figures": found}, indent=1) + "\n")
    print(table([figure for found in figures.values() for figure in found]))
    print()
    for name, reason in absent.items():
        print(f"- not measured: {name}: {reason}")
    for name, text in where.items():
        print(f"- {name}: {text}")
    print(f"- duration: {time.monotonic() - began:.0f} s{', quick sizes' if chosen.quick else ''}")
    return 2 if absent else 0


def _in_a_process(name: str, *, quick: bool) -> list[Figure]:
    """One benchmark in a fresh process, so that none inherits another's memory, threads or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, quick=quick).result()


if __name__ == "__main__":
    sys.exit(main())
