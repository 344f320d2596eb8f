"""All jobs over a real Kafka broker: samples in, a store with windows, scores and places out.

To add a case: another fault between the jobs; what each job does alone is in its own test file.
"""

import time
import uuid
from collections.abc import Iterator

import orjson
import polars as pl
import pytest
from support.fleet import SECOND, batch, gpu, outgoing
from support.jobs import eventually, running

from analytics.store import Store
from streams import Outgoing
from streams.counters import Counters
from streams.kafka import KafkaTransport
from streams.materialise import CaughtUp, run_materialiser
from streams.score import run_score_job
from streams.topics import EVENTS, specs
from streams.window import run_window_job

pytestmark = pytest.mark.kafka
NODES = tuple(f"n{i}" for i in range(6))


@pytest.fixture
def transport(kafka_bootstrap: str) -> Iterator[KafkaTransport]:
    one = KafkaTransport(bootstrap=kafka_bootstrap, prefix=f"j{uuid.uuid4().hex[:8]}.")
    one.ensure_topics(specs(telemetry_partitions=3))
    yield one
    one.close()


def minute(start_ns: int, index: int) -> list[Outgoing]:
    """One minute of every node."""
    firsts = [60 * index + second for second in range(0, 60, 10)]
    return [outgoing(batch(node, first_s=first, gpus=4, start_ns=start_ns)) for first in firsts for node in NODES]


def test_samples_become_scores_through_restarts(transport: KafkaTransport) -> None:
    """Window jobs and scorers that come and go in the middle lose nothing and count nothing twice."""
    now = time.time_ns()
    start = now - now % (60 * SECOND) - 600 * SECOND
    producer = transport.producer(client_id="test")
    counters, caught_up, store = Counters(), CaughtUp(), Store(None)

    def send(*messages: Outgoing) -> None:
        for message in messages:
            producer.send(message)
        producer.flush()

    def stored(at: int) -> pl.DataFrame:
        return store.table("windows").filter(pl.col("window_start_ns") == start + at * 60 * SECOND)

    score = {"counters": counters, "poll_s": 0.05}
    with running(run_materialiser, transport, store, poll_s=0.1, caught_up=caught_up):
        with running(run_score_job, transport, member="s1", **score):
            with running(run_window_job, transport, member="w1", poll_s=0.1):
                send(*minute(start, 0), *minute(start, 1)[:20])
                eventually(lambda: len(stored(0)) == 0 and caught_up.ready.is_set(), "a start")
            with running(run_window_job, transport, member="w2", poll_s=0.1):
                send(*minute(start, 1)[20:], *minute(start, 2))
                eventually(lambda: len(stored(1)) == 24, "the second window")
                eventually(lambda: counters.value("scored_windows", "yes") >= 2, "two scored windows")
        with (
            running(run_score_job, transport, member="s2", **score),
            running(run_window_job, transport, member="w3", poll_s=0.1),
        ):
            xid = {"time_ns": start + 200 * SECOND, "node": "n0", "gpu_uuid": gpu("n0", 1), "kind": "xid", "code": 79}
            send(Outgoing(topic=EVENTS, key=b"x", value=orjson.dumps(xid)), *minute(start, 3), *minute(start, 4))
            eventually(lambda: len(stored(3)) == 24, "the fourth window")

            def quarantined() -> list[str]:
                return store.table("scores").filter(tier="quarantine")["gpu_uuid"].to_list()

            eventually(lambda: quarantined() == [gpu("n0", 1)], "one quarantine")
            eventually(lambda: counters.value("scored_windows", "yes") >= 4, "four scored windows")
    windows = store.table("windows")
    assert set(windows["samples"]) == {60}
    assert len(windows.unique(["gpu_uuid", "window_start_ns"])) == len(windows)
    assert windows.filter(pl.col("window_start_ns") > start)["energy_j"].to_list() == [30_000.0] * (len(windows) - 24)
    assert len(store.table("scores")) == 24
    assert counters.value("scored_windows", "no") == 0
    producer.close()
    store.close()
