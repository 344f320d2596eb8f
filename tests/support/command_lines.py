"""Command lines in files that we ship: that `isotach` takes them, so that a renamed flag breaks a test, not a site.

To check those of another kind of file: read them there, and give them to `accepted`.
"""

from collections.abc import Sequence
from typing import Any

import click

from isotach.cli import cli
from isotach.settings import SETTINGS

VARIABLES = frozenset(setting.environment for setting in SETTINGS)
"""Every environment variable that is a setting."""


def accepted(arguments: Sequence[str]) -> dict[str, Any]:
    """What `isotach ARGUMENTS...` is told, by setting; fails for a command or a flag that is none."""
    first, *rest = arguments
    command = cli.get_command(click.Context(cli), first)
    assert command is not None, f"isotach has no command {first!r}"
    return dict(command.make_context(first, list(rest)).params)
