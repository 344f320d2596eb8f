"""How long after a window's end and lateness its scores are in the API: the pipeline's own delay.

To time another road: a function like `_memory` that gives a producer and an address.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks import Figure, NotHere
from benchmarks.broker import broker
from benchmarks.product import running, seconds_until, url_of
from benchmarks.timing import milliseconds
from streams import Outgoing, Producer
from streams.http import HttpProducer
from streams.kafka import KafkaTransport
from streams.topics import TELEMETRY
from telemetry.codec import Encoder
from telemetry.records import SampleBatch

NODES, GPUS = 16, 8
WINDOW_S, LATENESS_S = 3, 1
_JOBS = ("--window-s", str(WINDOW_S), "--lateness-s", str(LATENESS_S))
_FEW = ("--telemetry-partitions", "4")  # each has nodes, so that none is waited for


def figures(*, quick: bool) -> Iterator[Figure]:
    """Real processes, real time: a sample a second of 128 GPUs, sent at once; the API is asked every 10 ms."""
    for name, road in (("one process, posted over HTTP, journal on disk", _memory), ("Kafka, a process a job", _kafka)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                with road(Path(folder)) as (producer, url):
                    found = _delays(producer, url, windows=4 if quick else 8)
            except NotHere:
                continue
        yield Figure(
            name=f"window's end and lateness to /v1/gpus: {name}",
            unit="ms",
            values=milliseconds(found),
            more_is_better=False,
        )


@contextmanager
def _memory(folder: Path) -> Iterator[tuple[Producer, str]]:
    log = folder / "up.txt"
    arguments = ("up", "--collector", "none", "--port", "0", "--store", str(folder / "isotach.duckdb"))
    with running(*arguments, *_JOBS, *_FEW, log=log) as process:
        url = url_of(process, log)
        producer = HttpProducer(server=url)
        yield producer, url
        producer.close()


@contextmanager
def _kafka(folder: Path) -> Iterator[tuple[Producer, str]]:
    with ExitStack() as parts:
        bootstrap = ("--bootstrap", parts.enter_context(broker()), *_FEW)
        log = folder / "serve.txt"
        store = ("--port", "0", "--store", str(folder / "isotach.duckdb"))
        serve = parts.enter_context(running("serve", *bootstrap, *store, log=log))
        url = url_of(serve, log)
        parts.enter_context(running("window", *bootstrap, *_JOBS, log=folder / "window.txt"))
        parts.enter_context(running("score", *bootstrap, log=folder / "score.txt"))
        transport = KafkaTransport(bootstrap=bootstrap[1])
        parts.callback(transport.close)
        producer = transport.producer(client_id="bench")
        parts.callback(producer.close)
        yield producer, url


def _delays(producer: Producer, url: str, *, windows: int) -> Sequence[float]:
    """Seconds of each window, the first ones left out: jobs are still starting then."""
    encoder, found = Encoder(), []
    second = int(time.time()) + 1
    first = -(-second // WINDOW_S) * WINDOW_S
    ends = range(first + 2 * WINDOW_S, first + (3 + windows) * WINDOW_S, WINDOW_S)
    while len(found) < len(ends):
        time.sleep(max(0.0, second - time.time()))
        for node in range(NODES):
            one = encoder.encode(_samples(node, second))
            producer.send(Outgoing(topic=TELEMETRY, key=one.key, headers=one.headers, value=one.value))
        due = second - LATENESS_S
        if due in ends:
            producer.flush()
            wanted = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            found.append(seconds_until(f"{url}/v1/gpus?limit=1", wanted, since=second))
        second += 1
    return found[1:]


def _samples(node: int, second: int) -> SampleBatch:
    """One moment of a busy node."""
    return SampleBatch(
        node=f"n{node:03d}",
        gpus=tuple(f"GPU-{node:03d}-{i}" for i in range(GPUS)),
        interval_s=1.0,
        source="synthetic",
        time_ns=np.full(GPUS, second * 10**9, dtype=np.int64),
        gpu=np.arange(GPUS, dtype=np.uint16),
        columns={
            "sm_clock_mhz": np.full(GPUS, 1_755, dtype=np.uint16),
            "power_w": np.full(GPUS, 650 + second % 7, dtype=np.float32),
            "temperature_c": np.full(GPUS, 60, dtype=np.int16),
            "utilization_ratio": np.ones(GPUS, dtype=np.float32),
        },
    )
