"""A reader: one child process that reads some GPUs, seen from the parent. It never makes the parent wait.

To ask it something else: a request in `collectors/nvml_child/__main__.py`, a method here.
"""

import contextlib
import importlib.util
import logging
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collectors.nvml_child import wire
from telemetry.errors import SourceUnavailable

log = logging.getLogger(__name__)

NS = 1e-9
_CHILD = Path(__file__).resolve().parents[1] / "nvml_child" / "start.py"


class Reader:
    """A child process that opens the targets (by index or bus id), reads them once, and again whenever asked.

    Every `who_every_s` seconds it is asked for the processes on the GPUs, too; None: never. Raises SourceUnavailable
    when no process can be started, or pynvml is not installed.
    """

    def __init__(
        self,
        targets: Mapping[int, int | str],
        *,
        monotonic: Callable[[], float],
        environment: Mapping[str, str],
        who_every_s: float | None,
    ) -> None:
        self.targets: dict[int, int | str] = {}
        self.about: Mapping[str, Any] = {}
        self.busy = bool(targets)
        self.ended = False
        self._monotonic = monotonic
        self._heard = monotonic()
        self._who_every_s = who_every_s
        self._who_at = self._heard
        self._inbox = wire.Inbox()
        page = os.memfd_create("isotach-nvml")
        try:
            os.ftruncate(page, wire.PROGRESS_BYTES)
            self._page = mmap.mmap(page, wire.PROGRESS_BYTES)
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-P", str(_CHILD), str(page)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(page,),
                env={**os.environ, **environment, "PYTHONPATH": _paths(), "MALLOC_ARENA_MAX": "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise SourceUnavailable(f"the process that reads NVML cannot be started: {error.strerror}") from None
        finally:
            os.close(page)
        for stream in (self._process.stdin, self._process.stdout):
            os.set_blocking(_number(stream), False)
        if targets:
            self.open(targets)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def descriptor(self) -> int:
        """What to wait on for its answers."""
        return _number(self._process.stdout)

    @property
    def dead(self) -> bool:
        """Whether the process is gone, and reaped; one that sits in the driver may outlive its killing for long."""
        return self._process.poll() is not None

    def open(self, targets: Mapping[int, int | str]) -> None:
        """Open these too, and read everything once."""
        self.targets |= targets
        self.busy = True
        self._send({"open": dict(targets)})
        self._ask()

    def read(self) -> None:
        """Ask for a reading of all targets, unless one is under way."""
        if not self.busy and not self.ended:
            self.busy = True
            self._heard = self._monotonic()
            self._ask()

    def keep(self, number: int) -> None:
        """Read only this target from now on."""
        self.targets = {number: self.targets[number]}
        self._send({"only": [number]})

    def drop(self, number: int) -> None:
        """Read all but this target from now on."""
        self.targets.pop(number, None)
        self._send({"only": list(self.targets)})

    def take(self) -> list[dict[str, Any]]:
        """The messages that have come; none is no end. `ended` says when no more can come."""
        messages: list[dict[str, Any]] = []
        while not self.ended:
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                break
            try:
                messages += self._inbox.feed(data)
            except ValueError as error:
                log.error("the process that reads NVML wrote nonsense: %s", error)
                data = b""
            self.ended = not data
        for message in messages:
            self._heard = self._monotonic()
            if "hello" in message:
                self.about = message["hello"]
            elif "done" in message:
                self.busy = False
        return messages

    def stuck(self, now: float) -> tuple[wire.Doing, float]:
        """The call it is in and for how many seconds (or as long as its GPU takes, if that is longer).

        One that is in no call, yet owes an answer, is in "start" or in "none" since it was last heard: the machine is
        busy, and as much patience is due as for a start.
        """
        doing = wire.doing(self._page)
        if doing is None:
            call = "none" if self.about else "start"
            heard_ns = round(self._heard / NS)
            return wire.Doing(heard_ns, heard_ns, wire.STARTING, -1, call), now - self._heard
        return doing, max(0.0, now - min(doing.call_ns, doing.target_ns) * NS)

    def end(self) -> None:
        """Kill it; the pipes are closed at once, the process is reaped by looking at `dead`."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self.ended = True
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._page.close()

    def wait(self, seconds: float) -> bool:
        """Whether it is gone within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.dead

    def _ask(self) -> None:
        now = self._monotonic()
        if self._who_every_s is None or now < self._who_at:
            self._send({"read": True})
        else:
            self._who_at = now + self._who_every_s
            self._send({"read": True, "who": True})

    def _send(self, message: Mapping[str, Any]) -> None:
        # Requests are a few bytes and seldom: a pipe that is full, or broken, belongs to a child that is lost anyway.
        with contextlib.suppress(OSError):
            os.write(_number(self._process.stdin), wire.pack(message))


def _number(stream: Any) -> int:
    number: int = stream.fileno()
    return number


def _paths() -> str:
    """Where the child finds this package and pynvml: it runs without site, which makes it smaller and faster."""
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise SourceUnavailable("pynvml is not installed: pip install 'isotach[agent]'")
    return os.pathsep.join((str(Path(__file__).resolve().parents[2]), str(Path(found.origin).parent)))
