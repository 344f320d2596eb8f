"""Reading the settings of a running agent again, and changing what can be changed.

To let another setting change: its name in `LIVE`, its use in `_apply`.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

from collectors.upkeep import Manners, Upkeep
from isotach import roles
from telemetry.errors import SettingsError

LOG = logging.getLogger("isotach")

LIVE = ("log_level", "batch_s", "max_cpu_ratio", "max_messages_per_s")
"""Settings that take effect while the agent runs; `interval_s` too, where the pace is the agent's own."""


class Reload:
    """Asks for the settings again and tells the agent what is new. `collectors` are the names of those that run."""

    def __init__(
        self, values: roles.Settings, *, read: Callable[[], roles.Settings], upkeep: Upkeep, collectors: Collection[str]
    ) -> None:
        self._values = dict(values)
        self._read = read
        self._upkeep = upkeep
        self._paced = set(collectors) & roles.intervals(values).keys()

    def __call__(self) -> str:
        """Read and change; what was done, in a line. A bad file changes nothing."""
        try:
            found = self._read()
        except SettingsError as error:
            self._upkeep.read_again(worked=False)
            LOG.error("settings stay as they were: %s", error)
            return f"settings stay as they were: {error}"
        changed = sorted(name for name, value in found.items() if value != self._values.get(name))
        live = {*LIVE, *(("interval_s",) if self._paced else ())}
        now = [name for name in changed if name in live]
        later = [name for name in changed if name not in live]
        told = [f"{name} {self._values[name]} -> {found[name]}" for name in now]
        self._values |= {name: found[name] for name in now}
        self._apply()
        self._upkeep.read_again(worked=True)
        text = "settings read again: " + (", ".join(told) or "nothing to change")
        if later:
            text += "; needs a restart: " + ", ".join(later)
        LOG.log(logging.WARNING if later else logging.INFO, "%s", text)
        return text

    def _apply(self) -> None:
        logging.getLogger().setLevel(self._values["log_level"].upper())
        self._upkeep.adopt(manners(self._values))


def manners(values: dict[str, Any]) -> Manners:
    """How these settings let the agent behave."""
    return Manners(
        max_cpu_ratio=values["max_cpu_ratio"],
        max_messages_per_s=values["max_messages_per_s"],
        batch_s=values["batch_s"],
        intervals=roles.intervals(values),
    )
