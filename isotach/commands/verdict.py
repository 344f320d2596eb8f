"""`isotach verdict`: an operator's word about a GPU, a node or the breaker, given to a running server.

To add an action: `api/verdicts.py` and one line in `ACTIONS`.
"""

import getpass
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from isotach import settings
from isotach.answers import Answers, ServerRefusal, open_answers
from telemetry.errors import IsotachError
from telemetry.tables import TIERS

ACTIONS: Mapping[str, str] = MappingProxyType(
    {"pin": "pin", "hold": "hold", "clear": "clear", "reset-breaker": "reset_breaker"}
)
"""Each action of the command line, and its name in the API."""


@click.command("verdict", short_help="Pin, hold or clear a GPU or node.")
@click.argument("action", type=click.Choice(tuple(ACTIONS)))
@click.argument("name", metavar="[GPU_OR_NODE]", required=False)
@click.option("--tier", type=click.Choice(TIERS), help="With pin: the tier.")
@click.option("--note", help="Why, on one line; up to 500 characters.")
@click.option("--by", help="Who says so. [default: your login name]")
@click.option(
    "--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True,
    help="json is the server's answer.",
)  # fmt: skip
@settings.options("verdict")
def command(
    action: str, name: str | None, tier: str | None, note: str | None, by: str | None, form: str, **values: Any
) -> None:
    """Say what is to become of a GPU's tier, or of those of a node's GPUs; the newest word counts.

    \b
    isotach verdict pin GPU-6f1c... --tier quarantine --note "fan 3 is loud"
    isotach verdict hold n017            the tiers of n017 stay as they are, against soft evidence
    isotach verdict clear GPU-6f1c...    after its repair, or to lift a pin or hold: what was known is forgotten
    isotach verdict reset-breaker        let through what the breaker holds

    What each does, and what stands against it: docs/tiers.md.
    """
    if (name is None) != (action == "reset-breaker"):
        raise click.UsageError(f"{action} is of a GPU or node: name it" if name is None else f"{action} is of no GPU")
    if (tier is None) == (action == "pin"):
        raise click.UsageError("pin needs --tier" if tier is None else f"only a pin has a --tier, not {action}")
    body = {"action": ACTIONS[action], "tier": tier, "note": note, "by": _login() if by is None else by}
    token = settings.read_token(values["token"], values["token_file"])
    answers = open_answers(store=None, server=values["server"], token=token)
    try:
        answer = answers.post("/v1/verdicts", body) if name is None else _told(answers, name, body)
    finally:
        answers.close()
    click.echo(json.dumps(answer, indent=1) if form == "json" else _words(action, answer))


def _told(answers: Answers, name: str, body: Mapping[str, Any]) -> Any:
    """The answer for the GPU of that name, or else the node."""
    for field in ("gpu_uuid", "node"):
        try:
            return answers.post("/v1/verdicts", {**body, field: name})
        except ServerRefusal as error:
            if error.rule not in ("unknown_gpu", "unknown_node"):
                raise
    raise IsotachError(f"no GPU and no node {name[:80]!r} is known there; `isotach rank` lists what is")


def _words(action: str, answer: Any) -> str:
    """One line that says what was taken in."""
    event = answer["event"]
    if action == "reset-breaker":
        return "taken: the breaker is reset"
    whom = f"GPU {event['gpu_uuid']}" if event["gpu_uuid"] else f"node {event['node']} ({answer['gpus']} GPUs)"
    return f"taken: {action}{' as ' + TIERS[event['code']] if action == 'pin' else ''}, {whom}"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("nobody is logged in: say who you are with --by") from None
