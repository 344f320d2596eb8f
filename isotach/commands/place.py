"""`isotach place`: where a job should go, or which node should replace one that failed.

To add to the question: an option here that becomes a field of POST /v1/placements.
"""

from pathlib import Path
from typing import Any

import click

from isotach import settings
from isotach.answers import open_answers
from telemetry.errors import BadInput
from telemetry.tables import CLASSES


@click.command("place", short_help="Where a job should go.")
@click.option("--store", "store", type=click.Path(path_type=Path), help="Read this store's file instead of a server.")
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs of the job.")
@click.option("--nodes", type=click.IntRange(min=1), help="Full nodes of the job, instead of --gpus.")
@click.option("--node-gpus", type=click.IntRange(min=1), help="GPUs of a full node. [default: 8]")
@click.option("--replace", metavar="NODE", help="Find a full healthy node to take over from NODE, nearest first.")
@click.option(
    "--class",
    "workload_class",
    type=click.Choice(CLASSES),
    default="compute",
    show_default=True,
    help="Workload class.",
)
@click.option("--within", metavar="LEVEL", help="Farthest level that the job may be spread over: node, rack, ...")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=10),
    help="Prefer nearer and fuller choices that cost up to this share more than the best.",
)
@click.option(
    "--penalty",
    "penalties",
    multiple=True,
    metavar="LEVEL=FACTOR",
    help="What a job spread over LEVEL pays; may be given several times.",
)
@click.option("--split", is_flag=True, help="Take any GPUs of a block, a few of each node.")
@click.option(
    "--exclude-node",
    "exclude_nodes",
    multiple=True,
    metavar="HOSTLIST",
    help="Busy nodes, as in n[01-16]; may be given several times.",
)
@click.option(
    "--exclude-gpu", "exclude_gpus", multiple=True, metavar="UUID", help="A busy GPU; may be given several times."
)
@click.option(
    "--max-age-s",
    type=click.FloatRange(min=0, max=3_600),
    help="While a change is taken in, take the answer of the state before, if it is no older. [s]",
)
@click.option(
    "--limit", type=click.IntRange(min=1, max=100), default=5, show_default=True, help="At most this many choices."
)
@click.option(
    "--format", "form", type=click.Choice(("table", "json", "csv")), default="table", show_default=True,
    help="table for people; json is a list of objects with the API's field names.",
)  # fmt: skip
@settings.options("place")
def command(
    store: Path | None,
    gpus: int | None,
    nodes: int | None,
    node_gpus: int | None,
    replace: str | None,
    workload_class: str,
    within: str | None,
    tolerance: float | None,
    penalties: tuple[str, ...],
    split: bool,
    exclude_nodes: tuple[str, ...],
    exclude_gpus: tuple[str, ...],
    max_age_s: float | None,
    limit: int,
    form: str,
    **values: Any,
) -> None:
    """Print where a job should go, best choice first.

    From a running server, or from a store's file: isotach place --store fleet.duckdb --nodes 4 --within rack
    """
    if sum(one is not None for one in (gpus, nodes, replace)) != 1:
        raise click.UsageError("give one of --gpus, --nodes and --replace")
    if replace is not None and (
        tolerance is not None or penalties or split or exclude_nodes or exclude_gpus or max_age_s
    ):
        raise click.UsageError("--replace takes --class, --within and --limit only")
    body = {
        "gpus": gpus,
        "nodes": nodes,
        "node_gpus": node_gpus,
        "class": workload_class,
        "within": within,
        "tolerance": tolerance,
        "penalties": _factors(penalties),
        "split": split,
        "exclude_nodes": _names(exclude_nodes),
        "exclude_gpus": list(exclude_gpus),
        "max_age_s": max_age_s,
        "limit": limit,
    }
    token = settings.read_token(values["token"], values["token_file"])
    answers = open_answers(store=store, server=values["server"], token=token)
    try:
        if replace is None:
            answer = answers.post("/v1/placements", body)
        else:
            asked = {"node": replace, "class": workload_class, "within": within, "limit": limit}
            answer = answers.get("/v1/replacements", asked)
    finally:
        answers.close()
    if answer.get("unknown_total"):
        names = ", ".join(answer["unknown_names"])
        click.echo(f"isotach: {answer['unknown_total']} excluded names are not known there: {names}", err=True)
    from isotach import printing

    printing.ranking(answer, by="place" if replace is None else "replacement", form=form)


def _factors(pairs: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pair in pairs:
        level, _, text = pair.partition("=")
        try:
            found[level] = float(text)
        except ValueError:
            raise click.UsageError(f"--penalty {pair!r}: give LEVEL=FACTOR, such as rack=1.2") from None
    return found


def _names(hostlists: tuple[str, ...]) -> list[str]:
    if not hostlists:
        return []
    from analytics.hostlist import expand

    try:
        return [name for hostlist in hostlists for name in expand(hostlist)]
    except BadInput as error:
        raise click.UsageError(f"--exclude-node: {error.detail}") from None
