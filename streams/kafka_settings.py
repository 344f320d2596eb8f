"""librdkafka settings of every client that `kafka.py` makes, and the rule that keeps secrets out of all texts.

To pass another setting through: `overrides`, if it is not in `FIXED`; another security setting: `SECURITY`.
"""

from collections.abc import Mapping
from typing import Any

from telemetry.errors import SettingsError

MAX_MESSAGE_BYTES = 2 << 20  #: twice a full telemetry value, so that keys and headers always fit
SECURITY = ("security.protocol", "sasl.", "ssl.", "enable.ssl.certificate.verification", "https.ca.")
_PUBLIC = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
FIXED = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "group.id",
        "transactional.id",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "partitioner",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "isolation.level",
        "enable.partition.eof",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
"""Settings that the guarantees rest on: they cannot be overridden."""
_CONSUMER_ONLY = ("fetch.", "max.poll.", "max.partition.", "queued.", "heartbeat.", "group.", "check.crcs")
_PRODUCER_ONLY = (
    "batch.",
    "compression.",
    "delivery.",
    "linger.",
    "message.timeout.",
    "queue.",
    "retries",
    "retry.",
    "sticky.",
    "transaction.",
)

_ALL = {
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 3_000,
    "socket.timeout.ms": 20_000,  # bounds what a request to a silent broker may take, whatever the caller's patience
    "log.connection.close": False,
}
_PRODUCER = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
    "delivery.timeout.ms": 0,  # no outage is a loss: messages wait, then `send` says that the queue is full
}
_CONSUMER = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "fetch.queue.backoff.ms": 20,  # the default of 1 s is a pause of 1 s whenever a reader falls 64 MB behind
    # Only partitions that move are taken away, the rest goes on: a window job re-reads at least a window of each
    # partition that it is given, and `range` would take all from everybody at every change.
    "partition.assignment.strategy": "cooperative-sticky",
}


class KafkaSettings:
    """What all clients of one cluster share. Its repr and `redact` never show a secret."""

    def __init__(
        self, *, bootstrap: str, security: Mapping[str, str], overrides: Mapping[str, str], session_timeout_s: float
    ) -> None:
        self.bootstrap = bootstrap
        self._security = dict(security)
        self._overrides = dict(overrides)
        self._session_timeout_ms = round(session_timeout_s * 1_000)
        self._check()

    def _check(self) -> None:
        if not self.bootstrap.strip():
            raise SettingsError("the Kafka bootstrap servers are empty: give host:port[,host:port...]")
        for name in self._security:
            if not name.startswith(SECURITY):
                raise SettingsError(f"{name} is no security setting of Kafka; allowed: {', '.join(SECURITY)}")
        for name in self._overrides:
            if name in FIXED or name.startswith(SECURITY):
                where = "the security settings" if name.startswith(SECURITY) else "this program, its guarantees need it"
                raise SettingsError(f"{name} cannot be overridden: it belongs to {where}")
        protocol = self._security.get("security.protocol", "plaintext").lower()
        if self._security and protocol in ("", "plaintext"):
            raise SettingsError(
                f"{', '.join(sorted(self._security))} would be ignored: security.protocol is {protocol!r};"
                " set it to ssl, sasl_ssl or sasl_plaintext"
            )

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap={self.bootstrap!r}, security={sorted(self._security)})"

    def redact(self, text: object) -> str:
        """The text without any secret that it may quote."""
        clean = str(text)
        for name, value in self._security.items():
            if name not in _PUBLIC and value:
                clean = clean.replace(value, "***")
        return clean

    def admin(self) -> dict[str, Any]:
        """Settings of the administrative client."""
        return self._common("isotach-admin") | self._chosen(_CONSUMER_ONLY + _PRODUCER_ONLY)

    def producer(self, client_id: str) -> dict[str, Any]:
        """Settings of a producer."""
        return self._common(client_id) | _PRODUCER | self._chosen(_CONSUMER_ONLY)

    def consumer(self, client_id: str, group: str) -> dict[str, Any]:
        """Settings of a consumer. A member that does not poll for six session timeouts is put out, however alive."""
        session = self._session_timeout_ms
        timeouts = {
            "session.timeout.ms": session,
            "heartbeat.interval.ms": max(session // 10, 100),  # how soon members hear of a change
            "max.poll.interval.ms": 6 * session,
        }
        return self._common(client_id) | _CONSUMER | timeouts | {"group.id": group} | self._chosen(_PRODUCER_ONLY)

    def _common(self, client_id: str) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "client.id": client_id} | _ALL | self._security

    def _chosen(self, foreign: tuple[str, ...]) -> dict[str, str]:
        return {name: value for name, value in self._overrides.items() if not name.startswith(foreign)}
