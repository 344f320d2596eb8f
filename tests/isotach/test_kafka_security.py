"""Kafka with users and TLS: who is let in, and what is said, and not said, to who is not."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.processes import run
from support.secure_kafka import PASSWORD, USER, SecureBroker

from isotach.kafka_security import security
from streams import Outgoing, TopicPartition, TopicSpec
from streams.kafka import KafkaTransport
from telemetry.errors import SettingsError

NOTHING: dict[str, Any] = {
    "kafka_security_protocol": "",
    "kafka_sasl_mechanism": "SCRAM-SHA-512",
    "kafka_username": "",
    "kafka_password_file": None,
    "kafka_ca_file": None,
    "kafka_config": None,
}


def _given(broker: SecureBroker, **changed: Any) -> list[str]:
    values = {"ca_file": broker.ca, "username": USER, "password_file": broker.password} | changed
    flags = [f"--kafka-{name.replace('_', '-')}={value}" for name, value in values.items() if value]
    return ["--bootstrap", broker.bootstrap, "--topic-prefix", "doctor.", *flags]


def _doctor(*arguments: str) -> tuple[dict[str, dict[str, Any]], str]:
    done = run("doctor", "--json", "--server", "http://127.0.0.1:1", *arguments)
    return {finding["check"]: finding for finding in json.loads(done.stdout)}, done.stdout + done.stderr


@pytest.mark.kafka
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_is_let_in_over_tls(secure_broker: SecureBroker, mechanism: str) -> None:
    """Name, password file and authority are enough: a message comes back as it was sent."""
    values = NOTHING | {
        "kafka_sasl_mechanism": mechanism,
        "kafka_username": USER,
        "kafka_password_file": secure_broker.password,
        "kafka_ca_file": secure_broker.ca,
    }
    transport = KafkaTransport(
        bootstrap=secure_broker.bootstrap, security=security(values), prefix=f"t{uuid.uuid4().hex[:8]}."
    )
    transport.ensure_topics([TopicSpec(name="t", partitions=1, cleanup="delete", retention_ms=None, key="", help="")])
    producer = transport.producer(client_id="p")
    producer.send(Outgoing(topic="t", key=b"k", value=b"v"))
    producer.flush()
    reader = transport.read({TopicPartition("t", 0): 0})
    found = [message for _ in range(50) for message in reader.poll(timeout_s=0.2)]
    assert [message.value for message in found] == [b"v"]
    reader.close()
    producer.close()
    transport.close()


@pytest.mark.kafka
def test_the_doctor_tells_refusals_apart(secure_broker: SecureBroker, tmp_path: Path) -> None:
    """Let in; wrong password; unknown authority: three answers, and never the password."""
    wrong = tmp_path / "password"
    wrong.write_text("battery-staple-9")
    found, _ = _doctor(*_given(secure_broker))
    assert found["kafka"]["state"] == "ok"
    assert found["kafka topics"]["state"] == "note", "nothing is created by looking"
    found, text = _doctor(*_given(secure_broker, password_file=wrong))
    assert found["kafka"]["state"] == "wrong"
    assert "uthentication" in found["kafka"]["seen"]
    assert "--kafka-password-file" in found["kafka"]["remedy"]
    assert "battery-staple-9" not in text
    found, text = _doctor(*_given(secure_broker, ca_file=None, security_protocol="sasl_ssl"))
    assert "TLS" in found["kafka"]["seen"]
    assert "--kafka-ca-file" in found["kafka"]["remedy"]
    assert PASSWORD not in text


@pytest.mark.kafka
@pytest.mark.processes
@pytest.mark.parametrize("role", [("window",), ("score",), ("agent", "--collector", "simulated")])
def test_a_wrong_password_ends_a_process(secure_broker: SecureBroker, tmp_path: Path, role: tuple[str, ...]) -> None:
    """Waiting would not help: one line that says so, status 1, no password in it."""
    wrong = tmp_path / "password"
    wrong.write_text("battery-staple-9")
    done = run(*role, *_given(secure_broker, password_file=wrong))
    assert done.returncode == 1
    assert "refuses us" in done.stderr.splitlines()[-1]
    assert "battery-staple-9" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"kafka_username": "u"}, "--kafka-password-file"),
        ({"kafka_password_file": Path("p")}, "--kafka-username"),
        ({"kafka_username": "u", "kafka_password_file": Path("absent")}, "--kafka-password-file absent"),
        ({"kafka_ca_file": Path("absent")}, "--kafka-ca-file absent"),
        ({"kafka_ca_file": Path("c"), "kafka_security_protocol": "plaintext"}, "--kafka-ca-file"),
        ({"kafka_username": "u", "kafka_password_file": Path("p"), "kafka_security_protocol": "ssl"}, "protocol ssl"),
    ],
)
def test_settings_that_do_not_go_together_are_named(
    changed: dict[str, Any], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each half of a pair, each file that is not there, each setting that would be ignored."""
    monkeypatch.chdir(tmp_path)
    Path("p").write_text("secret")
    with pytest.raises(SettingsError, match=names):
        security(NOTHING | changed)
