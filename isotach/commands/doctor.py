"""`isotach doctor`: what is wrong with this set-up, and how to mend it.

To add a check: `isotach/checks/__init__.py`.
"""

import json
import sys
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

import click

from isotach import settings

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("wrong", "red")}


@click.command("doctor", short_help="What is wrong here.")
@click.option("--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True)
@click.option("--json", "form", flag_value="json", help="The same as --format json.")
@settings.options("doctor")
def command(form: str, **values: Any) -> None:
    """Look at this machine, its GPUs, Kafka and server as far as they are set up here, and change nothing.

    Says what is lost by each thing that is missing, and the remedy. Exits with 1 if something is wrong.
    """
    from isotach.checks import CHECKS

    findings = []
    for where in CHECKS.values():
        for finding in resolve_name(where)(values):
            findings.append(finding)
            if form == "table":
                mark, colour = MARKS[finding.state]
                click.echo(f"{click.style(f'{mark:5}', fg=colour)} {finding.check}: {finding.seen}")
                for label, text in (("lost", finding.lost), ("remedy", finding.remedy)):
                    if text:
                        click.echo(f"      {label}: {text}")
    if form == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(any(finding.state == "wrong" for finding in findings))
