"""`isotach rank`: GPUs, nodes or blocks, best first, for a person or a program.

To add a column for people: `isotach/printing.py`; programs get the API's fields as they are.
"""

from pathlib import Path
from typing import Any

import click

from isotach import settings
from isotach.answers import open_answers
from telemetry.tables import CLASSES


@click.command("rank", short_help="Best first.")
@click.option("--store", "store", type=click.Path(path_type=Path), help="Read this store's file instead of a server.")
@click.option("--by", default="gpu", show_default=True, help="gpu, node, or a level of the topology such as rack.")
@click.option("--class", "workload_class", type=click.Choice(CLASSES), help="Workload class; each GPU's own if absent.")
@click.option("--gpus", type=click.IntRange(min=1), help="With --by node or LEVEL: rank for a job of this many GPUs.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=None, help="At most this many; 0 is all. [default: 20; all]"
)
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", show_default=True,
    help="table for people; json is a list of objects with the API's field names.",
)  # fmt: skip
@settings.options("rank")
def command(
    store: Path | None,
    by: str,
    workload_class: str | None,
    gpus: int | None,
    limit: int | None,
    form: str,
    **values: Any,
) -> None:
    """Print GPUs, nodes or blocks, best first.

    From a running server, or from a store's file: isotach rank --store fleet.duckdb --class compute --by gpu
    """
    token = settings.read_token(values["token"], values["token_file"])
    shown = (20 if form == "table" else 0) if limit is None else limit
    path, parameters = _question(by, workload_class, gpus, shown)
    answers = open_answers(store=store, server=values["server"], token=token)
    try:
        answer = answers.get(path, parameters)
    finally:
        answers.close()
    from isotach import printing

    printing.ranking(answer, by="block" if path == "/v1/blocks" else by, form=form)


def _question(by: str, workload_class: str | None, gpus: int | None, limit: int) -> tuple[str, dict[str, Any]]:
    if by == "gpu":
        if gpus is not None:
            raise click.UsageError("--gpus ranks sets of GPUs: give --by node or a level of the topology with it")
        return "/v1/gpus", {"class": workload_class, "limit": limit}
    if by == "node" and gpus is None:
        return "/v1/nodes", {"class": workload_class, "limit": limit}
    return "/v1/blocks", {"level": by, "class": workload_class, "gpus": gpus, "limit": limit}
