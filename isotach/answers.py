"""The API's answers for the command line: from a server over HTTP, or from a store's file through the same application.

To add a question: nothing here; ask any path of docs/api.md.
"""

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from telemetry.errors import IsotachError

HTTP_TIMEOUT_S = 30.0
NEVER_S = 100 * 365 * 86_400.0


class ServerRefusal(IsotachError):
    """The API refused, in its own words; `rule` is for programs, empty where the answer had none."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(text)
        self.rule = rule


class Answers(Protocol):
    """Answers requests of the API."""

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        """The decoded JSON; raises ServerRefusal with the server's own words when it refuses."""
        ...

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The same for what is asked, or said, with a JSON body; fields that are None are left out."""
        ...

    def close(self) -> None:
        """Let go of the store or connection."""
        ...


class ServerAnswers:
    """Answers from a running server. Raises IsotachError if none is there."""

    def __init__(self, server: str, token: str | None) -> None:
        self._server = server.rstrip("/")
        if not self._server.startswith(("http://", "https://")):
            raise IsotachError(f"--server {server!r} must begin with http:// or https://")
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        """See Answers."""
        return self._asked(path + _query(parameters), None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """See Answers."""
        return self._asked(path, _json(body))

    def _asked(self, path: str, body: bytes | None) -> Any:
        url, headers = (
            self._server + path,
            self._headers | ({} if body is None else {"Content-Type": "application/json"}),
        )
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - the scheme is checked above
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as response:  # noqa: S310
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise _refusal(error.code, error.read()) from None
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise IsotachError(
                f"no server at {self._server} ({reason}): start one with `isotach up`, name it with --server, "
                "or read a file with --store"
            ) from None
        except json.JSONDecodeError:
            raise IsotachError(f"{self._server} does not answer like an Isotach server") from None

    def close(self) -> None:
        """Nothing is held."""


class StoreAnswers:
    """Answers from a store's file. Raises StoreError if it is missing or another process has it open."""

    def __init__(self, path: Path) -> None:
        from analytics.store import Store
        from api.app import create_app

        if not path.exists():
            raise IsotachError(f"--store {path}: there is no such file; `isotach import FILE --store {path}` makes one")
        self._store = Store(path)
        # A file is not live: its newest evidence is its own present, so nothing in it goes stale.
        self._app = create_app(self._store, stale_after_s=NEVER_S)

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        """See Answers."""
        return self._asked("GET", path, _query(parameters).removeprefix("?"), b"")

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """See Answers."""
        return self._asked("POST", path, "", _json(body))

    def _asked(self, method: str, path: str, query: str, body: bytes) -> Any:
        status, answer = asyncio.run(_call(self._app, method, path, query, body))
        if status != 200:
            raise _refusal(status, answer)
        return json.loads(answer)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def open_answers(*, store: Path | None, server: str, token: str | None) -> Answers:
    """From the store's file if one is named, else from the server."""
    return StoreAnswers(store) if store is not None else ServerAnswers(server, token)


def _query(parameters: Mapping[str, Any]) -> str:
    pairs = {name: value for name, value in parameters.items() if value is not None}
    return "?" + urllib.parse.urlencode(pairs) if pairs else ""


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def _refusal(status: int, body: bytes) -> ServerRefusal:
    try:
        error = json.loads(body)["error"]
        return ServerRefusal(str(error.get("rule", "")), f"{error['detail']}. {error.get('remedy') or ''}".strip())
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServerRefusal("", f"the server answered {status}")


async def _call(app: Any, method: str, path: str, query: str, body: bytes) -> tuple[int, bytes]:
    """One request through an ASGI application, without a socket."""
    status, chunks = 500, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            chunks.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": urllib.parse.unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return status, b"".join(chunks)
