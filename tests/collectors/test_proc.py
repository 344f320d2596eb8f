"""Processes by number: gone, hidden, of another namespace, unreadable; each is what it is, none is taken for idle."""

import tracemalloc
from pathlib import Path

import pytest
from support.proc import UID, USER, FakeProc, pod, slurm

from collectors.cgroup import Owner
from collectors.proc import MOST_PID, Proc, Unknown


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    """A host with a job, a pod and a shell."""
    one = FakeProc(tmp_path)
    one.start(100, slurm(7))
    one.start(101, pod(UID))
    one.start(102, USER)
    return one


def test_each_process_has_its_owner(fake: FakeProc) -> None:
    """A job, a pod, nobody; one that has ended is not among them."""
    assert Proc(fake.root).owners([100, 101, 102, 102, 999]) == {
        100: Owner(source="slurm", job_id="7"),
        101: Owner(source="kubernetes", job_id=UID),
        102: None,
    }


def test_numbers_that_are_none_are_unknown(fake: FakeProc) -> None:
    """0 is what a driver says of a process that it hides; beyond Linux's largest number there is none."""
    found = Proc(fake.root).owners([0, -1, MOST_PID + 1, 2**32 - 1])
    assert found == {0: Unknown.HIDDEN} | dict.fromkeys((-1, MOST_PID + 1, 2**32 - 1), Unknown.OUT_OF_RANGE)


def test_a_number_that_is_used_again_is_read_again(fake: FakeProc) -> None:
    """Nothing is kept from one look to the next."""
    proc = Proc(fake.root)
    proc.owners([100])
    fake.end(100)
    fake.start(100, slurm(8))
    assert proc.owners([100]) == {100: Owner(source="slurm", job_id="8")}


def test_numbers_of_another_namespace_are_unknown(fake: FakeProc) -> None:
    """In a container the driver's numbers are other processes here, or none: none is blamed, none is called gone."""
    fake.own("pid:[4026532999]")
    assert Proc(fake.root).owners([100, 999]) == dict.fromkeys((100, 999), Unknown.OTHER_NAMESPACE)


def test_the_host_s_own_namespace_is_trusted(fake: FakeProc) -> None:
    """An agent on the host itself, or in a container with the host's process numbers."""
    fake.own()
    assert Proc(fake.root).owners([100, 999]) == {100: Owner(source="slurm", job_id="7")}


def test_hidden_processes_are_not_taken_for_ended_ones(fake: FakeProc) -> None:
    """With hidepid=2 the folders of others are not there, not even that of process 1."""
    fake.end(1)
    assert Proc(fake.root).owners([100, 999]) == {100: Owner(source="slurm", job_id="7"), 999: Unknown.HIDDEN}


def test_what_may_not_be_read_is_unknown(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid=1 the folders are there and their files are refused."""

    def refused(self: Proc, pid: int) -> tuple[str, bool]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Proc, "_text", refused)
    assert Proc(fake.root).owners([100]) == {100: Unknown.NO_PERMISSION}


def test_without_any_proc_all_is_unknown(tmp_path: Path) -> None:
    """A folder that is not there is no sign that nobody works."""
    assert Proc(tmp_path / "none").owners([100]) == {100: Unknown.UNREADABLE}


@pytest.mark.parametrize(
    "content", [b"", b"x" * 10**6, b"0::/" + b"a/" * 10**6, b"\xff\xfe\x00", b"0::/system.slice\n" + b"y" * 10**6]
)
def test_a_file_that_is_no_cgroup_file_costs_little(fake: FakeProc, content: bytes) -> None:
    """Endless, binary, half a line: 64 KiB are read; what is cut off may have been the job. An empty one is an end."""
    fake.start(103, content)
    tracemalloc.start()
    try:
        found = Proc(fake.root).owners([103])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == ({103: Unknown.UNREADABLE} if content else {})
    assert peak < 2 << 20


def test_a_job_before_the_cut_counts(fake: FakeProc) -> None:
    """Many hierarchies may follow: what was found is found."""
    fake.start(103, slurm(9) + "5:pids:/x\n" * 10**5)
    assert Proc(fake.root).owners([103]) == {103: Owner(source="slurm", job_id="9")}


def test_a_folder_where_a_file_belongs_is_unknown(fake: FakeProc) -> None:
    """Whatever the system answers but "not there"."""
    (fake.root / "104" / "cgroup").mkdir(parents=True)
    assert Proc(fake.root).owners([104]) == {104: Unknown.UNREADABLE}
