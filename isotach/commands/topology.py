"""`isotach topology FILE`: read any topology and print it in Isotach's own form.

To add a source: `analytics/topology.py`.
"""

import sys
from pathlib import Path

import click


@click.command("topology", short_help="Read a topology.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LEVEL=LABEL",
    help="A label of Kubernetes nodes that is a place, such as rack=example.com/rack; may be given several times.",
)
@click.option(
    "--format", "form", type=click.Choice(("yaml", "json", "table")), default="yaml", show_default=True,
    help="yaml is what --topology reads; json is one object a node and level.",
)  # fmt: skip
def command(file: Path, form: str, labels: tuple[str, ...]) -> None:
    """Read FILE and print it.

    FILE is our YAML, Slurm topology.conf or topology.yaml, `scontrol show topology`, Topograph JSON, or what `kubectl
    get nodes -o json` prints.
    """
    from analytics.topology import inspect_topology, write_topology
    from isotach import printing

    frame, notes = inspect_topology(file, labels=_pairs(labels))
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if form == "yaml":
        sys.stdout.write(write_topology(frame))
    else:
        printing.rows(frame.to_dicts(), form=form)


def _pairs(labels: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in labels:
        level, separator, label = text.partition("=")
        if not separator or not level.strip() or not label:
            raise click.BadParameter(
                f"{text!r}: expected LEVEL=LABEL, such as rack=example.com/rack", param_hint="--label"
            )
        pairs[level.strip()] = label
    return pairs
