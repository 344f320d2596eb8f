"""Host names to addresses, asked off the loop and kept: a name server that does not answer holds up new names only.

To keep answers longer: `KEEP_S`.
"""

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import cast

KEEP_S = 60.0
THREADS = 8


class Names:
    """Addresses of hosts. An answer is used for `KEEP_S`, an older one until there is a new one. Of one loop only."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._known: dict[str, tuple[list[str], float]] = {}
        self._asking: dict[str, asyncio.Future[list[str]]] = {}

    async def address(self, host: str) -> str:
        """An address of the host; raises OSError if it has none."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        now = asyncio.get_running_loop().time()
        known = self._known.get(host)
        if known is None or known[1] <= now:
            asking = self._ask(host)
            if known is None:
                await asyncio.shield(asking)
                known = self._known[host]
        return known[0][0]

    def failed(self, host: str) -> None:
        """Its address could not be reached: the next one's turn."""
        if (known := self._known.get(host)) is not None:
            known[0].append(known[0].pop(0))

    def _ask(self, host: str) -> "asyncio.Future[list[str]]":
        if host in self._asking:
            return self._asking[host]
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(self._pool, addresses, host)
        self._asking[host] = asking

        def answered(done: "asyncio.Future[list[str]]") -> None:
            self._asking.pop(host, None)
            if not done.cancelled() and done.exception() is None:
                self._known[host] = (done.result(), loop.time() + KEEP_S)

        asking.add_done_callback(answered)
        return asking


def addresses(host: str) -> list[str]:
    """All addresses of a host, as the resolver orders them; raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is no host name") from None
    return list(dict.fromkeys(cast(str, where[0]) for *_, where in found))
