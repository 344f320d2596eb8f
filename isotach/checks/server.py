"""Checks of the server: there, ready, of the same time, with our token, with fresh answers.

To ask it another thing: `server`, by a request that stores nothing.
"""

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from isotach.checks.finding import Finding, State
from isotach.settings import read_token
from telemetry.errors import SettingsError

HTTP_TIMEOUT_S = 5.0
CLOCK_OFFSET_LIMIT_S = 5.0


def server(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The API: there, ready, fresh, and with the same clock."""
    address = settings["server"].rstrip("/")
    if not address.startswith(("http://", "https://")):
        yield Finding(check="server", state="wrong", seen=f"--server {address!r}", remedy="give http://HOST:PORT")
        return
    try:
        token = read_token(settings["token"], settings["token_file"])
    except SettingsError as error:
        yield Finding(check="token", state="wrong", seen=str(error), remedy="mend the file, or set ISOTACH_TOKEN")
        return
    try:
        status, headers, body = _ask(f"{address}/readyz")
    except (OSError, http.client.HTTPException) as error:
        yield _absent(address, error, needed=not settings["bootstrap"])
        return
    if status == 200:
        yield Finding(check="server", state="ok", seen=f"{address} is ready")
    else:
        waits = _json(body).get("waiting_for") or ["something it does not say"]
        yield Finding(check="server", state="note", seen=f"{address} waits for {', '.join(waits)}")
    if date := headers.get("date") or headers.get("Date"):
        offset_s = time.time() - parsedate_to_datetime(date).timestamp()
        wrong = abs(offset_s) > CLOCK_OFFSET_LIMIT_S
        yield Finding(
            check="clock",
            state="wrong" if wrong else "ok",
            seen=f"{offset_s:+.0f} s against the server",
            lost="samples from the future are set aside, old ones come late" if wrong else "",
            remedy="run NTP or chrony on both" if wrong else "",
        )
    yield from _token(address, token, needed=not settings["bootstrap"])
    tiers = _json(_ask(f"{address}/v1/tiers?limit=1")[2])
    total = sum(tier["count"] for tier in tiers.get("items", ()))
    if tiers.get("stale"):
        remedy = "check that agents send (isotach_agent_* metrics) and that window and score jobs run"
        seen = f"{total} GPUs, newest evidence {tiers.get('as_of') or 'never'}"
        yield Finding(
            check="freshness",
            state="wrong" if total else "note",
            seen=seen,
            lost="every tier is unknown",
            remedy=remedy,
        )
    else:
        yield Finding(check="freshness", state="ok", seen=f"{total} GPUs, as of {tiers.get('as_of')}")


def _absent(address: str, error: Exception, *, needed: bool) -> Finding:
    """Nobody answers: fatal for who posts there, unless it would be a server of this machine's own."""
    reason = getattr(error, "reason", error)
    own = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
    remedy = "start one with `isotach up` or `isotach serve`, or name it with --server"
    if isinstance(reason, ssl.SSLError):
        own, remedy = False, "let SSL_CERT_FILE name the certificates that the server's is signed by"
    elif isinstance(reason, socket.gaierror):
        own, remedy = False, "--server names no host that can be found: mend it, or the name service"
    elif not own:
        remedy = "check --server, the server and the network between"
    state: State = "wrong" if needed and not own else "note"
    lost = "this node's telemetry waits in the agent, and is dropped at last" if state == "wrong" else ""
    return Finding(check="server", state=state, seen=f"none at {address} ({reason})", lost=lost, remedy=remedy)


def _token(address: str, token: str | None, *, needed: bool) -> Iterator[Finding]:
    """Whether posts would be let in, by one that names no topic and is never stored."""
    headers = {"Isotach-Topic": "doctor", "Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        status, _, _ = _ask(f"{address}/v1/telemetry", body=b"{}", headers=headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield Finding(
            check="token", state="note", seen=f"not tried: {error if token is None else type(error).__name__}"
        )
        return
    if status in (401, 403):
        yield Finding(
            check="token",
            state="wrong" if needed or token is not None else "note",
            seen="the server refuses this token" if token is not None else "the server asks for a token, none is set",
            lost="agents cannot post telemetry there, nor operators verdicts",
            remedy="set --token-file or ISOTACH_TOKEN to what the server was given",
        )
    elif status == 503:
        yield Finding(
            check="token",
            state="note",
            seen="this server takes no posts at the moment",
            lost="agents that post there wait",
            remedy="see what the server waits for",
        )
    elif status == 400:
        yield Finding(check="token", state="ok", seen="accepted" if token is not None else "the server asks for none")
    else:
        remedy = "check --server: does another program listen there?"
        seen = f"{address} answers a post with {status}, which is not how Isotach does"
        yield Finding(check="token", state="wrong", seen=seen, lost="agents cannot post there", remedy=remedy)


def _ask(
    url: str, *, body: bytes | None = None, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, Mapping[str, str], bytes]:
    request = urllib.request.Request(url, data=body, headers=dict(headers))  # noqa: S310 - the scheme is checked
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as response:  # noqa: S310
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
