"""`isotach import FILE`: benchmark results or recorded telemetry into a store, without any server.

To add a format: `analytics/tabular.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from isotach.process import one_thread_each
from telemetry.errors import SettingsError
from telemetry.tables import CLASSES


@click.command("import", short_help="A file into a store.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--store", type=click.Path(path_type=Path), default=Path("isotach.duckdb"), show_default=True,
              help="The DuckDB file; made if it is not there, added to if it is.")  # fmt: skip
@click.option("--columns", default="", metavar="gpu=COL,...",
              help="Which column is what: gpu, node, value, time; also name, class, unit. Guessed where not given.")  # fmt: skip
@click.option("--class", "workload_class", type=click.Choice(CLASSES), default="compute", show_default=True,
              help="What the benchmark is bound by.")  # fmt: skip
@click.option("--name", default=None, help="What was measured, such as sgemm; the file's stem if absent.")
@click.option("--unit", default="", help="The unit of the value, for people.")
@click.option("--lower-is-better/--higher-is-better", default=None,
              help="Times are better lower, throughputs higher. Must be said unless the unit tells.")  # fmt: skip
@click.option("--interval-s", type=click.FloatRange(min=0.1, max=3_600), default=None,
              help="Telemetry: seconds between two samples of a GPU; read from the file if absent.")  # fmt: skip
@click.option("--window-s", type=click.FloatRange(min=1, max=3_600), default=60.0, show_default=True,
              help="Telemetry: length of a window.")  # fmt: skip
@click.option("--topology", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=None,
              help="Where racks and blocks are, kept in the store: see `isotach topology`.")  # fmt: skip
def command(file: Path, store: Path, columns: str, **options: Any) -> None:
    """Read FILE (Parquet, CSV, NDJSON) into a store, score it, and stop.

    Benchmark results, one row a run; further columns are kept as evidence:

    isotach import sgemm.csv --store fleet.duckdb --columns gpu=uuid,node=node,value=perf,time=ts --unit ms
    --lower-is-better

    Recorded telemetry, one row a GPU and time, is recognised by its columns (docs/importing.md), unless a value, a unit
    or a direction says that these are results.
    """
    one_thread_each()
    from isotach.importing import import_file

    import_file(file, store, columns=_mapping(columns), **options)


def _mapping(text: str) -> Mapping[str, str]:
    mapping: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        role, separator, column = pair.partition("=")
        if not separator or not column:
            raise SettingsError(f"--columns {pair!r}: expected role=COLUMN, such as gpu=uuid")
        mapping[role.strip()] = column.strip()
    return mapping
