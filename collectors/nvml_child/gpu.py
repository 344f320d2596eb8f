"""One GPU as the child reads it: identity and limits when it is opened, then values again and again.

To read something else: `calls.py`, `fields.py`, `gpm.py`, `buffers.py`, `statics.py`, `processes.py`.
"""

import time
from typing import Any

from collectors.nvml_child.buffers import Buffers
from collectors.nvml_child.calls import CALLS, INSTEAD, Call
from collectors.nvml_child.fields import Fields
from collectors.nvml_child.gpm import Gpm
from collectors.nvml_child.library import GONE, RESET_REQUIRED, UNSUPPORTED, Failed, Library
from collectors.nvml_child.processes import processes
from collectors.nvml_child.statics import changing, identity, statics

RENEW_EVERY = 300  #: readings after which everything that was not supported is asked for again
CHANGING_EVERY = 10  #: readings between two looks at MIG and fabric


class Gpu:
    """An open GPU; raises Failed where NVML gives no handle or no bus id for it."""

    def __init__(self, library: Library, where: int | str, *, driver: str) -> None:
        self._library = library
        self.handle = library.handle(where)
        self.identity: dict[str, Any] = {}
        self.statics: dict[str, Any] = {}
        try:
            self.identity = identity(library, self.handle)
            self.statics = statics(library, self.handle)
        except Failed as failed:
            if failed.code != RESET_REQUIRED:
                raise
        self._fields = Fields(library, self.handle, driver=driver)
        self._gpm = Gpm(library, self.handle)
        self._buffers = Buffers(library, self.handle)
        self._calls: list[Call] = []
        self._readings = 0

    def read(self, *, who: bool) -> dict[str, Any]:
        """Values in the catalogue's units, codes of those that failed, and now and then what changes slowly.

        `who`: and the processes that hold it.

        A GPU that is gone gives `lost` with NVML's code, one that has to be reset `reset`, and no values.
        """
        values: dict[str, int | float] = {}
        missing: dict[str, int] = {}
        found: dict[str, Any] = {"t": time.time_ns(), "v": values}
        first = self._readings % RENEW_EVERY == 0
        try:
            if first:
                for part in (self._fields, self._gpm, self._buffers):
                    part.renew()
                self._calls = list(CALLS)
            for part in (self._fields, self._buffers, self._gpm):
                self._part(part, values, missing)
            for call in tuple(self._calls):
                if not all(metric in values for metric in call.metrics):
                    self._call(call, values, missing)
            if first:
                self._stand_in(values, missing)
            if self._readings % CHANGING_EVERY == 0:
                found["c"] = changing(self._library, self.handle, values)
            if who:
                found["p"] = processes(self._library, self.handle)
        except Failed as failed:
            # of these two, what was read before them is worth nothing either
            return {"t": found["t"], "reset" if failed.code == RESET_REQUIRED else "lost": failed.code}
        self._readings += 1
        if missing:
            found["x"] = missing
        return found

    def _part(self, part: Fields | Gpm | Buffers, values: dict[str, int | float], missing: dict[str, int]) -> None:
        try:
            part.read(values, missing)
        except Failed as failed:
            if failed.code in GONE or failed.code == RESET_REQUIRED:
                raise
            missing[type(part).__name__.lower()] = failed.code

    def _call(self, call: Call, values: dict[str, int | float], missing: dict[str, int]) -> None:
        try:
            answer = self._library.ask(call.function, self.handle, *call.arguments)
        except Failed as failed:
            if failed.code in GONE or failed.code == RESET_REQUIRED:
                raise
            if failed.code in UNSUPPORTED:
                self._calls.remove(call)
            else:
                for metric in call.metrics:
                    missing.setdefault(metric, failed.code)
            return
        for metric, value in zip(call.metrics, call.convert(answer), strict=True):
            values.setdefault(metric, value)

    def _stand_in(self, values: dict[str, int | float], missing: dict[str, int]) -> None:
        """Where a field or call is not supported, an older one is asked instead from now on."""
        for metric, call in INSTEAD:
            if metric not in values and metric not in missing:
                self._calls.append(call)
                self._call(call, values, missing)
