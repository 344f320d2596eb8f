"""NVML's library in this process: loaded, asked with the call written down first, its errors as numbers.

To add a call: nowhere here; `Library.ask` takes any function of pynvml.
"""

import mmap
import time
from collections.abc import Callable
from typing import Any

import pynvml

from collectors.nvml_child import wire

UNSUPPORTED = frozenset((3, 13, 25, 26))
"""Not supported, function not found, argument version mismatch, deprecated: this model or driver does not have it."""

GONE = frozenset((6, 15, 28))
"""Not found, GPU is lost, GPU not found: of a GPU that was there."""

RESET_REQUIRED = 16
NO_SUCH_GPU = frozenset((2, 6, 15, 28))
"""What the search for a bus id answers when nothing is there: invalid argument, and as above."""


class Failed(Exception):
    """NVML answered with this code (`nvmlReturn_t`)."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Library:
    """Calls of NVML, each written on the page of progress before it is made."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._phase = wire.STARTING
        self._target = -1
        self._target_ns = 0
        self._names: dict[Any, bytes] = {}
        self._entry = 0

    def begin(self, phase: int, target: int) -> None:
        """From now on calls are about this target."""
        self._phase, self._target, self._target_ns = phase, target, time.monotonic_ns()

    def rest(self) -> None:
        """In no call any more."""
        self._entry += 1
        wire.mark(self._page, self._entry, 0, 0, self._phase, -1, b"")

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's answer; raises Failed with NVML's code."""
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = function.__name__.encode()[:40]
        self._entry += 1
        wire.mark(self._page, self._entry, time.monotonic_ns(), self._target_ns, self._phase, self._target, name)
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise Failed(error.value) from None
        except UnicodeDecodeError:
            raise Failed(pynvml.NVML_ERROR_UNKNOWN) from None  # a name that is no text: as good as none

    def start(self) -> dict[str, Any]:
        """Initialise NVML: driver and library version, GPUs that it counts; raises Failed."""
        self.begin(wire.STARTING, -1)
        self.ask(pynvml.nvmlInit)
        return {
            "driver": self.ask(pynvml.nvmlSystemGetDriverVersion),
            "library": self.ask(pynvml.nvmlSystemGetNVMLVersion),
            "count": self.ask(pynvml.nvmlDeviceGetCount),
        }

    def handle(self, where: int | str) -> Any:
        """The handle of the GPU with this index or bus id; raises Failed."""
        if isinstance(where, int):
            return self.ask(pynvml.nvmlDeviceGetHandleByIndex, where)
        return self.ask(pynvml.nvmlDeviceGetHandleByPciBusId, where)

    def count(self) -> int | None:
        """How many GPUs NVML counts now; None if it does not say."""
        try:
            counted: int = self.ask(pynvml.nvmlDeviceGetCount)
        except Failed:
            return None
        return counted
