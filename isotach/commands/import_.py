"""`isotach import FILE` or a URL: benchmark results or recorded telemetry into a store, without any server.

To add a format: `analytics/tabular.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from isotach.process import one_thread_each
from telemetry.errors import SettingsError
from telemetry.tables import CLASSES


@click.command("import", short_help="A file, or a Prometheus's history, into a store.")
@click.argument("file", metavar="FILE|URL")
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
@click.option("--start", default="-86400", show_default=True,
              help="History: from here on; ISO 8601, or seconds ago such as -86400.")  # fmt: skip
@click.option("--end", default="now", show_default=True, help="History: until here; now, ISO 8601, or seconds ago.")
@click.option("--step-s", type=click.FloatRange(min=1, max=3_600), default=15.0, show_default=True,
              help="History: seconds between two samples; as long as the Prometheus took between two scrapes.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=None,
              help="History: file with the bearer token that the Prometheus asks for.")  # fmt: skip
def command(file: str, store: Path, columns: str, **options: Any) -> None:
    """Read FILE (Parquet, CSV, NDJSON), or what the Prometheus at URL has kept, into a store, score it, and stop.

    Benchmark results, one row a run; further columns are kept as evidence:

    isotach import sgemm.csv --store fleet.duckdb --columns gpu=uuid,node=node,value=perf,time=ts --unit ms
    --lower-is-better

    Recorded telemetry, one row a GPU and time, is recognised by its columns (docs/importing.md), unless a value, a unit
    or a direction says that these are results.

    History of dcgm-exporters, from Prometheus or what answers like it:

    isotach import http://prometheus:9090 --store fleet.duckdb --start 2026-11-01 --step-s 15
    """
    one_thread_each()
    from isotach.importing import import_file, import_history

    history = {name: options.pop(name) for name in ("start", "end", "step_s", "token_file")}
    if file.startswith(("http://", "https://")):
        shared = {name: options[name] for name in ("window_s", "topology")}
        import_history(file, store, **shared, **history)
        return
    if not Path(file).is_file():
        raise click.UsageError(f"File {file!r} does not exist.")
    import_file(Path(file), store, columns=_mapping(columns), **options)


def _mapping(text: str) -> Mapping[str, str]:
    mapping: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        role, separator, column = pair.partition("=")
        if not separator or not column:
            raise SettingsError(f"--columns {pair!r}: expected role=COLUMN, such as gpu=uuid")
        mapping[role.strip()] = column.strip()
    return mapping
