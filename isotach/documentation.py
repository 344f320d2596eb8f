"""The generated parts of docs/: settings, commands and tables, written from the code that they describe (`make docs`).

To add a generated page: one function, one line in `PAGES`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import click

from analytics.policy import to_yaml
from collectors.dcgm.counters import to_csv
from isotach.cli import COMMANDS, cli
from isotach.settings import SETTINGS
from telemetry.metrics import METRICS
from telemetry.tables import TABLES

DOCS = Path(__file__).resolve().parents[1] / "docs"


def settings() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "A flag wins over its environment variable, that over the TOML file named by `--config` (or `ISOTACH_CONFIG`),",
        "that over the default. In the file the names are those of the first column, lists are lists.",
        "Secrets have no flag, so that no process list shows them: use the environment or a file.",
        "",
        "| setting | flag | environment | default | unit | commands | what it does |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        default = "" if setting.default in (None, "", ()) else f"`{setting.default}`"
        if setting.many and setting.default:
            default = ", ".join(f"`{value}`" for value in setting.default)
        flag = "" if setting.secret else f"`{setting.flag}`"
        lines.append(
            f"| `{setting.name}` | {flag} | `{setting.environment}` | {default} | {setting.unit} "
            f"| {', '.join(dict.fromkeys(setting.commands))} | {setting.help} |"
        )
    return "\n".join(lines) + "\n"


def commands() -> str:
    """docs/commands.md."""
    parts = [
        "# Commands",
        "",
        "What `isotach COMMAND --help` prints. Every command exits with status 0 when it did what was asked, 1 with",
        "one line on standard error when it could not, 2 when the command line was wrong.",
    ]
    context = click.Context(cli, info_name="isotach", max_content_width=110)
    for name, summary in COMMANDS.items():
        command = cli.get_command(context, name)
        if command is None:
            continue
        child = click.Context(command, info_name=name, parent=context, max_content_width=110)
        help_text = "\n".join(line.rstrip() for line in command.get_help(child).splitlines())
        parts += ["", f"## {name}", "", summary, "", "```text", help_text, "```"]
    return "\n".join(parts) + "\n"


def tables() -> str:
    """docs/tables.md."""
    parts = [
        "# Tables",
        "",
        "Every published table: in the store, in the topics and in the API the columns have these names and units.",
        "A published column is never renamed or used for something else. Null means unsupported or unknown, never 0.",
    ]
    for table in TABLES.values():
        parts += ["", f"## {table.name}", "", f"Grain: {table.grain}.", ""]
        parts += ["| column | type | unit | null | what it is |", "|---|---|---|---|---|"]
        parts += [
            f"| `{column.name}` | {column.type} | {column.unit} | {_yes(column.nullable)} | {column.help} |"
            for column in table.columns
        ]
    return "\n".join(parts) + "\n"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def metrics() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Every metric of the catalogue. A value outside its range is garbage: counted and made null. Names of DCGM",
        "fields are without `DCGM_FI_`; the first is that of DCGM 4.6 and later.",
        "",
        "| metric | unit | kind | range | DCGM | nvidia-smi query | NVML | what it is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        low = "" if metric.low is None else f"{metric.low:g}"
        high = "" if metric.high is None else f"{metric.high:g}"
        dcgm = "" if metric.dcgm_id is None else f"{metric.dcgm_id} {', '.join(metric.dcgm_names)}"
        lines.append(
            f"| `{metric.name}` | {metric.unit} | {metric.kind} | {low} to {high} | {dcgm} "
            f"| {', '.join(metric.smi_query)} | {metric.nvml or ''} | {metric.help} |"
        )
    return "\n".join(lines) + "\n"


PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings.md": settings,
        "commands.md": commands,
        "tables.md": tables,
        "metrics.md": metrics,
        "xid-policy.yaml": to_yaml,
        "../deploy/dcgm-exporter-counters.csv": to_csv,
    }
)
"""Generated pages by file name."""


def main() -> None:
    """Write every generated page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
