"""The HTTP server of a process: bound before anything starts, so that a taken port is said at once.

To add a listener: another instance; the application comes from `api.app`.
"""

import errno
import ipaddress
import logging
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn

from telemetry.errors import SettingsError

if TYPE_CHECKING:
    from fastapi import FastAPI

LOG = logging.getLogger("isotach")


class Listener:
    """A bound socket; `url` is its address. Raises SettingsError if the address or port cannot be had."""

    def __init__(self, *, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                raise SettingsError(f"port {port} on {host} is in use: choose another with --port") from None
            raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        if not _is_loopback(host):
            LOG.warning("listening beyond loopback on %s: anyone who reaches it can read; set a token for posts", host)

    def serve(self, app: "FastAPI", stop: threading.Event) -> None:
        """Serve until the stop; open requests are finished first."""
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=5, server_header=False
        )
        server = uvicorn.Server(config)
        watcher = threading.Thread(target=_exit_on, args=(server, stop), name="http-stop", daemon=True)
        watcher.start()
        server.run(sockets=[self._socket])

    def close(self) -> None:
        """Let go of the socket if it was never served."""
        self._socket.close()


def _exit_on(server: uvicorn.Server, stop: threading.Event) -> None:
    stop.wait()
    server.should_exit = True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
