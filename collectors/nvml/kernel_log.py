"""XIDs in the kernel's log: complete and with their time, where this process may read it.

To read another of the driver's messages: another pattern in `read`.
"""

import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from collectors.listing import normal_bus_id

log = logging.getLogger(__name__)

KERNEL_LOG = Path("/dev/kmsg")
MOST = 1_000  #: lines taken at once: a flood must not hold up the readings
# "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."; older: "(0000:03:00)"
_XID = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, ?([^\n]*))?")
_STAMP = re.compile(rb"\d+,\d+,(\d+),")


class KernelXid(NamedTuple):
    """One XID."""

    time_ns: int
    bus: str
    code: int
    detail: str


class KernelLog:
    """The log from now on. Where it may not be read, `readable` is False and nothing is ever found."""

    def __init__(
        self,
        path: Path = KERNEL_LOG,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        uptime_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC),
    ) -> None:
        self._clock_ns = clock_ns
        self._uptime_ns = uptime_ns
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            log.info("%s cannot be read (%s): XIDs come from NVML alone", path, error.strerror)
            self.close()

    @property
    def readable(self) -> bool:
        """Whether it is read."""
        return self._descriptor is not None

    def read(self) -> list[KernelXid]:
        """The XIDs since the last time, in order."""
        found: list[KernelXid] = []
        for _ in range(MOST if self._descriptor is not None else 0):
            try:
                record = os.read(self._descriptor or 0, 8_192)
            except BrokenPipeError:
                continue  # the ring was overwritten under us: go on with what is there
            except OSError:
                break
            if not record:
                break
            for line in record.splitlines():
                if (xid := self._parse(line)) is not None:
                    found.append(xid)
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _parse(self, line: bytes) -> KernelXid | None:
        match = _XID.search(line)
        bus = None if match is None else normal_bus_id(match[1].decode())
        if match is None or bus is None:
            return None
        stamp = _STAMP.match(line)
        age_ns = 0 if stamp is None else max(0, self._uptime_ns() - int(stamp[1]) * 1_000)
        detail = (match[3] or b"").decode("utf-8", "replace").strip()
        return KernelXid(self._clock_ns() - age_ns, bus, int(match[2]), detail)
