"""What only Kafka can show: outages, settings, secrets, time."""

import logging
import threading
import time
import uuid
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest
from support.kafka import Broker
from support.transports import Job, out, read_all, spec, until

from streams import Committed, TopicPartition
from streams.kafka import KafkaTransport
from streams.kafka_settings import FIXED, KafkaSettings
from telemetry.errors import SettingsError, TransportError

SECRETS = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "isotach",
    "sasl.password": "hunter2-secret",
    "ssl.key.password": "other-secret",
}


def _transport(bootstrap: str, **settings: object) -> KafkaTransport:
    return KafkaTransport(bootstrap=bootstrap, prefix=f"test-{uuid.uuid4().hex[:8]}.", **settings)  # type: ignore[arg-type]


@pytest.mark.kafka
def test_an_outage_while_producing_loses_nothing_and_keeps_order(breakable_broker: Broker) -> None:
    """The broker is away for five seconds: flush says what waits, and each message arrives once, in order."""
    transport = _transport(breakable_broker.bootstrap, session_timeout_s=30.0)
    transport.ensure_topics([spec("t", partitions=2)])
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    until(lambda: len(job.owned) == 2, job)
    producer = transport.producer(client_id="p")
    outage = threading.Timer(0.5, breakable_broker.stop)
    outage.start()
    for i in range(300):
        producer.send(out("t", f"node{i % 2}", str(i)))
        time.sleep(0.01)
    outage.join()
    with pytest.raises(TransportError, match=r"not acknowledged after 0\.5 s, still queued: \{'t': \d+\}"):
        producer.flush(timeout_s=0.5)
    late = threading.Timer(5.0, breakable_broker.start)
    late.start()
    while late.is_alive():
        job.step(timeout_s=0.2)
    producer.flush(timeout_s=60)
    until(lambda: len({m.value for m in job.messages}) == 300, job)
    reader = transport.read({TopicPartition("t", p): 0 for p in range(2)})
    stored = read_all(reader)
    assert len(stored) == 300
    for key in (b"node0", b"node1"):
        numbers = [int(m.value or b"") for m in stored if m.key == key]
        assert numbers == sorted(numbers)
    job.source.commit({TopicPartition("t", 0): Committed(1, "after")})
    assert transport.committed("g", [TopicPartition("t", 0)]) == {TopicPartition("t", 0): Committed(1, "after")}
    assert transport.troubles
    producer.close()
    reader.close()
    job.source.close()
    transport.close()


class _Admin:
    """A cluster whose leaders are found at the third question only; `topics`: what it has."""

    def __init__(self, code: int, *topics: str) -> None:
        self._code, self._topics, self.asked = code, dict.fromkeys(topics), 0

    def list_offsets(self, asked: dict[Any, Any], **_: object) -> dict[Any, Future[Any]]:
        self.asked += 1
        futures: dict[Any, Future[Any]] = {tp: Future() for tp in asked}
        for future in futures.values():
            if self.asked < 3:
                future.set_exception(ck.KafkaException(ck.KafkaError(self._code)))
            else:
                future.set_result(SimpleNamespace(offset=0))
        return futures

    def list_topics(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self._topics)


def _read_with(admin: _Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = KafkaTransport(bootstrap="127.0.0.1:1")
    monkeypatch.setattr(transport, "_admin", lambda: admin)
    transport.read({TopicPartition("t", 0): 0}).close()


@pytest.mark.parametrize(
    "code",
    [ck.KafkaError._NOENT, ck.KafkaError.LEADER_NOT_AVAILABLE, ck.KafkaError.NOT_LEADER_FOR_PARTITION],
)
def test_a_leader_that_is_not_known_yet_is_waited_for(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker has just come back: the client knows no leader of the partition, or an old one."""
    admin = _Admin(code, "t")
    _read_with(admin, monkeypatch)
    assert admin.asked == 3


@pytest.mark.parametrize(
    ("code", "topics"), [(ck.KafkaError._NOENT, ()), (ck.KafkaError.TOPIC_AUTHORIZATION_FAILED, ("t",))]
)
def test_what_waiting_does_not_cure_is_told_at_once(
    code: int, topics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is not there has no leader either; nor does a right come with time."""
    admin = _Admin(code, *topics)
    with pytest.raises(TransportError, match="offsets cannot be listed"):
        _read_with(admin, monkeypatch)
    assert admin.asked == 1


@pytest.mark.kafka
def test_a_lost_message_is_named(kafka_bootstrap: str) -> None:
    """A topic that is not there, a message that is too large: each is an error that says which."""
    transport = _transport(kafka_bootstrap, overrides={"topic.metadata.propagation.max.ms": "100"})
    transport.ensure_topics([spec("t")])
    producer = transport.producer(client_id="p")
    producer.send(out("absent", "GPU-aa", "v"))
    with pytest.raises(TransportError, match=r"1 messages are lost: absent key b'GPU-aa'"):
        producer.flush(timeout_s=20)
    with pytest.raises(TransportError, match="t refuses a message of 3145728 bytes"):
        producer.send(out("t", "k", "x" * (3 << 20)))
    producer.send(out("t", "k", "x" * (1 << 20)))
    producer.close()
    transport.close()


@pytest.mark.kafka
def test_time_is_the_logs_own(kafka_bootstrap: str) -> None:
    """A topic that keeps the producer's time is refused with the command that changes it."""
    from confluent_kafka.admin import AdminClient, NewTopic

    transport = _transport(kafka_bootstrap)
    prefix = transport.log_id.rpartition("/")[2]
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for future in admin.create_topics([NewTopic(f"{prefix}t", 1, 1, config={"retention.ms": "1000000"})]).values():
        future.result()
    with pytest.raises(TransportError) as refused:
        transport.ensure_topics([spec("t")])
    text = str(refused.value)
    assert "--add-config message.timestamp.type=LogAppendTime" in text
    assert "retention.ms=1000000, not 86400000" in text
    transport.close()


def test_secrets_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither repr nor errors nor logs hold a password, though the cluster cannot be reached."""
    transport = KafkaTransport(bootstrap="127.0.0.1:1", security=SECRETS, timeout_s=0.5)
    with caplog.at_level(logging.DEBUG), pytest.raises(TransportError) as refused:
        transport.ensure_topics([spec("t")])
    wrong = SECRETS | {"sasl.mechanism": "hunter2-secret"}
    with pytest.raises(TransportError) as invalid:
        KafkaTransport(bootstrap="127.0.0.1:1", security=wrong, timeout_s=0.5).producer(client_id="p")
    settings = KafkaSettings(bootstrap="b:1", security=SECRETS, overrides={}, session_timeout_s=1)
    shown = " ".join([repr(transport), str(refused.value), str(invalid.value), caplog.text, repr(settings)])
    assert "sasl.password" in repr(transport)
    assert "secret" not in shown
    assert settings.redact("login with hunter2-secret failed") == "login with *** failed"
    assert refused.value.__cause__ is None
    transport.close()


@pytest.mark.parametrize(
    ("security", "overrides", "named"),
    [
        ({"linger.ms": "5"}, {}, "linger.ms"),
        ({"sasl.password": "x"}, {}, "security.protocol"),
        ({}, {"sasl.password": "x"}, "sasl.password"),
        *(({}, {name: "x"}, name) for name in sorted(FIXED)),
    ],
)
def test_a_setting_in_the_wrong_place_is_refused(
    security: dict[str, str], overrides: dict[str, str], named: str
) -> None:
    """Security among the overrides, credentials that would be ignored, or a setting that a guarantee rests on."""
    with pytest.raises(SettingsError, match=named.replace(".", r"\.")):
        KafkaTransport(bootstrap="b:1", security=security, overrides=overrides)


def test_no_servers_is_a_settings_error() -> None:
    """Empty bootstrap servers are told before anything waits for them."""
    with pytest.raises(SettingsError, match="bootstrap"):
        KafkaTransport(bootstrap=" ")


def test_an_unknown_setting_is_named() -> None:
    """A misspelt override is an error that names it, not a silent default."""
    transport = KafkaTransport(bootstrap="127.0.0.1:1", overrides={"fetch.minn.bytes": "1"})
    with pytest.raises(TransportError, match=r"fetch\.minn\.bytes"):
        transport.committed("g", [TopicPartition("t", 0)])
    transport.close()
