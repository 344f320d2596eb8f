"""`isotach topology FILE`: read any topology and print it in Isotach's own form.

To add a source: `analytics/topology.py`.
"""

import sys
from pathlib import Path

import click


@click.command("topology", short_help="Read a topology.")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--format", "form", type=click.Choice(("yaml", "json", "table")), default="yaml", show_default=True,
    help="yaml is what --topology reads; json is one object a node and level.",
)  # fmt: skip
def command(file: Path, form: str) -> None:
    """Read FILE and print it: our YAML, Slurm topology.conf or topology.yaml, Topograph JSON."""
    from analytics.topology import inspect_topology, write_topology
    from isotach import printing

    frame, notes = inspect_topology(file)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if form == "yaml":
        sys.stdout.write(write_topology(frame))
    else:
        printing.rows(frame.to_dicts(), form=form)
