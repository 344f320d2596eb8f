"""The product's processes as an operator runs them: each `isotach` a process group of its own, none left behind.

To run another command: `Processes.start`; to ask a server something: `Server`.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 150.0  #: for a machine that has other things to do, too
TAIL = 2_500
PR_SET_PDEATHSIG = 1


class Process:
    """One running `isotach ...`, with what it printed in a file."""

    def __init__(self, name: str, arguments: tuple[str, ...], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "isotach", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(**environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    @property
    def output(self) -> str:
        """Everything it printed, both streams."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """kill -9, as the out-of-memory killer does, with all its children."""
        self._signal(signal.SIGKILL)
        self._child.wait(PATIENCE_S)

    def send(self, number: signal.Signals) -> None:
        """Send the process alone a signal."""
        self._child.send_signal(number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Its exit status."""
        return self._child.wait(patience_s)

    def stop(self, patience_s: float = PATIENCE_S) -> int:
        """SIGTERM, as an operator does; its exit status."""
        self._child.terminate()
        return self.wait(patience_s)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


class Processes:
    """All processes of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[Process] = []

    def start(self, name: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Process:
        """Start `isotach ARGUMENTS`; a process of a name that was there before goes on in the same log."""
        words = tuple(str(argument) for argument in arguments)
        one = Process(name, words, self.folder / f"{name}.log", environment or {})
        self._all.append(one)
        return one

    def until(self, done: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + patience_s
        while not (found := done()):
            assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {what}"
            time.sleep(0.05)
        return found

    def running(self) -> list[Process]:
        """Those that still run."""
        return [one for one in self._all if one.alive]

    def tails(self) -> str:
        """The end of every process's log."""
        logs = {one.name: one for one in self._all}
        return "\n".join(f"--- {name}\n{one.output[-TAIL:]}" for name, one in logs.items())

    def end(self) -> None:
        """Kill whatever is left."""
        for one in self._all:
            one.kill()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Processes that all end with the block; when it fails, the ends of their logs are printed."""
    site = Processes(folder)
    try:
        yield site
    except BaseException:
        print(site.tails())
        raise
    finally:
        site.end()


class Server:
    """A server's HTTP answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """The JSON that a path answers."""
        return json.loads(self.fetch(path)[1])

    def fetch(self, path: str) -> tuple[str, bytes]:
        """ETag and body of an answer."""
        with urllib.request.urlopen(self.url + path, timeout=20) as response:
            return response.headers.get("ETag", ""), response.read()

    def ready(self) -> bool:
        """Whether /readyz says so; false while nobody listens."""
        return self.answers("/readyz")

    def answers(self, path: str) -> bool:
        """Whether a path is answered with 200; false while nobody listens."""
        try:
            self.fetch(path)
        except OSError:
            return False
        return True

    def total(self) -> int:
        """How many GPUs are ranked."""
        return int(self.get("/v1/gpus?limit=1")["total"])


def run(*arguments: object, environment: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S) -> Any:
    """`isotach ARGUMENTS` to its end, with status and both streams."""
    return subprocess.run(
        [sys.executable, "-m", "isotach", *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=clean_environment(**(environment or {})),
        timeout=patience_s,
        check=False,
    )


def clean_environment(**added: str) -> dict[str, str]:
    """This process's environment without settings of Isotach, and with these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ISOTACH_")} | added


def _end_with_parent() -> None:
    """Linux: kill the process when the test run that started it is killed itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
