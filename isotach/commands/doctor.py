"""`isotach doctor`: what is wrong with this set-up, and how to mend it.

To add a check: `isotach/checks.py`.
"""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from isotach import settings

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("wrong", "red")}


@click.command("doctor", short_help="What is wrong here.")
@click.option("--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True)
@settings.options("doctor")
def command(form: str, **values: Any) -> None:
    """Look at Python, GPUs, Kafka and server as far as they are set up here; exit with 1 if something is wrong."""
    from isotach.checks import CHECKS

    findings = []
    for check in CHECKS:
        for finding in check(values):
            findings.append(finding)
            if form == "table":
                mark, colour = MARKS[finding.state]
                click.echo(f"{click.style(f'{mark:5}', fg=colour)} {finding.check}: {finding.seen}")
                if finding.remedy:
                    click.echo(f"      {finding.remedy}")
    if form == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(any(finding.state == "wrong" for finding in findings))
