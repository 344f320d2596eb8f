"""The product's own commands as processes: started, waited for, ended.

To start another one: `running` with its arguments.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
_POLL_S = 0.01
_URL = re.compile(r"API on (\S+?);?\s")


@contextmanager
def running(
    *arguments: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`isotach` with these arguments, its output in a file; ended with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "isotach", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def url_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that a server has printed, once it is ready; raises RuntimeError with its output if it ends."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        found = _URL.search(log.read_text())
        if found and asked(f"{found[1]}/readyz") is not None:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"the server is not ready: {log.read_text()[-2_000:]}")


def asked(url: str) -> Any:
    """The JSON at an address; None while there is no such answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def seconds_until(url: str, wanted: str, *, since: float) -> float:
    """Seconds from `since` (of time.time) until the body's `as_of` is this moment or later; raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        body = asked(url)
        if body and (body["as_of"] or "") >= wanted:
            return time.time() - since
        time.sleep(_POLL_S)
    raise TimeoutError(f"{url} does not reach {wanted}")
