"""Talking to the service manager that started this process: systemd's notifications, without its library.

To tell it something else: a method that calls `_tell`. Protocol: sd_notify(3), systemd.service(5).
"""

import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

LOG = logging.getLogger("isotach")


class Service:
    """The manager named by NOTIFY_SOCKET; without one every method does nothing. No trouble with it is an error.

    `from_environment` takes the variables out of the environment, so that children do not speak in our name.
    """

    def __init__(
        self,
        address: str = "",
        *,
        watchdog_s: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watchdog_s = watchdog_s
        self._monotonic = monotonic
        self._fed_at = monotonic()
        self._turns = 0
        self._socket: socket.socket | None = None
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._told = False
        if address[:1] in ("/", "@"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        elif address:
            LOG.warning(
                "NOTIFY_SOCKET %r is neither a path nor an abstract name: the service manager is told nothing", address
            )

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> "Service":
        """The manager of this process, with its watchdog if that is meant for us."""
        address = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        limit = environment.pop("WATCHDOG_USEC", "")
        ours = pid in ("", str(os.getpid())) and limit.isdigit() and int(limit) > 0
        return cls(address, watchdog_s=int(limit) / 1e6 if ours else None)

    def ready(self, status: str = "") -> None:
        """The start, or reading the settings again, is done."""
        self._tell("READY=1", *([f"STATUS={status}"] if status else []))

    def reloading(self) -> None:
        """The settings are being read again; `ready` says when that is over."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")

    def stopping(self) -> None:
        """The end has begun."""
        self._tell("STOPPING=1")

    def alive(self, turns: int) -> None:
        """Feed the watchdog, if `turns` has grown since it was last fed and a third of its time is over."""
        now = self._monotonic()
        if self._watchdog_s is None or turns <= self._turns or now - self._fed_at < self._watchdog_s / 3:
            return
        self._turns, self._fed_at = turns, now
        self._tell("WATCHDOG=1")

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._told:
                self._told = True
                LOG.warning("the service manager cannot be told (said once): %s", error.strerror)
