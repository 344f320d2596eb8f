"""`isotach explain GPU`: why a GPU is ranked where it is.

To add to the story: `isotach/printing.py`.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from isotach import settings
from isotach.answers import open_answers


@click.command("explain", short_help="Why a GPU is where it is.")
@click.argument("gpu")
@click.option("--store", "store", type=click.Path(path_type=Path), help="Read this store's file instead of a server.")
@click.option("--format", "form", type=click.Choice(("table", "json")), default="table", show_default=True)
@settings.options("explain")
def command(gpu: str, store: Path | None, form: str, **values: Any) -> None:
    """Say why GPU (its UUID) is ranked where it is: speed per class, peers, reasons, history."""
    token = settings.read_token(values["token"], values["token_file"])
    answers = open_answers(store=store, server=values["server"], token=token)
    try:
        answer = answers.get(f"/v1/gpus/{quote(gpu, safe='')}", {})
    finally:
        answers.close()
    from isotach import printing

    printing.explanation(answer, form=form)
