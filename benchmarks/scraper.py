"""What scraping a fleet's dcgm-exporters costs one process: CPU, latency, memory; and reading one page, two ways.

To scrape another fleet: `EXPORTERS`, `GPUS`, `INTERVAL_S`.
"""

import asyncio
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import Figure
from benchmarks.timing import rates, repeats
from collectors import Reading
from collectors.dcgm.collector import ASKED_TIMES, Dcgm
from collectors.dcgm.exporter import Claims, Exporter
from collectors.dcgm.scraper import Scraper
from collectors.dcgm.targets import sources_of, target_of
from telemetry.errors import NoData

EXPORTERS = 1_000
GPUS = 8
INTERVAL_S = 15.0
SETTLE_S = 20.0  # every target was scraped, its labels are known
_TESTS = str(Path(__file__).resolve().parents[1] / "tests")
_ENERGY = "9409439200000"


def figures(*, quick: bool) -> Iterator[Figure]:
    """Exporters are one other process on loopback; whatever they cost is not in the figures."""
    yield _reading(30 if quick else 200)
    yield from _scraping(EXPORTERS // 10 if quick else EXPORTERS, slices=2 if quick else 6)


def _page(node: int) -> str:
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
    from support.dcgm import page

    def job(place: int) -> Mapping[str, str]:
        return {"pod": f"train-{node}-{place}", "namespace": "ml", "container": "main"}

    return page(GPUS, node=f"n{node:04d}", number=node, more=job)


def _reading(times: int) -> Figure:
    text = _page(0)
    series = sum(not line.startswith("#") for line in text.splitlines() if line)
    exporter = Exporter(target_of("n1"), interval_s=INTERVAL_S, claims=Claims(keep_s=150), fallback_node="here")
    bodies = [text.replace(_ENERGY, str(int(_ENERGY) + tick)).encode() for tick in range(times)]
    turn = iter(range(10**9))

    def ours() -> None:
        for body in bodies:
            tick = next(turn)
            exporter.read(body, time_ns=tick * 10**9, now=float(tick))

    def theirs() -> int:
        return sum(
            len(family.samples) for body in bodies[:10] for family in text_string_to_metric_families(body.decode())
        )

    return Figure(
        name=f"dcgm-exporter's page of {GPUS} GPUs, {series} series, to checked samples",
        unit="pages/CPU-s",
        values=rates(times, repeats(ours, 5).cpu_s),
        alternative="prometheus_client.parser, to its samples only",
        alternative_values=rates(len(bodies[:10]), repeats(theirs, 5).cpu_s),
    )


def _scraping(count: int, *, slices: int) -> Iterator[Figure]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=_serve, args=(there, count), daemon=True)
    server.start()
    try:
        port = here.recv()
        with _timed_scrapes() as latencies:
            shares, samples, resident = _watch([f"http://127.0.0.1:{port}/{i}/metrics" for i in range(count)], slices)
    finally:
        server.terminate()
        server.join()
    what = f"{count:,} exporters of {GPUS} GPUs every {INTERVAL_S:.0f} s, one process"
    ranked = sorted(latencies)
    yield Figure(name=what, unit="% of a core", values=shares, more_is_better=False)
    yield Figure(name="the same: samples of GPUs that came, of those that were due", unit="%", values=samples)
    middle = [1e3 * ranked[len(ranked) // 2]]
    yield Figure(
        name="the same: a scrape from asking to samples, median", unit="ms", values=middle, more_is_better=False
    )
    last = [1e3 * ranked[int(len(ranked) * 0.99)]]
    yield Figure(name="the same: 99th percentile", unit="ms", values=last, more_is_better=False)
    yield Figure(name="the same: resident memory", unit="MB", values=[resident], more_is_better=False)


class _timed_scrapes:  # noqa: N801 - used as a block
    """Wraps the scraper's one step; gives seconds of every scrape within the block."""

    def __enter__(self) -> list[float]:
        self._before = before = Scraper._scrape
        found: list[float] = []

        async def timed(scraper: Scraper, exporter: Exporter) -> None:
            began = time.perf_counter()
            await before(scraper, exporter)
            found.append(time.perf_counter() - began)

        Scraper._scrape = timed  # type: ignore[method-assign]
        return found

    def __exit__(self, *_: object) -> None:
        Scraper._scrape = self._before  # type: ignore[method-assign]


def _watch(targets: list[str], slices: int) -> tuple[list[float], list[float], float]:
    collector = Dcgm(sources_of(targets), node="here", interval_s=INTERVAL_S, timeout_s=10.0)
    me = psutil.Process()
    shares: list[float] = []
    samples: list[float] = []
    try:
        _take(collector, SETTLE_S)
        for _ in range(slices):
            cpu, wall = time.process_time(), time.perf_counter()
            found = _take(collector, INTERVAL_S)
            shares.append(100 * (time.process_time() - cpu) / (time.perf_counter() - wall))
            rejected = [reading.rejected for reading in found if reading.rejected]
            if rejected:
                raise RuntimeError(f"rejected: {rejected[:3]}")
            came = sum(len(batch) for reading in found for batch in reading.samples)
            samples.append(100 * came / max(1, sum(reading.due or 0 for reading in found)))
        resident = me.memory_info().rss / 1e6
    finally:
        collector.close()
    return shares, samples, resident


def _take(collector: Dcgm, seconds: float) -> list[Reading]:
    """What the agent does: ask now and then."""
    found: list[Reading] = []
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        time.sleep(min(left, INTERVAL_S / ASKED_TIMES))
        try:
            found.append(collector.collect())
        except NoData:
            continue
    return found


def _serve(pipe: Connection, count: int) -> None:
    """Pages of `count` exporters, by path; each answer has another energy."""
    pages = [_page(node) for node in range(min(count, 50))]  # names differ by path below
    parts = [[part.encode() for part in text.split(_ENERGY)] for text in pages]
    turn = iter(range(10**12))

    class Answer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            node = int(data.split(b"/", 2)[1])
            energy = str(int(_ENERGY) + next(turn)).encode()
            body = energy.join(parts[node % len(parts)])
            old = node % len(parts)
            body = body.replace(b"GPU-%08d" % old, b"GPU-%08d" % node).replace(b"n%04d" % old, b"n%04d" % node)
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            self.transport.write(head + body)  # type: ignore[attr-defined]
            self.transport.close()

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Answer, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())
