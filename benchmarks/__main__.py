"""`python -m benchmarks [NAME...] [--quick] [--json OUT] [--page PAGE]`: measure, print one table and the machine.

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

_MARKS = ("<!-- figures -->", "<!-- end of figures -->")


def main() -> int:
    """Run the benchmarks asked for; 0 if every one ended, 2 if one could not be measured here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measured figures, side by side.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)}; all if none is named"
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes: to see that it runs, not to be quoted")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write figures with every repeat, and the machine")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    where = machine()
    figures: dict[str, list[Figure]] = {}
    absent: dict[str, str] = {}
    loads: list[str] = []
    began = time.monotonic()
    for name in chosen.names or BENCHMARKS:
        print(f"{time.monotonic() - began:4.0f} s  {name}", file=sys.stderr, flush=True)
        loads.append(f"{os.getloadavg()[0]:.1f}")
        try:
            figures[name] = _in_a_process(name, quick=chosen.quick)
        except NotHere as error:
            absent[name] = str(error)
    if chosen.json:
        found = {name: [as_json(figure) for figure in some] for name, some in figures.items()}
        chosen.json.write_text(json.dumps({"machine": where, "quick": chosen.quick, "figures": found}, indent=1) + "\n")
    notes = [f"not measured: {name}: {reason}" for name, reason in absent.items()]
    notes += [f"{name}: {text}" for name, text in where.items()]
    notes.append(f"load average before each benchmark, this run's own work included: {', '.join(loads)}")
    notes.append(f"duration: {time.monotonic() - began:.0f} s{', quick sizes' if chosen.quick else ''}")
    text = table([figure for found in figures.values() for figure in found])
    text += "\n\n" + "\n".join(f"- {note}" for note in notes)
    print(text)
    if chosen.page:
        before, _, rest = chosen.page.read_text().partition(_MARKS[0])
        _, _, after = rest.partition(_MARKS[1])
        chosen.page.write_text(f"{before}{_MARKS[0]}\n\n{text}\n\n{_MARKS[1]}{after}")
    return 2 if absent else 0


def _in_a_process(name: str, *, quick: bool) -> list[Figure]:
    """One benchmark in a fresh process, so that none inherits another's memory, threads or caches."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name, quick=quick).result()


if __name__ == "__main__":
    sys.exit(main())
