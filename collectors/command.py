"""A command with a deadline: run without a shell, killed when it is late, and never run twice at the same time.

To run another program: another `Command`; each one keeps its own single outstanding call.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from telemetry.errors import SourceHangs, SourceUnavailable

MAX_OUTPUT_BYTES = 64 << 20  #: a full listing of eight GPUs has 200 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command wrote, and how it ended."""

    stdout: bytes
    stderr: bytes
    status: int

    @property
    def text(self) -> str:
        """Both streams as text, for reading complaints."""
        return (self.stdout + b"\n" + self.stderr).decode("utf-8", "replace")


class Command:
    """One program that is asked again and again.

    A process that sits in the driver (state D) survives even SIGKILL: it stays the one outstanding call, and every
    further `run` raises SourceHangs at once until it has gone, so that calls never pile up.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        kill_wait_s: float = 1.0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._program = tuple(program)
        self._kill_wait_s = kill_wait_s
        self._max_output_bytes = max_output_bytes
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._closed = False

    @property
    def name(self) -> str:
        """The program's name, for messages."""
        return self._program[0]

    def run(self, *arguments: str, deadline_s: float) -> Output:
        """What the program says within the deadline.

        Raises SourceUnavailable when it cannot be started or writes without end, SourceHangs when it is late.
        """
        process = self._start(arguments)
        try:
            stdout, stderr = self._read(process, self._since + deadline_s)
            status = process.wait(max(0.0, self._since + deadline_s - self._monotonic()))
        except subprocess.TimeoutExpired:
            raise SourceHangs(f"query hangs: {self.name} gave no answer within {deadline_s:g} s") from None
        finally:
            self._finish(process)
        return Output(stdout=stdout, stderr=stderr, status=status)

    def close(self) -> None:
        """Kill what is outstanding; safe to call from another thread, and more than once."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            self._kill(process)

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise SourceUnavailable(f"{self.name} was closed")
            if self._process is not None and self._process.poll() is None:
                waited = self._monotonic() - self._since
                raise SourceHangs(f"query hangs: {self.name} (pid {self._process.pid}) is stuck since {waited:.0f} s")
            try:
                self._process = subprocess.Popen(
                    [*self._program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # so that what it starts is killed with it
                    env={**os.environ, "LC_ALL": "C"},
                )
            except OSError as error:
                raise SourceUnavailable(f"{self.name} cannot be run: {error.strerror}") from None
            self._since = self._monotonic()
            return self._process

    def _read(self, process: subprocess.Popen[bytes], until: float) -> tuple[bytes, bytes]:
        """Both streams to their ends; raises TimeoutExpired, or SourceUnavailable when there is too much."""
        streams: tuple[IO[bytes] | None, IO[bytes] | None] = (process.stdout, process.stderr)
        parts: dict[IO[bytes], list[bytes]] = {stream: [] for stream in streams if stream is not None}
        size = 0
        with selectors.DefaultSelector() as selector:
            for stream in parts:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                left = until - self._monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired(self._program, 0)
                for key, _ in selector.select(left):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                        continue
                    size += len(data)
                    if size > self._max_output_bytes:
                        raise SourceUnavailable(f"{self.name} wrote more than {self._max_output_bytes} bytes")
                    next(chunks for stream, chunks in parts.items() if stream is key.fileobj).append(data)
        stdout, stderr = (b"".join(chunks) for chunks in parts.values())
        return stdout, stderr

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self._kill(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        with self._lock:
            if process.poll() is not None:
                self._process = None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._kill_wait_s)
