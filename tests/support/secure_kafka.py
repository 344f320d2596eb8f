"""A real Kafka broker with users and TLS: SASL/PLAIN and SCRAM, a certificate of its own authority.

`secure_broker` is one for the test run's process; it needs Apache Kafka's jars (see `kafka.py`) and openssl.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support import kafka

USER, PASSWORD = "isotach", "correct-horse-7"


class SecureBroker(NamedTuple):
    """Where it listens, the authority that signed its certificate, and a file with the right password."""

    bootstrap: str
    ca: Path
    password: Path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def _certificates(folder: Path) -> tuple[Path, Path]:
    """The authority's certificate, and key and certificate of 127.0.0.1 in one file, as Kafka reads them."""
    new = ("-newkey", "rsa:2048", "-nodes")
    _openssl(
        "req", "-x509", *new, "-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-subj", "/CN=test", "-days", "2"
    )
    _openssl("req", *new, "-keyout", folder / "key", "-out", folder / "csr", "-subj", "/CN=127.0.0.1")
    (folder / "ext").write_text("subjectAltName=IP:127.0.0.1")
    signed = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2")
    _openssl("x509", "-req", "-in", folder / "csr", *signed, "-extfile", folder / "ext", "-out", folder / "cert")
    both = folder / "server.pem"
    both.write_text((folder / "key").read_text() + (folder / "cert").read_text())
    return folder / "ca.pem", both


class _Secure(kafka._Jars):
    """The broker of `kafka.py` with one more listener."""

    def prepare_secure(self, ports: tuple[int, int, int], certificate: Path) -> None:
        port, controller, secure = ports
        settings = kafka._settings(port, controller, str(self._home / "data"), "127.0.0.1")
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        settings["listeners"] += f",SECURE://127.0.0.1:{secure}"
        settings["advertised.listeners"] += f",SECURE://127.0.0.1:{secure}"
        settings["listener.security.protocol.map"] += ",SECURE:SASL_SSL"
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": f'{plain} required user_{USER}="{PASSWORD}";',
            "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{scram} required;",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{scram} required;",
        }
        (self._home / "server.properties").write_text("\n".join(f"{k}={v}" for k, v in settings.items()))
        tool = ["-cp", self._classes(), "kafka.tools.StorageTool", "format", "-t", kafka._cluster_id()]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            tool += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        self._java(*tool, "-c", self._config())


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker that lets in one user over TLS, however that user proves who it is."""
    kafka._jars()
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificates")
    ca, certificate = _certificates(folder)
    (folder / "password").write_text(PASSWORD + "\n")
    watched = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    runner = _Secure(Path(tempfile.mkdtemp(prefix="isotach-kafka-")), watched)
    ports = (kafka._free_port(), kafka._free_port(), kafka._free_port())
    bootstrap = f"127.0.0.1:{ports[2]}"
    try:
        runner.prepare_secure(ports, certificate)
        kafka.Broker(bootstrap, runner).start()
        yield SecureBroker(bootstrap, ca, folder / "password")
    finally:
        runner.remove()
