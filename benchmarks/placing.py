"""Answering where a job should go in a large fleet, and what has to be made once for each of its states.

To time another question: one line in `_QUESTIONS`.
"""

import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl

from analytics.floor import floor_of
from analytics.frames import frame, schema
from analytics.placement import placements, replacements
from analytics.store import Store
from analytics.vacancy import vacancy_of
from api.app import create_app
from benchmarks import Figure
from benchmarks.timing import milliseconds, repeats
from isotach.serving import Listener
from telemetry.tables import SCORES

_QUESTIONS: Mapping[str, Mapping[str, Any]] = {
    "4 GPUs of one node": {"gpus": 4},
    "8 full nodes": {"nodes": 8},
    "64 GPUs, tolerance 2 %": {"gpus": 64, "tolerance": 0.02},
    "100 GPUs, whole nodes and a part of one": {"gpus": 100},
    "1,024 GPUs": {"gpus": 1_024},
    "4,096 GPUs": {"gpus": 4_096},
    "100 GPUs anywhere": {"gpus": 100, "split": True},
}
_BUSY = ", a third of the nodes and 5 % of the GPUs busy"


def figures(*, quick: bool) -> Iterator[Figure]:
    """On 8-GPU nodes in racks of 8, leaves of 32, blocks of 256, spines of 2,048 nodes; 1 % of the GPUs unhealthy."""
    nodes = 1_250 if quick else 12_500
    scores, places = _fleet(nodes)
    times = 3 if quick else 5
    made = repeats(lambda: floor_of(scores, places, workload_class="compute"), times)
    what = f"{nodes * 8:,} GPUs"
    yield Figure(name=f"floor made, {what}", unit="ms", values=milliseconds(made.cpu_s), more_is_better=False)
    floor = floor_of(scores, places, workload_class="compute")
    random = np.random.default_rng(5)
    busy = {
        "exclude_nodes": [f"n{i:05d}" for i in random.choice(nodes, nodes // 3, replace=False)],
        "exclude_gpus": [f"GPU-{i:06d}" for i in random.choice(nodes * 8, nodes * 8 // 20, replace=False)],
    }
    for name, question in _QUESTIONS.items():
        for state, excluded in (("", {}), (_BUSY, busy)):
            found = repeats(lambda asked=question, busy=excluded: placements(vacancy_of(floor, **busy), **asked), times)
            yield Figure(
                name=f"{name} placed, {what}{state}", unit="ms", values=milliseconds(found.cpu_s), more_is_better=False
            )
    found = repeats(lambda: replacements(floor, node="n00003"), times)
    yield Figure(name=f"a node replaced, {what}", unit="ms", values=milliseconds(found.cpu_s), more_is_better=False)
    yield from _over_http(scores, places, busy, times)


def _over_http(
    scores: pl.DataFrame, places: pl.DataFrame, busy: Mapping[str, Sequence[str]], times: int
) -> Iterator[Figure]:
    """The same from question to answer: body, checks and both ends of the connection; `busy` is part of the body."""
    known = {name: pl.lit(0) for name in ("window_start_ns", "peers", "evidence", "tier_since_ns")}
    rows = scores.with_columns(**known, reasons=pl.lit("[]"), action=pl.lit("none"))
    rows = rows.cast({name: kind for name, kind in schema(SCORES).items() if name in rows.columns})
    table = pl.concat([frame(SCORES), rows], how="diagonal")
    stop = threading.Event()
    with Store(None) as store:
        store.write(
            {
                "scores": table,
                "topology": places.with_columns(pl.col("position").cast(pl.UInt16), source=pl.lit("file")),
            }
        )
        app = create_app(store, clock_ns=lambda: 60 * 10**9)
        listener = Listener(host="127.0.0.1", port=0)
        server = threading.Thread(target=listener.serve, args=(app, stop), daemon=True)
        server.start()
        connection = _connected(listener.port)
        _asked(connection, b'{"gpus":1}')
        _settled()
        connection.close()
        for name, question in _QUESTIONS.items():
            for state, excluded in (("", {}), (_BUSY, busy)):
                body = orjson.dumps(dict(question) | dict(excluded))
                found = repeats(lambda body=body: _asked(connection, body), times)
                yield Figure(
                    name=f"{name} placed over HTTP{state}",
                    unit="ms",
                    values=milliseconds(found.cpu_s),
                    more_is_better=False,
                )
        waits: dict[str, list[float]] = {'"max_age_s":90': [], '"max_age_s":0': []}
        for turn in range(times):
            store.write({"scores": table.with_columns(as_of_ns=pl.lit(turn + 1, dtype=pl.Int64))})
            for how, found_s in waits.items():
                began = time.perf_counter()
                _asked(connection, b'{"gpus":4,%s}' % how.encode())
                found_s.append(time.perf_counter() - began)
            _settled()
            connection.close()  # the server does so too after a while; the next question opens it again
        for how, found_s in waits.items():
            name = f"asked over HTTP the moment every score has changed, {how}: by the wall clock"
            yield Figure(name=name, unit="ms", values=milliseconds(found_s), more_is_better=False)
        connection.close()
        stop.set()
        server.join(20)


def _connected(port: int) -> http.client.HTTPConnection:
    """A connection to the server, once it listens."""
    for _ in range(600):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(0.1)
        else:
            return connection
    raise TimeoutError("the server does not listen")


def _settled() -> None:
    """Wait until the server has made the answers that it keeps ready after a change, which is not what is timed."""
    for _ in range(600):
        before = time.process_time()
        time.sleep(0.5)
        if time.process_time() - before < 0.02:
            return
    raise TimeoutError("the server does not come to rest")


def _asked(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", "/v1/placements", body)
    answer = connection.getresponse()
    told = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the server says {answer.status}: {told[:300]!r}")
    return told


def _fleet(nodes: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores, spread by 2 % and known to between 0.2 and 2 %, and places."""
    random = np.random.default_rng(1)
    gpus = nodes * 8
    mean, sd = random.normal(0, 0.02, gpus), random.uniform(0.002, 0.02, gpus)
    ends = [np.exp(side * 1.6449 * sd - mean) for side in (0, -1, 1)]
    speeds = [
        f'{{"compute":{{"speed":{speed:.5f},"low":{low:.5f},"high":{high:.5f}}}}}'
        for speed, low, high in zip(*ends, strict=True)
    ]
    scores = pl.DataFrame(
        {
            "gpu_uuid": [f"GPU-{i:06d}" for i in range(gpus)],
            "node": [f"n{i // 8:05d}" for i in range(gpus)],
            "as_of_ns": 0,
            "speeds": speeds,
            "tier": np.where(random.random(gpus) < 0.01, "quarantine", "standard"),
            "peer_group": "NVIDIA H100 80GB HBM3|85520809984|700",
        }
    )
    levels = (("rack", 8), ("leaf", 32), ("block", 256), ("spine", 2_048))
    places = [
        pl.DataFrame(
            {
                "node": [f"n{i:05d}" for i in range(nodes)],
                "position": position,
                "level": level,
                "value": [f"{level}{i // size}" for i in range(nodes)],
            }
        )
        for position, (level, size) in enumerate(levels)
    ]
    return scores, pl.concat(places)
