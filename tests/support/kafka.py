"""A real Kafka broker for tests: one that is named, one in Docker, or Apache Kafka's jars through Maven and Java 17.

`kafka_bootstrap` is what most tests need; `breakable_broker` is for those that stop it. Isolate tests by a `prefix`.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

import psutil
import pytest

VERSION = "4.1.0"
HOW = (
    "no Kafka broker: set ISOTACH_TEST_KAFKA=host:port of one (it needs auto.create.topics.enable=false),"
    " or start a Docker engine that can pull apache/kafka, or install Maven and Java 17"
)
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>isotach</groupId><artifactId>broker</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
<version>{VERSION}</version></dependency></dependencies></project>
"""
# Java runs in a session of its own, watched by a shell that ends it when the test run is gone, however that ended.
_WATCH = """echo $$ > "$1"; watched="$2"; shift 2
"$@" & child=$!
while kill -0 "$watched" 2>/dev/null && kill -0 "$child" 2>/dev/null; do sleep 1; done
kill -9 "$child" 2>/dev/null
"""


def _settings(port: int, controller: int, data: str, host: str) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "2000",  # a restart waits until the one before is forgotten
        "broker.heartbeat.interval.ms": "500",
        "group.min.session.timeout.ms": "500",
    }


class _Runner(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def remove(self) -> None: ...


class Broker:
    """One broker. After `stop` or `kill`, `start` brings it back with the same port and data."""

    def __init__(self, bootstrap: str, runner: _Runner | None) -> None:
        self.bootstrap = bootstrap
        self._runner = runner

    @property
    def shortest_session_s(self) -> float:
        """The shortest session timeout that the broker allows to a group's member."""
        return 1.0 if self._runner else 6.0

    def _ours(self) -> _Runner:
        if self._runner is None:
            pytest.skip("the broker named by ISOTACH_TEST_KAFKA is not ours to stop")
        return self._runner

    def start(self) -> None:
        """Start and wait until it listens."""
        self._ours().start()
        host, port = self.bootstrap.rsplit(":", 1)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """Stop as an operator would."""
        self._ours().stop()

    def kill(self) -> None:
        """Stop as a power cut would."""
        self._ours().kill()

    def remove(self) -> None:
        """Stop for good and delete its data; a broker that is not ours is left alone."""
        if self._runner:
            self._runner.remove()


class _Jars:
    """Kafka in Java, its state in a folder: any process of the test run can stop it."""

    def __init__(self, home: Path, watched: int) -> None:
        self._home = home
        self._watched = watched

    def prepare(self, port: int, controller: int) -> None:
        settings = _settings(port, controller, str(self._home / "data"), "127.0.0.1")
        text = "\n".join(f"{name}={value}" for name, value in settings.items())
        (self._home / "server.properties").write_text(text)
        self._java(
            "-cp", self._classes(), "kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", self._config()
        )

    def _config(self) -> str:
        return str(self._home / "server.properties")

    def _classes(self) -> str:
        return str(_jars() / "*")

    def _java(self, *arguments: str) -> None:
        subprocess.run(["java", *arguments], check=True, capture_output=True, timeout=120)

    def start(self) -> None:
        java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", self._classes(), "kafka.Kafka", self._config()]
        pid_file = self._home / "pid"
        if pid_file.exists() and _running(int(pid_file.read_text())):
            return
        with (self._home / "log.txt").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", "sh", "-c", _WATCH, "sh", str(pid_file), str(self._watched), *java],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
            )

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        pid_file = self._home / "pid"
        if not pid_file.exists():
            return
        session = int(pid_file.read_text())
        deadline = time.monotonic() + 20
        _signal(session, number)
        while _running(session):
            if time.monotonic() > deadline:
                _signal(session, signal.SIGKILL)
            time.sleep(0.05)
        pid_file.unlink()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


class _Docker:
    """Kafka in a container."""

    def __init__(self, name: str) -> None:
        self._name = name

    def prepare(self, port: int, controller: int) -> bool:
        settings = _settings(port, controller, "/tmp/kafka-data", "0.0.0.0")
        environment = [f"--env=KAFKA_{name.upper().replace('.', '_')}={value}" for name, value in settings.items()]
        publish = f"--publish=127.0.0.1:{port}:{port}"
        done = self._docker("create", f"--name={self._name}", publish, *environment, f"apache/kafka:{VERSION}")
        return done.returncode == 0

    def _docker(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["docker", *arguments], capture_output=True, check=False, timeout=300)

    def start(self) -> None:
        self._docker("start", self._name)

    def stop(self) -> None:
        self._docker("stop", self._name)

    def kill(self) -> None:
        self._docker("kill", self._name)

    def remove(self) -> None:
        self._docker("rm", "--force", "--volumes", self._name)


def _cluster_id() -> str:
    """A random Kafka cluster id: 16 bytes in URL-safe base64, not beginning with a dash."""
    return "A" + uuid.uuid4().hex[:20] + "A"


def _signal(session: int, number: signal.Signals) -> None:
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return


def _running(session: int) -> bool:
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
        except OSError:
            continue
    return False


def _without(reason: str) -> NoReturn:
    """Skip for want of a broker; where one is required (ISOTACH_REQUIRE_KAFKA, as in CI), fail."""
    if os.environ.get("ISOTACH_REQUIRE_KAFKA"):
        pytest.fail(f"a broker is required here: {reason}")
    pytest.skip(reason)


def _jars() -> Path:
    """The folder of Kafka's jars, fetched once into the user's cache; skips where that is not possible."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isotach" / f"kafka-{VERSION}"
    if (cache / "complete").exists():
        return cache / "lib"
    if not (shutil.which("mvn") and shutil.which("java")):
        _without(HOW)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "pom.xml").write_text(_POM)
    maven = ["mvn", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={cache / 'lib'}"]
    done = subprocess.run(maven, cwd=cache, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        _without(f"{HOW}. Maven said: {done.stdout[-300:]}")
    (cache / "complete").touch()
    return cache / "lib"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _new_broker() -> tuple[Broker, dict[str, str]]:
    """A started broker, and what another process needs to find it again."""
    named = os.environ.get("ISOTACH_TEST_KAFKA")
    if named:
        return Broker(named, None), {"bootstrap": named}
    port, controller = _free_port(), _free_port()
    bootstrap = f"127.0.0.1:{port}"
    found: dict[str, str] = {"bootstrap": bootstrap}
    runner: _Runner
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        found["container"] = f"isotach-test-{uuid.uuid4().hex[:12]}"
        docker = _Docker(found["container"])
        if docker.prepare(port, controller):
            broker = Broker(bootstrap, docker)
            broker.start()
            return broker, found
        del found["container"]
    _jars()
    found["home"] = tempfile.mkdtemp(prefix="isotach-kafka-")
    found["watched"] = str(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid())
    runner = _Jars(Path(found["home"]), int(found["watched"]))
    try:
        runner.prepare(port, controller)
        broker = Broker(bootstrap, runner)
        broker.start()
    except BaseException:
        runner.remove()
        raise
    return broker, found


def _again(found: dict[str, str]) -> Broker:
    """The broker that another process of the same test run has started."""
    if "home" in found:
        return Broker(found["bootstrap"], _Jars(Path(found["home"]), int(found["watched"])))
    return Broker(found["bootstrap"], _Docker(found["container"]) if "container" in found else None)


@contextmanager
def _locked(folder: Path) -> Iterator[dict[str, object]]:
    """The record of the shared broker, ours alone for a moment."""
    folder.mkdir(exist_ok=True)
    with (folder / "broker.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        record: dict[str, object] = json.loads(text) if text else {}
        yield record
        file.seek(0)
        file.truncate()
        json.dump(record, file)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for the whole test run, shared by pytest-xdist's workers; the last user stops it."""
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        broker, _ = _new_broker()
        try:
            yield broker
        finally:
            broker.remove()
        return
    folder = tmp_path_factory.getbasetemp().parent / "kafka"  # the workers' common one
    with _locked(folder) as record:
        if not record:
            broker, found = _new_broker()
            record.update(found=found, users=[])
        else:
            broker = _again(record["found"])  # type: ignore[arg-type]
        record["users"] = [*record["users"], os.getpid()]  # type: ignore[misc]
    try:
        yield broker
    finally:
        with _locked(folder) as record:
            users = [pid for pid in record["users"] if pid != os.getpid() and psutil.pid_exists(pid)]  # type: ignore[attr-defined]
            record["users"] = users
            if not users:
                broker.remove()
                record.clear()


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka_broker: Broker) -> str:
    """Bootstrap servers of the test run's broker."""
    return kafka_broker.bootstrap


@pytest.fixture
def breakable_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that a test may stop: the shared one, started again afterwards; beside other workers one of its own."""
    if "PYTEST_XDIST_TESTRUNUID" not in os.environ:
        broker: Broker = request.getfixturevalue("kafka_broker")
        yield broker
        broker.start()
        return
    broker, _ = _new_broker()
    try:
        yield broker
    finally:
        broker.remove()
