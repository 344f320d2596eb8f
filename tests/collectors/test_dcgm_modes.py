"""Whatever an exporter may do, and what becomes of it: one test a row of the table in docs/collectors.md.

To add a mode: a function here, named as its row, and the row.
"""

import contextlib
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.dcgm import Exporters, answer, bomb, bus, endless, exporters, page, sends, serves, silent, slow, uuid

from collectors import Reading
from collectors.dcgm.collector import Dcgm
from collectors.dcgm.exporter import Claims, Exporter
from collectors.dcgm.targets import sources_of, target_of
from telemetry.errors import BadInput, NoData
from telemetry.records import Event, NodeInventory, NodeJobs, SampleBatch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectors.md"
HEADING = "### What an exporter does, and what becomes of it"
START_NS = 1_767_225_600 * 10**9
MODES: dict[str, Callable[["Site"], None]] = {}


def mode(function: Callable[["Site"], None]) -> Callable[["Site"], None]:
    """The function is the test of the row with its name."""
    MODES[function.__name__.replace("_", " ")] = function
    return function


class Site:
    """Pages read one after the other, 15 s apart, as the scraper does; and servers for what is no page."""

    def __init__(self, servers: Exporters) -> None:
        self.servers = servers
        self.claims = Claims(keep_s=150.0)
        self.exporter = self.make("n1:9400")
        self.now = 1000.0
        self.events: list[Event] = []
        self.rejected: Counter[str] = Counter()
        self.inventory: dict[str, NodeInventory] = {}
        self.jobs: dict[str, NodeJobs] = {}
        self.batches: list[SampleBatch] = []

    def make(self, address: str) -> Exporter:
        """Another target of the same site."""
        return Exporter(target_of(address), interval_s=15.0, claims=self.claims, fallback_node="here")

    @property
    def time_ns(self) -> int:
        """The wall clock."""
        return START_NS + round(self.now * 1e9)

    def scrape(
        self, text: str, *, exporter: Exporter | None = None, wait_s: float = 15.0
    ) -> dict[str, dict[str, object]]:
        """The samples of a page, by GPU and metric."""
        self.now += wait_s
        found = (exporter or self.exporter).read(text.encode(), time_ns=self.time_ns, now=self.now)
        self.keep(found)
        return rows(found)

    def keep(self, found: list[Reading]) -> None:
        """Remember what readings told."""
        for reading in found:
            self.events += reading.events
            self.rejected.update(reading.rejected)
            self.inventory |= {record.node: record for record in reading.inventory}
            self.jobs |= {jobs.node: jobs for jobs in reading.jobs}
            self.batches += reading.samples

    def told(self) -> list[tuple[str, str]]:
        """Kind and GPU of every event."""
        return [(event.kind, event.gpu_uuid) for event in self.events]

    def beside(self, address: str, *, timeout_s: float = 0.4) -> bool:
        """Scrape this address beside a good exporter: whether the good one gives samples after the other has failed."""
        ticks = itertools.count()
        good = self.servers.add(serves(lambda: page(1, node="good", number=9, tick=next(ticks))))
        collector = Dcgm(sources_of([address, good]), node="here", interval_s=0.4, timeout_s=timeout_s, wait_s=0.1)
        until, samples = time.monotonic() + 30, 0
        try:
            while time.monotonic() < until and samples < 3:
                with contextlib.suppress(NoData):
                    found = collector.collect()
                    samples += bool(self.rejected) and any(batch.node == "good" for batch in found.samples)
                    self.keep([found])
        finally:
            collector.close()
        return samples >= 3


def rows(found: list[Reading]) -> dict[str, dict[str, object]]:
    """Samples by GPU: its values."""
    return {
        batch.gpus[index]: {name: values[row] for name, values in batch.columns.items() if values[row] is not None}
        for reading in found
        for batch in reading.samples
        for row, index in enumerate(batch.gpu)
    }


@pytest.fixture
def site() -> Iterator[Site]:
    """Servers and a clock."""
    with exporters() as servers:
        yield Site(servers)


@mode
def all_is_well(site: Site) -> None:
    for tick in range(8):
        assert site.scrape(page(8, tick=tick)).keys() == {uuid(place) for place in range(8)}
    assert not site.events
    assert not site.rejected
    assert {batch.interval_s for batch in site.batches} == {15.0}
    (found,) = site.inventory.values()
    assert found.node == "n1"
    assert [(gpu.gpu_uuid, gpu.slot) for gpu in found.gpus] == [(uuid(place), place) for place in range(8)]
    assert found.gpus[1].bus_id == bus(1).lower()
    assert found.gpus[0].model == "NVIDIA H100 80GB HBM3"
    assert found.driver_version == "580.95.05"
    assert found.gpus[0].power_limit_default_w == 700


@mode
def labels_and_names_are_those_of_the_newer_dialect(site: Site) -> None:
    old = site.scrape(page(2))
    other = Site(site.servers)
    new = other.scrape(page(2, new=True))
    assert old == new
    assert len(old[uuid(0)]) > 40
    assert [i.gpus for i in site.inventory.values()] == [i.gpus for i in other.inventory.values()]


@mode
def a_value_is_blank(site: Site) -> None:
    for number in (2147483632, 2147483633, 2147483634, 9223372036854775794, "9.223372036854776e+18", "NaN"):
        found = site.scrape(page({0: {"temperature_c": number}, 1: {}}, tick=site.now))
        assert "temperature_c" not in found[uuid(0)]
        assert "temperature_c" in found[uuid(1)]
    found = site.scrape(page({0: {"tensor_active_ratio": 140737488355330.0, "energy_mj": 2147483632}}, tick=1))
    assert "tensor_active_ratio" not in found[uuid(0)]
    assert found[uuid(0)]["energy_mj"] == 2147483632  # a number to a counter of 64 bits
    assert not site.rejected


@mode
def a_value_needs_more_permission(site: Site) -> None:
    found = site.scrape(page({0: {"temperature_c": 2147483635, "tensor_active_ratio": 140737488355331.0}}))
    assert not {"temperature_c", "tensor_active_ratio"} & found[uuid(0)].keys()
    assert site.rejected == {"temperature_c:no_permission": 1, "tensor_active_ratio:no_permission": 1}


@mode
def a_value_is_nonsense(site: Site) -> None:
    found = site.scrape(page({0: {"utilization_ratio": 4294967295, "ecc_corrected_total": 1e12}, 1: {}}))
    assert not {"utilization_ratio", "ecc_corrected_total"} & found[uuid(0)].keys()
    assert "utilization_ratio" in found[uuid(1)]
    assert site.rejected == {"utilization_ratio:out_of_range": 1, "ecc_corrected_total:out_of_range": 1}


@mode
def a_GPU_gives_only_blanks(site: Site) -> None:
    site.scrape(page(2))
    blanks = dict.fromkeys(_names(), 9223372036854775794)
    assert site.scrape(page({0: blanks, 1: {}}, tick=1)).keys() == {uuid(1)}
    assert site.told() == [("missing_gpu", uuid(0))]


@mode
def a_GPU_is_no_longer_shown(site: Site) -> None:
    site.scrape(page(3))
    site.scrape(page(2, tick=1))
    assert not site.events  # one page may lack it
    assert site.scrape(page(2, tick=2)).keys() == {uuid(0), uuid(1)}
    assert site.told() == [("gpu_lost", uuid(2))]


@mode
def a_page_lacks_a_GPU_once(site: Site) -> None:
    for tick, count in enumerate((3, 2, 3, 2, 3)):
        site.scrape(page(count, tick=tick))
    assert not site.events
    assert len(site.inventory["n1"].gpus) == 3


@mode
def another_GPU_is_in_the_slot(site: Site) -> None:
    site.scrape(page(2))
    text = page(2, tick=1).replace(uuid(1), uuid(7))
    assert site.scrape(text).keys() == {uuid(0), uuid(7)}
    assert site.told() == [("new_gpu", uuid(7))]


@mode
def the_driver_is_loaded_anew(site: Site) -> None:
    site.scrape(page(2, tick=5))
    site.scrape(page(2, tick=6).replace("580.95.05", "590.1"))
    assert site.told() == [("driver_reload", "")]


@mode
def an_XID_is_there_at_first_sight(site: Site) -> None:
    for tick in range(3):
        site.scrape(page({0: {"xid_code": 79}, 1: {}}, tick=tick))
    assert not site.events  # as old as the driver, perhaps


@mode
def an_XID_comes_and_stays(site: Site) -> None:
    for tick, code in enumerate((0, 79, 79, 79, 31, 31, 0, 0, 79)):
        site.scrape(page({0: {"xid_code": code}, 1: {}}, tick=tick))
    assert [(event.gpu_uuid, event.code) for event in site.events] == [(uuid(0), 79), (uuid(0), 31), (uuid(0), 79)]


@mode
def MIG_is_on(site: Site) -> None:
    lines = [
        line.replace('gpu="0"', f'gpu="0",GPU_I_PROFILE="1g.10gb",GPU_I_ID="{instance}"')
        for instance in range(1, 8)
        for line in page(1).splitlines()
        if "GPU_UTIL" not in line
    ]
    found = site.scrape("\n".join(lines))
    assert found.keys() == {uuid(0)}  # the physical GPU is scored
    assert found[uuid(0)]["temperature_c"] == 61
    assert found[uuid(0)]["sm_clock_mhz"] == 1980
    unknown = {"utilization_ratio", "graphics_engine_active_ratio", "tensor_active_ratio", "memory_used_bytes"}
    assert not unknown & found[uuid(0)].keys()
    assert site.inventory["n1"].gpus[0].mig_enabled is True
    assert not site.rejected


@mode
def the_same_numbers_come_again(site: Site) -> None:
    """An exporter that looks every 30 s, scraped every 15."""
    seen = [len(site.scrape(page(2, tick=tick // 2))) for tick in range(20)]
    assert seen == [2, 0] * 10
    assert site.batches[-1].interval_s == 30.0  # the promise is the exporter's own
    assert not site.events


@mode
def the_numbers_stand_still(site: Site) -> None:
    site.scrape(page(2))
    frozen = [len(site.scrape(page(2))) for _ in range(20)]
    assert frozen == [0] * 20  # nothing new is known: stale, not healthy
    assert site.told() == [("collector_failed", "")]
    assert len(site.scrape(page(2, tick=1))) == 2


@mode
def one_GPU_s_numbers_stand_still(site: Site) -> None:
    site.scrape(page(2))
    dead = {"energy_mj": 9_409_439_200_000, "sm_cycles_elapsed_total": 5 * 10**12}
    assert site.scrape(page({0: dead, 1: {}}, tick=1)).keys() == {uuid(1)}


@mode
def an_idle_GPU_changes_little(site: Site) -> None:
    """Temperature and clock of an idle GPU stay the same; without energy or power nobody can tell."""
    bare = dict.fromkeys(_names() - {"temperature_c", "sm_clock_mhz"})
    for _ in range(4):
        assert len(site.scrape(page({0: bare, 1: bare}))) == 2


@mode
def series_have_times_of_their_own(site: Site) -> None:
    """Through a Prometheus: the sample's time is the series's, and one that was seen is no new one."""
    when = site.time_ns // 10**6 + 5_000
    text = re.sub(r"^(DCGM.*)$", rf"\1 {when}", page(1), flags=re.MULTILINE)
    site.scrape(text)
    assert site.batches[0].time_ns == [when * 10**6]
    assert not site.scrape(text.replace("9409439200000", "9409439200001"))


@mode
def jobs_are_in_the_labels(site: Site) -> None:
    pods = {0: {"pod": "train-0", "namespace": "ml", "container": "main", "isotach_workload_class": "memory"}}
    slurm = {1: {"hpc_job": "184467"}}
    site.scrape(page(3, more=lambda place: {**pods, **slurm}.get(place, {})))
    first, second = site.jobs["n1"].jobs
    assert (first.gpu_uuid, first.job_id, first.source) == (uuid(0), "ml/train-0", "kubernetes")
    assert (first.name, first.namespace, first.workload_class) == ("main", "ml", "memory")
    assert (second.gpu_uuid, second.job_id, second.source) == (uuid(1), "184467", "slurm")
    assert site.scrape(page(3, tick=1)).keys() == {uuid(place) for place in range(3)}
    assert site.jobs["n1"].jobs == ()  # both have ended


@mode
def a_workload_class_is_unknown(site: Site) -> None:
    site.scrape(page(1, more=lambda place: {"pod": "a", "namespace": "b", "isotach_workload_class": "fast"}))
    assert [job.workload_class for job in site.jobs["n1"].jobs] == [None]
    assert site.rejected == {"labels:unknown_workload_class": 1}


@mode
def a_GPU_is_shared_by_pods(site: Site) -> None:
    both = [page(1, more=lambda place, name=name: {"pod": name, "namespace": "x"}) for name in ("a", "b")]
    assert site.scrape("\n".join(both)).keys() == {uuid(0)}
    assert [job.job_id for job in site.jobs["n1"].jobs] == ["x/a", "x/b"]
    assert not site.rejected


@mode
def series_are_doubled(site: Site) -> None:
    text = page(1)
    found = site.scrape(text + text.replace(" 61\n", " 99\n"))
    assert found[uuid(0)]["temperature_c"] == 61
    assert site.rejected["line:duplicate"] > 40


@mode
def a_UUID_is_none(site: Site) -> None:
    text = page(2).replace(uuid(0), "not a UUID\\n; drop")
    first = site.scrape(text).keys() - {uuid(1)}
    assert len(first) == 1  # by its bus id, always under the same name
    assert site.scrape(page(2, tick=1).replace(uuid(0), "")).keys() - {uuid(1)} == first
    assert site.rejected == {"labels:bad_uuid": 1}
    with pytest.raises(BadInput, match="no_gpu"):
        site.scrape(re.sub(r'pci_bus_id="[^"]*"', "", text.replace(uuid(1), "x")))


@mode
def two_GPUs_have_one_UUID(site: Site) -> None:
    assert len(site.scrape(page(2).replace(uuid(1), uuid(0)))) == 2
    assert site.rejected == {"gpu:repeated_uuid": 1}


@mode
def an_exporter_is_listed_twice(site: Site) -> None:
    twin = site.make("10.0.0.1:9400")
    assert len(site.scrape(page(2))) == 2
    assert not site.scrape(page(2, tick=1), exporter=twin)
    assert len(site.scrape(page(2, tick=2))) == 2
    assert site.rejected == {"gpu:repeated_uuid": 2}
    assert len(site.scrape(page(2, tick=3), exporter=twin, wait_s=200)) == 2  # the first one has gone


@mode
def two_exporters_have_one_host_name(site: Site) -> None:
    twin = site.make("10.0.0.1:9400")
    site.scrape(page(2, node="localhost"))
    site.scrape(page(2, node="localhost", number=1), exporter=twin)
    assert site.inventory.keys() == {"localhost", "localhost@10.0.0.1:9400"}
    assert site.rejected == {"node:repeated_name": 1}


@mode
def lines_are_broken(site: Site) -> None:
    broken = [
        f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(5)}",pci_bus_id="{bus(5)}"}} ',
        f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(5)}" pci_bus_id="{bus(5)}"}} 5',
        f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(5)}"}} 6_1',
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-5',
        "DCGM_FI_DEV_GPU_TEMP{" + "x" * 20_000,
    ]
    found = site.scrape(page(2, extra="\n".join(broken)))
    assert found.keys() == {uuid(0), uuid(1)}
    assert site.rejected == {
        "line:no_value": 1,
        "line:bad_labels": 1,
        "line:bad_value": 1,
        "line:unreadable": 1,
        "line:too_long": 1,
    }
    assert not site.events  # a damaged page does not prove that a GPU is gone


@mode
def nothing_listens(site: Site) -> None:
    assert site.beside("127.0.0.1:1")
    assert set(site.rejected) == {"scrape:unreachable"}
    for _ in range(10):
        site.keep([site.exporter.failed("unreachable", "refused", time_ns=site.time_ns, now=site.now)])
    assert set(site.told()[-1:]) == {("collector_failed", "")}
    assert len(site.told()) <= 2  # once for each of the two targets


@mode
def no_answer_comes(site: Site) -> None:
    assert site.beside(site.servers.add(silent))
    assert set(site.rejected) == {"scrape:timeout"}


@mode
def the_page_comes_too_slowly(site: Site) -> None:
    assert site.beside(site.servers.add(slow(page(2), 0.01)))
    assert set(site.rejected) == {"scrape:timeout"}


@mode
def the_page_is_too_large(site: Site) -> None:
    body = "# " + "x" * (10 << 20)
    assert site.beside(site.servers.add(serves(body)), timeout_s=5)
    assert set(site.rejected) == {"scrape:too_large"}


@mode
def the_page_never_ends(site: Site) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
    line = b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1"} 1\n' * 20_000
    assert site.beside(site.servers.add(endless(head + b"\r\n", line)), timeout_s=5)
    chunks = b"%x\r\n%s\r\n" % (len(line), line)
    assert site.beside(site.servers.add(endless(head + b"Transfer-Encoding: chunked\r\n\r\n", chunks)), timeout_s=5)
    assert set(site.rejected) == {"scrape:too_large"}


@mode
def the_headers_never_end(site: Site) -> None:
    assert site.beside(site.servers.add(endless(b"HTTP/1.1 200 OK\r\n", b"X-Y: z\r\n" * 1000)), timeout_s=5)
    assert set(site.rejected) == {"scrape:no_http"}


@mode
def the_page_has_endless_labels(site: Site) -> None:
    lines = (f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(i)}"}} 1' for i in range(5_000))
    assert site.beside(site.servers.add(serves("\n".join(lines))), timeout_s=5)
    assert set(site.rejected) == {"scrape:too_many_labels"}
    site.rejected.clear()
    assert site.beside(site.servers.add(serves("\n" * 100_000)), timeout_s=5)
    assert set(site.rejected) == {"scrape:too_many_lines"}


@mode
def the_page_unpacks_to_far_more(site: Site) -> None:
    assert site.beside(site.servers.add(sends(bomb(100 << 20))), timeout_s=5)
    assert set(site.rejected) == {"scrape:too_large"}


@mode
def the_answer_is_no_page(site: Site) -> None:
    assert site.beside(site.servers.add(sends(answer("<html>", kind="text/html"))))
    assert set(site.rejected) == {"scrape:content_type"}
    for data, reason in (
        (answer("gone", status=503), "http_status"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no_http"),
        (b"", "no_http"),
        (answer("go_threads 5\n"), "no_gpus"),
        (answer("\0" * 1000), "no_gpus"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nDCGM", "cut_off"),
    ):
        site.rejected.clear()
        assert site.beside(site.servers.add(sends(data)))
        assert set(site.rejected) == {f"scrape:{reason}"}


def _names() -> set[str]:
    from support.dcgm import raw

    return set(raw())


@pytest.mark.parametrize("name", MODES)
def test_what_becomes_of_it(name: str, site: Site) -> None:
    """What the row of this name in docs/collectors.md says."""
    MODES[name](site)


def test_the_table_is_whole() -> None:
    """Every mode is a row of docs/collectors.md, and every row a test."""
    part = PAGE.read_text(encoding="utf-8").partition(HEADING)[2]
    table = part.partition("\n## ")[0]
    listed = [re.sub(r"\W+", " ", row).strip() for row in re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)]
    assert listed[1:] == list(MODES)
