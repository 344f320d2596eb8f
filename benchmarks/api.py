"""The API under load: answers kept as bytes, beside the same rows through a response model, in the same run.

To load another size: `SIZES`.
"""

import multiprocessing
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection

from fastapi import FastAPI

from analytics.store import Store
from api.app import create_app
from api.endpoint import Site
from api.fleet import Fleets
from api.gpus import RANKING
from api.models import GpuList
from api.parameters import parse
from benchmarks import Figure, NotHere
from benchmarks.scored import START_NS, WINDOW_NS, gpus_table, nodes_table, scores, topology
from isotach.serving import Listener

GPUS = 10_000
SIZES = (100, 1_000, 10_000)
CONNECTIONS = 16
_KEPT = {100: (9_800.0, 24), 1_000: (6_800.0, 241), 10_000: (1_187.0, 2_400)}  # requests/s, KB
_ZIPPED = {1_000: (9_700.0, 34), 10_000: (6_100.0, 342)}
_NOT_MODIFIED = 11_400.0


def figures(*, quick: bool) -> Iterator[Figure]:
    """Server on one core, load from another where there are two; requests a second, and the slowest hundredth."""
    if shutil.which("wrk") is None:
        raise NotHere("wrk is needed: apt-get install wrk")
    seconds, times = (1, 2) if quick else (2, 3)
    with _server(response_model=False) as ours, _server(response_model=True) as other:
        for size in SIZES:
            length, _ = _asked(ours, size, {})
            plain = [_load(ours, size, seconds, {}) for _ in range(times)]
            model = [_load(other, size, seconds, {}) for _ in range(times)]
            yield Figure(
                name=f"/v1/gpus, {size:,} rows, {length / 1e3:,.0f} KB",
                unit="requests/s",
                values=[rate for rate, _ in plain],
                alternative="FastAPI response_model",
                alternative_values=[rate for rate, _ in model],
                reference=_KEPT[size][0],
                reference_of=f"bytes kept, {_KEPT[size][1]:,} KB",
            )
            yield Figure(
                name="its slowest hundredth",
                unit="ms",
                values=[late for _, late in plain],
                more_is_better=False,
                alternative="FastAPI response_model",
                alternative_values=[late for _, late in model],
            )
        for size in SIZES:
            headers = {"Accept-Encoding": "gzip"}
            length, _ = _asked(ours, size, headers)
            known = _ZIPPED.get(size)
            yield Figure(
                name=f"gzipped, {size:,} rows, {length / 1e3:,.0f} KB",
                unit="requests/s",
                values=[_load(ours, size, seconds, headers)[0] for _ in range(times)],
                reference=known[0] if known else None,
                reference_of=f"gzipped bytes kept, {known[1]:,} KB" if known else "",
            )
        _, tag = _asked(ours, 1_000, {})
        yield Figure(
            name="not modified (304), 1,000 rows",
            unit="requests/s",
            values=[_load(ours, 1_000, seconds, {"If-None-Match": tag})[0] for _ in range(times)],
            reference=_NOT_MODIFIED,
            reference_of="If-None-Match",
        )


@contextmanager
def _server(*, response_model: bool) -> Iterator[str]:
    """The address of a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), kwargs={"response_model": response_model}, daemon=True)
    process.start()
    try:
        if not here.poll(120):
            raise TimeoutError("the server does not listen")
        yield here.recv()
    finally:
        here.close()
        process.terminate()
        process.join(20)


def _serve(pipe: Connection, *, response_model: bool) -> None:
    """In the server's process: a store with scores, and one of the two applications over it."""
    _stay_on(min)
    store = Store(None)
    store.write(
        {"scores": scores(GPUS), "gpus": gpus_table(GPUS), "nodes": nodes_table(GPUS), "topology": topology(GPUS)}
    )
    listener = Listener(host="127.0.0.1", port=0)
    app = _through_the_model(store) if response_model else create_app(store, clock_ns=_now_ns)
    threading.Thread(target=_tell, args=(pipe, listener.url), daemon=True).start()
    listener.serve(app, threading.Event())


def _stay_on(choose: Callable[[set[int]], int]) -> None:
    """This process, and those that it starts, on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {choose(os.sched_getaffinity(0))})


def _through_the_model(store: Store) -> FastAPI:
    """The usual way: the handler returns the same objects, FastAPI checks and writes them at each request."""
    fleets = Fleets(store, topology=None, clock_ns=_now_ns, stale_after_ns=300 * 10**9)
    site = Site(store=store, fleets=fleets)
    bodies = {size: RANKING.build(site, parse(b"limit=%d" % size, RANKING.parameters)).body for size in SIZES}
    app = FastAPI()

    @app.get("/v1/gpus", response_model=GpuList)
    async def listed(limit: int) -> object:
        return bodies[limit]

    return app


def _now_ns() -> int:
    return START_NS + 4 * WINDOW_NS


def _tell(pipe: Connection, url: str) -> None:
    """The address, once the server answers."""
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/v1/gpus?limit=100", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            pipe.send(url)
            return


def _asked(url: str, size: int, headers: Mapping[str, str]) -> tuple[int, str]:
    """Bytes of an answer, and its tag."""
    request = urllib.request.Request(f"{url}/v1/gpus?limit={size}", headers=dict(headers))
    with urllib.request.urlopen(request, timeout=60) as answer:
        return len(answer.read()), str(answer.headers["ETag"])


def _load(url: str, size: int, seconds: int, headers: Mapping[str, str]) -> tuple[float, float]:
    """Requests a second, and the milliseconds that 99 % of them stay below."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "--timeout", "20s"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    done = subprocess.run(
        [*command, f"{url}/v1/gpus?limit={size}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 60,
        preexec_fn=lambda: _stay_on(max),
    )
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    late = re.search(r"99%\s+([\d.]+)(us|ms|s)", done.stdout)
    if rate is None or late is None or "Non-2xx" in done.stdout:
        raise RuntimeError(f"wrk says: {done.stdout}")
    return float(rate[1]), float(late[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[late[2]]
