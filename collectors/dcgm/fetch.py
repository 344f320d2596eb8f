"""One page over HTTP: bounded in time, bytes, headers and what a compressed body may grow to.

To accept another encoding: `_Body`. Standard library only.
"""

import asyncio
import contextlib
import re
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from telemetry.errors import BadInput

MAX_HEAD = 32 << 10
_CHUNK = 256 << 10
_HOST = re.compile(r"[\w.:%-]{1,253}", re.ASCII)
_TEXTS = ("text/plain", "application/openmetrics-text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a page is: what is connected to, and what is asked for."""

    host: str
    port: int
    path: str
    tls: bool

    @property
    def host_header(self) -> str:
        """Host and port as HTTP wants them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address_of(url: str) -> Address:
    """The parts of an http or https URL; raises ValueError."""
    parts = urlsplit(url)
    if parts.username is not None:
        raise ValueError("a URL with a user in it: expected http://HOST:PORT/PATH")  # not shown: it holds a password
    if parts.scheme not in ("http", "https") or not parts.hostname or not _HOST.fullmatch(parts.hostname):
        raise ValueError(f"{url!r}: expected http://HOST:PORT/PATH")
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError(f"{url!r}: a path is ASCII without spaces")
    return Address(host=parts.hostname, port=parts.port or (443 if tls else 80), path=path, tls=tls)


async def fetch(
    address: Address,
    *,
    ip: str,
    max_bytes: int,
    context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    types: tuple[str, ...] = _TEXTS,
) -> bytes:
    """The body at this address, asked of the host at `ip`. The deadline is the caller's (`asyncio.timeout`).

    Raises OSError when it cannot be reached; BadInput for another status than 200, a type that is not among `types`, a
    body above `max_bytes` (also after decompression), or what is no HTTP.
    """
    reader, writer = await asyncio.open_connection(
        ip,
        address.port,
        ssl=context if address.tls else None,
        server_hostname=address.host if address.tls else None,
        limit=_CHUNK,
    )
    try:
        asked = {
            "Host": address.host_header,
            "User-Agent": "isotach",
            "Accept": ",".join((*types, "*/*;q=0.1")),
            "Accept-Encoding": "identity",
            "Connection": "close",
            **(headers or {}),
        }
        lines = [f"GET {address.path} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items())]
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
        status, head = await _head(reader)
        if status != 200:
            raise BadInput("http_status", f"status {status}")
        kind = head.get("content-type", "text/plain").partition(";")[0].strip().lower()
        if kind not in types:
            raise BadInput("content_type", f"content type {kind[:60]!r}, not {types[0]}")
        body = _Body(head.get("content-encoding", "identity").strip().lower(), max_bytes)
        if head.get("transfer-encoding", "").lower() == "chunked":
            await _chunks(reader, body)
        else:
            await _stretch(reader, body, _length(head))
        return body.whole()
    finally:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            if address.tls:
                writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise BadInput("no_http", "the connection was closed before an answer") from error
    except asyncio.LimitOverrunError:
        raise BadInput("no_http", "no end of the headers") from None
    if len(raw) > MAX_HEAD:
        raise BadInput("no_http", f"more than {MAX_HEAD} bytes of headers")
    first, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BadInput("no_http", "the answer is no HTTP")
    pairs = (line.partition(":") for line in lines if line)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(head: Mapping[str, str]) -> int | None:
    text = head.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadInput("no_http", "a content length that is no number")
    return int(text)


async def _stretch(reader: asyncio.StreamReader, body: "_Body", length: int | None) -> None:
    """So many bytes, or all there are."""
    if length is not None:
        body.expect(length)
    left = length
    while left is None or left > 0:
        data = await reader.read(_CHUNK if left is None else min(_CHUNK, left))
        if not data:
            if left is not None:
                raise BadInput("cut_off", "the body is shorter than was said")
            return
        body.add(data)
        left = None if left is None else left - len(data)


async def _chunks(reader: asyncio.StreamReader, body: "_Body") -> None:
    try:
        while True:
            size = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
            if not 0 < len(size) <= 8:
                raise BadInput("no_http", "a chunk without a size")
            length = int(size, 16)
            if length == 0:
                return
            await _stretch(reader, body, length)
            if await reader.readexactly(2) != b"\r\n":
                raise BadInput("no_http", "a chunk without an end")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise BadInput("cut_off", "the body ends within a chunk") from None
    except ValueError:
        raise BadInput("no_http", "a chunk without a size") from None


class _Body:
    """Bytes as they come, decompressed, never more than the limit."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise BadInput("content_encoding", f"content encoding {encoding[:30]!r} was not asked for")
        self._unzip = None if encoding in ("identity", "") else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._parts: list[bytes] = []
        self._size = 0
        self._max = max_bytes

    def expect(self, length: int) -> None:
        if length > self._max:
            raise BadInput("too_large", f"{length} bytes, more than {self._max}")

    def add(self, data: bytes) -> None:
        if self._unzip is not None:
            try:
                data = self._unzip.decompress(data, self._max + 1 - self._size)
            except zlib.error as error:
                raise BadInput("content_encoding", f"cannot be decompressed: {error}") from None
        self._size += len(data)
        if self._size > self._max:
            raise BadInput("too_large", f"more than {self._max} bytes")
        self._parts.append(data)

    def whole(self) -> bytes:
        if self._unzip is not None and not self._unzip.eof:
            raise BadInput("cut_off", "the compressed body ends early")
        return b"".join(self._parts)
