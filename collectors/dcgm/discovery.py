"""Targets that are found: all addresses of a DNS name, the endpoints of a Kubernetes service.

To find targets in another way: a class with `find`, a setting, a line in `isotach/roles.py`.
"""

import http.client
import ipaddress
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from collectors.dcgm.names import addresses
from collectors.dcgm.targets import MAX_TARGETS, PORT, Target, target_of
from telemetry.errors import SettingsError, SourceUnavailable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, and the certificate of the API."""

ASK_EVERY_S = 30.0
TIMEOUT_S = 10.0
PAGE = 500
MAX_ANSWER = 32 << 20
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_PORT = re.compile(r"[a-z0-9-]{1,63}", re.ASCII)


class _Seldom:
    """Keeps an answer for `ASK_EVERY_S`; a failure is asked again as soon."""

    def __init__(self, monotonic: Callable[[], float], every_s: float) -> None:
        self._monotonic = monotonic
        self._every_s = every_s
        self._asked: float | None = None
        self._answer: Sequence[Target] | SourceUnavailable = ()

    def find(self) -> Sequence[Target]:
        """The targets as last found; raises SourceUnavailable when they could not be found."""
        now = self._monotonic()
        if self._asked is None or now - self._asked >= self._every_s:
            self._asked = now
            try:
                self._answer = self._look()
            except SourceUnavailable as error:
                self._answer = error
        if isinstance(self._answer, SourceUnavailable):
            raise self._answer
        return self._answer

    def _look(self) -> Sequence[Target]:
        raise NotImplementedError


class Dns(_Seldom):
    """All addresses of `name:port`."""

    def __init__(
        self,
        text: str,
        *,
        resolve: Callable[[str], Sequence[str]] = addresses,
        monotonic: Callable[[], float] = time.monotonic,
        every_s: float = ASK_EVERY_S,
    ) -> None:
        super().__init__(monotonic, every_s)
        name, _, port = text.partition(":")
        if not _NAME.fullmatch(name.lower()) or not (port or str(PORT)).isdigit() or int(port or PORT) > 65_535:
            raise SettingsError(f"--dcgm-dns {text!r}: expected name:port, such as dcgm.example.org:9400")
        self._name, self._port, self._resolve = name, int(port or PORT), resolve

    def _look(self) -> Sequence[Target]:
        try:
            found = self._resolve(self._name)
        except OSError as error:
            raise SourceUnavailable(f"--dcgm-dns {self._name}: {error.strerror or error}") from None
        return [target_of(_hosted(address, self._port)) for address in found][:MAX_TARGETS]


class Kubernetes(_Seldom):
    """The endpoints of a service, as the API of the cluster that this pod runs in lists them (EndpointSlices).

    Each target has the name of its Kubernetes node. Token and certificate are those of the pod's service account, read
    again each time since tokens are renewed; the token goes nowhere but to the API.
    """

    def __init__(
        self,
        text: str,
        *,
        server: str | None = None,
        account: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
        every_s: float = ASK_EVERY_S,
    ) -> None:
        super().__init__(monotonic, every_s)
        place, _, port = text.partition(":")
        namespace, _, service = place.partition("/")
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(service) or (port and not _PORT.fullmatch(port)):
            raise SettingsError(
                f"--dcgm-kubernetes {text!r}: expected namespace/service:port, the port a number or name"
            )
        self._namespace, self._service, self._port = namespace, service, port
        self._account = account
        self._server = server
        self._environment = environment

    def _look(self) -> Sequence[Target]:
        found: dict[str, Target] = {}
        more = ""
        for _ in range(MAX_TARGETS):
            answer = self._ask(more)
            items = answer.get("items")
            if not isinstance(items, list):
                raise self._trouble("the API's answer has no items")
            for slice_ in items:
                found |= {target.url: target for target in self._targets(slice_)}
            metadata = answer.get("metadata")
            more = str(metadata.get("continue") or "") if isinstance(metadata, Mapping) else ""
            if not more or len(found) > MAX_TARGETS:
                break
        return list(found.values())[:MAX_TARGETS]

    def _targets(self, slice_: Any) -> list[Target]:
        if not isinstance(slice_, Mapping) or slice_.get("addressType") == "FQDN":
            return []
        port = self._port_of(slice_.get("ports") or [])
        targets = []
        for endpoint in slice_.get("endpoints") or []:
            conditions = endpoint.get("conditions") or {}
            node = endpoint.get("nodeName")
            if port is None or conditions.get("ready") is False:
                continue  # one that is not ready has no page yet; unset means ready
            for address in (endpoint.get("addresses") or [])[:1]:  # the others are the same pod
                try:
                    targets.append(target_of(_hosted(str(address), port), node=node if isinstance(node, str) else None))
                except ValueError as error:
                    raise self._trouble(f"an endpoint's address: {error}") from None
        return targets

    def _port_of(self, ports: Sequence[Mapping[str, Any]]) -> int | None:
        numbers = {str(port.get("name") or ""): port.get("port") for port in ports if isinstance(port, Mapping)}
        if self._port.isdigit():
            return int(self._port)
        number = numbers.get(self._port) if self._port else next(iter(numbers.values()), None)
        return number if isinstance(number, int) else None

    def _ask(self, more: str) -> Mapping[str, Any]:
        asked = {"labelSelector": f"kubernetes.io/service-name={self._service}", "limit": str(PAGE)}
        query = urlencode(asked | ({"continue": more} if more else {}))
        path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(self._namespace)}/endpointslices?{query}"
        connection, headers = self._connection()
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_ANSWER + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self._trouble(f"the API cannot be reached: {error or type(error).__name__}") from None
        finally:
            connection.close()
        if response.status in (401, 403):
            raise self._trouble("the API refuses: the service account needs get and list of endpointslices here")
        if response.status != 200:
            raise self._trouble(f"the API answers with status {response.status}")
        if len(body) > MAX_ANSWER:
            raise self._trouble(f"the API's answer is more than {MAX_ANSWER >> 20} MiB")
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, Mapping):
            raise self._trouble("the API's answer is no JSON object")
        return answer

    def _connection(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        try:
            token = (self._account / "token").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise self._trouble(f"no token in {self._account}: this only works inside a pod") from None
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if self._server is not None:
            return http.client.HTTPConnection(self._server, timeout=TIMEOUT_S), headers
        host = self._environment.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = int(self._environment.get("KUBERNETES_SERVICE_PORT", "443"))
        try:
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (OSError, ssl.SSLError):
            raise self._trouble(f"no usable ca.crt in {self._account}") from None
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context), headers

    def _trouble(self, text: str) -> SourceUnavailable:
        return SourceUnavailable(f"--dcgm-kubernetes {self._namespace}/{self._service}: {text}")


def _hosted(address: str, port: int) -> str:
    try:
        return f"[{address}]:{port}" if ipaddress.ip_address(address).version == 6 else f"{address}:{port}"
    except ValueError:
        return f"{address}:{port}"
