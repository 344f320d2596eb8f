"""XIDs as NVML's events, taken without waiting after every reading.

To listen to another kind of event: its bit in `register`, its name in `take`.
"""

import ctypes
from typing import Any

import pynvml

from collectors.nvml_child.library import Failed, Library

MOST = 256  #: events taken at once


class Xids:
    """The event set of this process; events from before it was made are not in it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._set: Any = None
        self._numbers: dict[int, int] = {}

    def register(self, number: int, handle: Any) -> None:
        """Listen to this GPU from now on; a GPU without events is silently left out."""
        try:
            if self._set is None:
                self._set = self._library.ask(pynvml.nvmlEventSetCreate)
            self._library.ask(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except Failed:
            return
        self._numbers[_address(handle)] = number

    def take(self) -> list[tuple[int, int]]:
        """(target, XID) of every event since the last time."""
        found: list[tuple[int, int]] = []
        if not self._numbers:
            return found
        try:
            while len(found) < MOST:
                event = self._library.ask(pynvml.nvmlEventSetWait, self._set, 0)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    found.append((self._numbers.get(_address(event.device), -1), int(event.eventData)))
        except Failed:
            pass  # nothing more: NVML says so with a timeout
        return found


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
