"""The journal behind the in-memory log: what survives, and what is said when it cannot be used."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.transports import Job, out, read_all, spec, until, values

from streams import Committed, TopicPartition
from streams.journal import VERSION, Journal
from streams.memory import MemoryTransport
from telemetry.errors import StoreError, TransportError

ROOT = Path(__file__).resolve().parents[2]
SPECS = [spec("t", partitions=2), spec("state", cleanup="compact")]
T0, S0 = TopicPartition("t", 0), TopicPartition("state", 0)


def _open(path: Path, **settings: object) -> MemoryTransport:
    transport = MemoryTransport(journal=Journal(path), **settings)  # type: ignore[arg-type]
    transport.ensure_topics(SPECS)
    return transport


def test_a_restart_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Messages, newest values, places with metadata, offsets and the log's id are there again."""
    path = tmp_path / "x.journal"
    transport = _open(path)
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    until(lambda: len(job.owned) == 2, job)
    producer = transport.producer(client_id="p")
    for i in range(5):
        producer.send(out("t", "k", str(i), partition=0, schema=bytes(range(256))))
        producer.send(out("state", "gpu", str(i)))
    producer.send(out("state", "gone", None))
    producer.close()
    job.source.commit({T0: Committed(3, "µ metadata")})
    log_id = transport.log_id
    transport.close()

    transport = _open(path)
    assert transport.log_id == log_id
    assert transport.committed("g", [T0]) == {T0: Committed(3, "µ metadata")}
    again = Job(transport.subscribe(["t"], group="g", client_id="b"))
    until(lambda: len(again.messages) == 2, again)
    assert [m.offset for m in again.messages] == [3, 4]
    assert dict(again.messages[0].headers) == {"schema": bytes(range(256))}
    assert values(read_all(transport.read({S0: 0}))) == ["4", None]
    producer = transport.producer(client_id="p")
    producer.send(out("t", "k", "5", partition=0))
    producer.close()
    until(lambda: len(again.messages) == 3, again)
    assert again.messages[-1].offset == 5
    transport.close()


def test_what_everybody_has_read_leaves_the_file(tmp_path: Path) -> None:
    """The file holds what somebody needs and the newest of each key, no more, and offsets are never used twice."""
    path = tmp_path / "x.journal"
    transport = _open(path, settle_s=0)
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    producer = transport.producer(client_id="p")
    for i in range(20):
        producer.send(out("t", "k", "x" * 1000, partition=0))
        producer.send(out("state", "gpu", str(i)))
    producer.flush()
    until(lambda: len(job.messages) == 20, job)
    job.source.commit({T0: Committed(20)})
    transport.close()
    with sqlite3.connect(path) as db:
        assert db.execute("select topic, count(*) from messages group by topic").fetchall() == [("state", 1)]
    db.close()
    transport = _open(path)
    producer = transport.producer(client_id="p")
    producer.send(out("t", "k", "next", partition=0))
    producer.close()
    assert [m.offset for m in read_all(transport.read({T0: 0}))] == [20]
    transport.close()


_WRITER = """
import sys
from pathlib import Path
from streams import Committed, Outgoing, TopicPartition
from streams.journal import Journal
from streams.memory import MemoryTransport

transport = MemoryTransport(journal=Journal(Path(sys.argv[1])))
source = transport.subscribe(["t"], group="g", client_id="a")
source.poll(timeout_s=1)  # Assigned
producer = transport.producer(client_id="p")
exactly = transport.transactional_producer(transactional_id="s")
i = 0
while True:
    producer.send(Outgoing(topic="t", key=b"k", value=b"%d" % i, partition=0))
    producer.send(Outgoing(topic="t", key=b"k", value=b"%d" % i, partition=1))
    producer.flush()
    place = {TopicPartition("t", 0): Committed(i, str(i))}
    exactly.publish([Outgoing(topic="state", key=b"gpu", value=b"%d" % i)], group="g", places=place, source=source)
    print(i, flush=True)
    i += 1
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """A writer is killed at a random moment, three times: what was acknowledged is there, transactions are whole."""
    path = tmp_path / "x.journal"
    _open(path).close()
    written = 0
    for round_s in (0.2, 0.33, 0.47):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert process.stdout
        process.stdout.readline()
        time.sleep(round_s)
        process.send_signal(signal.SIGKILL)
        acknowledged = [0, *(int(line) for line in process.stdout.read().split())]
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL

        transport = _open(path)
        first, second = (read_all(transport.read({TopicPartition("t", p): written})) for p in (0, 1))
        for messages in (first, second):
            numbers = [int(m.value or b"") for m in messages]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) > acknowledged[-1]
        assert len(first) == len(second)  # one flush, one step
        (state,) = read_all(transport.read({S0: 0}))
        place = transport.committed("g", [T0])[T0]
        assert place == Committed(int(state.value or b""), (state.value or b"").decode())
        assert place.offset >= acknowledged[-1]
        written += len(first)
        transport.close()


def test_a_second_process_is_refused_at_once(tmp_path: Path) -> None:
    """The file in use is named, the first user is not disturbed, and after its end the second gets in."""
    path = tmp_path / "x.journal"
    transport = _open(path)
    code = f"from pathlib import Path; from streams.journal import Journal; Journal(Path({str(path)!r}))"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert time.monotonic() - began < 5
    assert f"StoreError: {path} is open in another process" in done.stderr
    with pytest.raises(StoreError, match="open in another process"):
        Journal(path)
    transport.producer(client_id="p").send(out("t", "k", "v"))
    transport.close()
    Journal(path).close()


def test_a_file_that_is_no_journal_is_named_and_left_alone(tmp_path: Path) -> None:
    """Text, another program's database, a newer format: each is refused with the file's name, and not touched."""
    text, foreign, newer = tmp_path / "text", tmp_path / "foreign", tmp_path / "newer"
    text.write_bytes(b"not a database, but long enough to look like a page" * 100)
    for path, sql in ((foreign, "create table t (x)"), (newer, f"pragma user_version = {VERSION + 1}")):
        if path == newer:
            Journal(newer).close()
        db = sqlite3.connect(path)
        db.execute(sql)
        db.commit()
        db.close()
    for path, told in ((text, "move it away"), (foreign, "another program"), (newer, "newer version")):
        before = path.read_bytes()
        with pytest.raises(StoreError, match=told) as refused:
            Journal(path)
        assert str(path) in str(refused.value)
        assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A journal where a folder stands is an error that names it."""
    with pytest.raises(StoreError, match=str(tmp_path)):
        Journal(tmp_path)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_never_a_crash(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Bytes overwritten anywhere in the file: either it is refused as damaged, or it opens and reads."""
    path = tmp_path_factory.mktemp("damage") / "x.journal"
    transport = _open(path)
    producer = transport.producer(client_id="p")
    for i in range(30):
        producer.send(out("t", "k", str(i) * 200, partition=i % 2))
    producer.close()
    transport.close()
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=200))
    content[at : at + len(junk)] = junk
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2, at]))])
    try:
        transport = _open(path)
    except StoreError as error:
        told = str(error)
    else:
        told = str(path)
        read_all(transport.read({T0: 0}))
        transport.close()
    assert str(path) in told


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """When the disk refuses, flush raises, nothing is half written, and the next flush writes it all."""
    path = tmp_path / "x.journal"
    journal = Journal(path)
    transport = MemoryTransport(journal=journal)
    transport.ensure_topics(SPECS)
    producer = transport.producer(client_id="p")
    (pages,) = journal._db.execute("pragma page_count").fetchone()
    journal._db.execute(f"pragma max_page_count = {pages + 2}")
    for i in range(20):
        producer.send(out("t", "k", str(i) * 4_000, partition=0))
    with pytest.raises(TransportError, match="check the disk"):
        producer.flush()
    assert transport.held()["t"] == 0
    journal._db.execute("pragma max_page_count = 100000")
    producer.flush()
    assert len(read_all(transport.read({T0: 0}))) == 20
    transport.close()
