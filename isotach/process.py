"""How every long-running command lives: threads by name, one stop for all, signals, exit status.

To add a role to a process: `roles.start(name, function)`; the function takes the stop event and returns when it is set.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from telemetry.errors import IsotachError

LOG = logging.getLogger("isotach")
M_ARENA_MAX = -8


def configure_logging(level: str) -> None:
    """Plain lines on standard error: time, level, logger, text."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


def one_thread_each() -> None:
    """One Polars thread a process, set before Polars loads: more processes use more cores better."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")


class Roles:
    """The threads of one process. The first that fails stops the others; `wait` then raises its error."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self._threads: list[threading.Thread] = []
        self._errors: list[IsotachError] = []
        self._failed = False

    def start(self, name: str, function: Callable[[threading.Event], object]) -> None:
        """Run the function in a thread of this name."""

        def run() -> None:
            ended = False
            try:
                function(self.stop)
                ended = True
            except IsotachError as error:
                self._errors.append(error)
                LOG.error("%s stopped: %s", name, error)
            finally:
                if not ended:  # a defect's traceback is printed by threading; either way the process ends
                    self._failed = True
                    self.stop.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self, *, timeout_s: float = 30.0) -> None:
        """Wait for every thread after a stop; raises the first error that a role ended with."""
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                LOG.warning("%s did not stop within %.0f s", thread.name, timeout_s)
        if self._errors:
            raise self._errors[0]
        if self._failed:
            raise IsotachError("a part of this process failed; its traceback is above")

    def wait(self, turn: Callable[[], object] = lambda: None, *, ending: Callable[[], object] = lambda: None) -> None:
        """Wait for the stop, then join; `turn` is called twice a second meanwhile, `ending` once it has come."""
        while not self.stop.wait(0.5):
            turn()
            if not any(thread.is_alive() for thread in self._threads):
                self.stop.set()
        ending()
        self.join()


def be_small() -> None:
    """One arena of memory for all threads to come, and what is free goes back; without glibc nothing happens.

    Each thread's own arena would keep what it once had. See mallopt(3), M_ARENA_MAX, and malloc_trim(3).
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_ARENA_MAX, 1)
        library.malloc_trim(0)


def be_nice(niceness: int) -> None:
    """Let others go first, the threads and children to come included; what is nicer already, or refused, stays."""
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) < niceness:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError as error:
        LOG.warning("the niceness stays as it is: %s", error.strerror)


@contextlib.contextmanager
def on_hangup() -> Iterator[threading.Event]:
    """An event that SIGHUP sets, for whoever clears it."""
    asked = threading.Event()
    previous = signal.signal(signal.SIGHUP, lambda _number, _frame: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGHUP, previous)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
