"""The command `isotach`: each command is a module in `isotach/commands`, loaded only when it is asked for.

To add a command: one module with a click command `command`, one line in `COMMANDS`, one section in docs/commands.md.
"""

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

from isotach import __version__
from telemetry.errors import IsotachError

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "agent": "Collect a node's GPU telemetry and publish it.",
        "window": "Turn telemetry into window features; run as many as there is telemetry.",
        "score": "Score every GPU from its windows; one is active, others stand by.",
        "serve": "Serve rankings over HTTP from a store of its own, fed from Kafka.",
        "up": "Run everything in one process, without Kafka.",
        "demo": "A simulated fleet with known faults, ranked live.",
        "rank": "Print GPUs, nodes or blocks, best first.",
        "place": "Say where a job should go, or which node should replace one that failed.",
        "verdict": "Pin, hold or clear the tier of a GPU or a node's GPUs, or reset the breaker.",
        "explain": "Say why a GPU is ranked where it is.",
        "import": "Read benchmark results or recorded telemetry from a file into a store.",
        "topology": "Read a topology and print it in Isotach's own form.",
        "replay": "Publish recorded telemetry again, at any speed.",
        "doctor": "Say what is wrong with this set-up and how to mend it.",
    }
)
"""Every command with its line of help: the module of the same name in `isotach/commands` has it (import: import_)."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = "import_" if cmd_name == "import" else cmd_name
        command: click.Command = importlib.import_module(f"isotach.commands.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="isotach")
def cli() -> None:
    """Rank the GPUs of a fleet by speed and health, and tell any scheduler.

    `isotach demo` shows it on a simulated fleet; `isotach import results.csv --store fleet.duckdb` and then
    `isotach rank --store fleet.duckdb` rank your own GPUs from one file of benchmark results.
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; an error that Isotach raises on purpose is one line and status 1."""
    try:
        return cli.main(args=arguments, prog_name="isotach")
    except IsotachError as error:
        click.echo(f"isotach: {error}", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        extra = "agent" if error.name in ("confluent_kafka", "pynvml") else "server"
        click.echo(f"isotach: this command needs {error.name}: pip install 'isotach[{extra}]'", err=True)
        sys.exit(1)
