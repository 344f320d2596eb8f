"""Whatever the processes on GPUs may be, and what becomes of jobs: one test a row of a table in docs/collectors.md.

To add a mode: a function here, named as its row, and the row.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.nvml import NvmlStub, gpu_uuid
from support.proc import UID, USER, FakeProc, pod, slurm

from collectors import Reading
from collectors.job_book import JobBook
from collectors.nvml.collector import Nvml
from collectors.nvml.jobs import GONE_AFTER_NS
from collectors.nvml.patience import Patience
from telemetry.errors import SourceUnavailable
from telemetry.records import Event, NodeJobs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectors.md"
QUICK = Patience(
    late_s=1.0, tick_s=4.0, reopen_s=2.5, open_s=1.0, start_s=20.0, hang_s=1.2, retry_s=(0.3, 1.0), settle=3,
    renew_s=600.0,
)  # fmt: skip
GIB = 1 << 30
MODES: dict[str, Callable[["Node"], None]] = {}
Shown = dict[int, list[str]]


def mode(function: Callable[["Node"], None]) -> Callable[["Node"], None]:
    """The function is the test of the row with its name."""
    MODES[function.__name__.replace("_", " ")] = function
    return function


class Node:
    """A node with the stub as its NVML and a folder as its `/proc`, asked for processes at every reading."""

    def __init__(self, nvml: NvmlStub, folder: Path) -> None:
        self.nvml = nvml.set(compute="", mps="", graphics="")
        self.proc = FakeProc(folder / "proc")
        self.pod_logs = folder / "pods"
        self.ahead_ns = 0
        self.events: list[Event] = []
        self.rejected: Counter[str] = Counter()
        self.last: NodeJobs | None = None
        self.told: list[NodeJobs] = []
        self._book = JobBook()
        self.collector = self.make(0.0)

    def make(self, every_s: float | None) -> Nvml:
        """A collector over the stub."""
        return Nvml(
            node="n1",
            patience=QUICK,
            environment=self.nvml.environment,
            kernel_log=self.nvml.folder / "no-kernel-log",
            clock_ns=lambda: time.time_ns() + self.ahead_ns,
            jobs_every_s=every_s,
            proc=self.proc.root,
            pod_logs=self.pod_logs,
        )

    def job(self, number: int, pid: int, *places: int, size: int = GIB) -> None:
        """A Slurm job with one process on these GPUs."""
        self.proc.start(pid, slurm(number))
        for place in places:
            self.nvml.set(place, compute=f"{pid}:{size}")

    def tick(self) -> Reading:
        """One reading, and what the agent would publish of it."""
        reading = self.collector.collect()
        self.events += reading.events
        self.rejected.update(reading.rejected)
        for jobs in reading.jobs:
            self.last = jobs
            news = self._book.news(jobs, now=0.0)
            self.told += [] if news is None else [news]
        return reading

    def shown(self) -> Shown:
        """The jobs of each GPU after another reading, as the collector has them."""
        self.tick()
        found: Shown = {}
        places = {gpu_uuid(place): place for place in range(100)}
        for job in self.last.jobs if self.last else ():
            found.setdefault(places[job.gpu_uuid], []).append(job.job_id)
        return {place: sorted(names) for place, names in found.items()}

    def later(self, ns: int = GONE_AFTER_NS) -> None:
        """Let time pass on the collector's clock."""
        self.ahead_ns += ns

    def ended(self) -> list[str]:
        """Jobs whose end was published, in order."""
        return [job.job_id for jobs in self.told for job in jobs.jobs if job.ended]

    def kept(self, place: int, **stub: object) -> None:
        """With this change of the stub the GPU's job 7 stays as it was last seen, however long that is."""
        self.job(7, 70, place)
        assert self.shown() == {place: ["7"]}
        assert self.last is not None
        seen_ns = self.last.seen_ns
        self.nvml.set(place, **stub)
        for _ in range(2):
            self.later()
            assert self.shown() == {place: ["7"]}
        assert [job.seen_ns for job in self.last.jobs] == [seen_ns]
        assert self.ended() == []


@pytest.fixture
def node(nvml: NvmlStub, tmp_path: Path) -> Iterator[Node]:
    """Eight GPUs without a process."""
    one = Node(nvml, tmp_path)
    try:
        yield one
    finally:
        one.collector.close()


@mode
def nobody_works(node: Node) -> None:
    assert node.shown() == {}
    assert (node.told, dict(node.rejected), node.events) == ([], {}, [])


@mode
def two_jobs_share_a_node(node: Node) -> None:
    node.job(7, 70, 0, 1, 2)
    node.proc.start(80, pod(UID))
    node.nvml.set(3, compute=f"80:{2 * GIB}")
    assert node.shown() == {0: ["7"], 1: ["7"], 2: ["7"], 3: [UID]}
    [news] = node.told
    assert {(job.job_id, job.source) for job in news.jobs} == {("7", "slurm"), (UID, "kubernetes")}
    assert {(job.job_id, job.processes, job.memory_bytes) for job in news.jobs} == {("7", 1, GIB), (UID, 1, 2 * GIB)}
    assert {job.started_ns for job in news.jobs} == {news.seen_ns}
    assert (dict(node.rejected), node.events) == ({}, [])


@mode
def a_pod_has_a_name(node: Node) -> None:
    folder = node.pod_logs / f"ml_train-0_{UID}"
    folder.mkdir(parents=True)
    (node.pod_logs / "lost+found").mkdir()
    node.proc.start(80, pod(UID))
    node.nvml.set(3, compute=f"80:{GIB}").set(4, compute="")
    assert node.shown() == {3: ["ml/train-0"]}
    assert node.last is not None
    assert [(job.namespace, job.name) for job in node.last.jobs] == [("ml", None)]
    folder.rmdir()  # the kubelet has taken its logs away, and it still runs
    node.later()
    assert node.shown() == {3: ["ml/train-0"]}
    assert len(node.told) == 1


@mode
def a_pod_gets_a_name_later(node: Node) -> None:
    node.proc.start(80, pod(UID))
    node.nvml.set(3, compute=f"80:{GIB}")
    assert node.shown() == {3: [UID]}
    (node.pod_logs / f"ml_train-0_{UID}").mkdir(parents=True)
    assert node.shown() == {3: [UID]}
    assert len(node.told) == 1


@mode
def two_jobs_share_a_GPU(node: Node) -> None:
    for pid, number in ((70, 7), (71, 7), (80, 8)):
        node.proc.start(pid, slurm(number))
    node.nvml.set(2, compute=f"70:{GIB},71:{GIB},80", mps="71,72")
    assert node.shown() == {2: ["7", "8"]}
    assert node.last is not None
    assert {job.job_id: (job.processes, job.memory_bytes) for job in node.last.jobs} == {
        "7": (2, 2 * GIB),
        "8": (1, None),
    }


@mode
def a_process_is_in_two_lists(node: Node) -> None:
    node.job(7, 70, 2)
    node.nvml.set(2, mps="70", graphics=f"70:{GIB},70:{GIB}")
    assert node.shown() == {2: ["7"]}
    assert node.last is not None
    assert [(job.processes, job.memory_bytes) for job in node.last.jobs] == [(1, GIB)]


@mode
def a_process_belongs_to_no_job(node: Node) -> None:
    node.proc.start(70, USER)
    node.nvml.set(0, compute=f"70:{GIB}")
    assert node.shown() == {}
    assert (node.told, dict(node.rejected)) == ([], {})


@mode
def a_job_ends(node: Node) -> None:
    node.job(7, 70, 0, 1)
    assert node.shown() == {0: ["7"], 1: ["7"]}
    node.proc.end(70)
    node.nvml.set(compute="")
    assert node.shown() == {0: ["7"], 1: ["7"]}  # it may be between two programs
    node.later()
    assert node.shown() == {}
    assert node.ended() == ["7", "7"]
    assert {job.started_ns for jobs in node.told for job in jobs.jobs} == {node.told[0].seen_ns}


@mode
def a_job_starts_another_program(node: Node) -> None:
    node.job(7, 70, 0)
    node.tick()
    node.proc.end(70)
    node.job(7, 71, 0)
    node.later()
    assert node.shown() == {0: ["7"]}
    assert len(node.told) == 1


@mode
def a_process_ends_before_it_is_looked_at(node: Node) -> None:
    node.job(7, 70, 0)
    node.tick()
    node.proc.end(70)
    node.later()
    assert node.shown() == {}
    assert (node.ended(), dict(node.rejected)) == (["7"], {})


@mode
def the_driver_hides_a_process(node: Node) -> None:
    node.kept(0, compute="0")
    assert node.rejected == {"processes:hidden": 2}


@mode
def the_agent_is_in_another_PID_namespace(node: Node) -> None:
    node.proc.own("pid:[4026532999]")
    node.job(7, 70, 0)
    assert node.shown() == {}
    assert (node.told, node.rejected) == ([], {"processes:other_namespace": 1})


@mode
def other_users_processes_are_hidden(node: Node) -> None:
    node.proc.end(1)
    node.kept(0, compute=f"71:{GIB}")
    assert node.rejected == {"processes:hidden": 2}


@mode
def a_control_group_cannot_be_read(node: Node) -> None:
    node.proc.start(71, b"x" * 10**6)
    node.kept(0, compute=f"71:{GIB}")
    assert node.rejected == {"processes:unreadable": 2}


@mode
def a_process_number_is_none(node: Node) -> None:
    node.kept(0, compute=f"4294967295:{GIB}")
    assert node.rejected == {"processes:out_of_range": 2}


@mode
def processes_are_not_supported(node: Node) -> None:
    node.nvml.set(compute=None, mps=None, graphics=None)
    assert node.shown() == {}
    assert (node.told, dict(node.rejected), node.events) == ([], {}, [])


@mode
def only_the_list_for_compute_is_supported(node: Node) -> None:
    node.nvml.set(mps=None, graphics=None)
    node.job(7, 70, 0)
    assert node.shown() == {0: ["7"]}
    node.nvml.set(0, compute="")
    node.later()
    assert node.shown() == {}
    assert (node.ended(), dict(node.rejected)) == (["7"], {})


@mode
def processes_need_more_permission(node: Node) -> None:
    node.kept(0, compute="!4")
    assert node.rejected == {"processes:no_permission": 2}


@mode
def a_list_is_not_found(node: Node) -> None:
    node.kept(0, compute="!6", mps="!6")
    assert node.tick().samples[0].gpus.count(gpu_uuid(0)) == 1
    assert (node.events, dict(node.rejected)) == ([], {})


@mode
def there_are_more_processes_than_fit(node: Node) -> None:
    node.kept(0, compute="!7")
    assert node.rejected == {"processes:unreadable": 2}


@mode
def a_list_claims_ten_million_processes(node: Node) -> None:
    node.kept(0, process_count=10_000_000)
    assert node.rejected == {"processes:unreadable": 2}


@mode
def the_list_changes_at_every_call(node: Node) -> None:
    for pid in range(70, 200):
        node.proc.start(pid, slurm(pid // 70))
    node.nvml.set(0, compute="70:1,71:1", churn=1)
    for _ in range(5):
        assert set(node.shown()[0]) <= {"1", "2"}
    assert node.events == []


@mode
def a_call_for_processes_hangs(node: Node) -> None:
    node.job(7, 70, 0)
    node.job(8, 80, 1)
    assert node.shown() == {0: ["7"], 1: ["8"]}
    node.nvml.set(0, hang="nvmlDeviceGetComputeRunningProcesses").set(1, compute="")
    deadline = time.monotonic() + 20
    while not (node.ended() and node.events):
        assert time.monotonic() < deadline, (node.ended(), node.events)
        node.later()
        node.tick()
    assert node.shown() == {0: ["7"]}
    assert node.ended() == ["8"]
    assert {(event.kind, event.gpu_uuid) for event in node.events} == {("collector_hang", gpu_uuid(0))}
    assert "nvmlDeviceGetComputeRunningProcesses" in str(node.events[0].detail)


@mode
def MIG_cuts_a_GPU(node: Node) -> None:
    for pid in (70, 80):
        node.proc.start(pid, slurm(pid // 10))
    node.nvml.set(3, mig=1, compute="!4", mig__0=f"70:{GIB}", mig__2=f"80:{GIB},70:{GIB}")
    assert node.shown() == {3: ["7", "8"]}
    assert node.last is not None
    assert {job.job_id: (job.processes, job.memory_bytes) for job in node.last.jobs} == {
        "7": (1, 2 * GIB),
        "8": (1, GIB),
    }
    node.nvml.set(3, mig__2=None)
    node.later()
    assert node.shown() == {3: ["7"]}
    assert (node.ended(), dict(node.rejected)) == (["8"], {})


@mode
def a_GPU_with_a_job_is_lost(node: Node) -> None:
    node.kept(3, fail=15)
    assert [event.kind for event in node.events] == ["gpu_lost"]


@mode
def a_GPU_with_a_job_is_replaced(node: Node) -> None:
    node.job(7, 70, 3)
    node.tick()
    node.nvml.set(3, uuid=gpu_uuid(99), compute="").about(epoch=2)
    with pytest.raises(SourceUnavailable):
        node.tick()
    assert node.shown() == {}
    assert node.ended() == ["7"]


@mode
def jobs_are_switched_off(node: Node) -> None:
    node.collector.close()
    node.collector = node.make(None)
    node.job(7, 70, 0)
    node.nvml.set(0, hang="nvmlDeviceGetComputeRunningProcesses")
    for _ in range(3):
        assert gpu_uuid(0) in node.tick().samples[0].gpus
    assert (node.last, node.events) == (None, [])


@pytest.mark.parametrize("name", list(MODES))
def test_what_becomes_of(name: str, node: Node) -> None:
    """What the row of this name in docs/collectors.md says."""
    MODES[name](node)


def test_the_table_is_whole() -> None:
    """Every mode is a row of docs/collectors.md, and every row a test."""
    part = PAGE.read_text(encoding="utf-8").partition("### Processes on GPUs, and what becomes of their jobs")[2]
    lines = part.partition("|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert [re.split(r"\s*\|\s*", line.strip("| "))[0] for line in lines] == list(MODES)


def test_processes_are_asked_for_now_and_then(nvml: NvmlStub, tmp_path: Path) -> None:
    """Not with every reading: the first one has them, the next ones do not."""
    one = Node(nvml, tmp_path)
    one.collector.close()
    one.collector = one.make(600.0)
    try:
        assert [bool(one.tick().jobs) for _ in range(4)] == [True, False, False, False]
    finally:
        one.collector.close()
