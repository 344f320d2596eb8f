"""Driver reloads, indices in another order, boards taken out, exchanged, replaced, in any order: who is who after each.

To add a change: a method of `Machine`, its name in `CHANGES`. The stub's own truth is what everything is held against.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from support.nvml import NvmlStub, gpu_uuid, synthetic
from support.proc import FakeProc, slurm
from support.samples import samples

from analytics.counters import Groups, counter_features
from collectors.nvml.collector import Nvml
from collectors.nvml.patience import Patience
from telemetry.errors import SourceUnavailable
from telemetry.records import NodeInventory

SLOTS = 6
LEAST = 3  #: boards that stay: with one left, a reset of it and a reload look the same
STEPS = 9
PATIENCE_S = 20.0
QUICK = Patience(
    late_s=2.0, tick_s=4.0, reopen_s=2.5, open_s=2.0, start_s=20.0, hang_s=5.0, retry_s=(0.1, 0.3), settle=2,
    renew_s=600.0,
)  # fmt: skip
Told = tuple[str, str]


@dataclass
class Board:
    """A GPU as it is: what tells it from the others, and its counter of energy in mJ, value by value."""

    number: int
    energy: int = 5_000
    seen: list[int] = field(default_factory=list)  # each energy that was read
    reset_away: bool = False

    @property
    def uuid(self) -> str:
        return gpu_uuid(self.number)

    @property
    def clock(self) -> int:
        return 1_000 + self.number

    def reset(self) -> None:
        self.energy = 7

    @property
    def grown(self) -> int:
        """What it has used since it was first seen: a fall is a counter that began anew."""
        return sum(now - before if now >= before else now for before, now in pairwise(self.seen))


class Machine:
    """A node with boards in slots, and the collector over it."""

    def __init__(self, nvml: NvmlStub, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.nvml = nvml.profile([synthetic(place) for place in range(SLOTS)])
        self.boards = [Board(place) for place in range(SLOTS)]
        self.all = list(self.boards)
        self.away: set[int] = set()  # slots whose board is not there
        self.epoch, self.driver = 0, 0
        self.told: Counter[Told] = Counter()
        self.expected: Counter[Told] = Counter()
        self.rows: list[tuple[str, int, int | None, int | None]] = []
        self.jobs: dict[str, set[str]] = {}
        self.inventory: NodeInventory | None = None
        self.done: list[str] = []
        self.nvml.set(buffers=None, field__83=None, field__74=None, field__186=None, mps="", graphics="")
        proc = FakeProc(folder / "proc")
        for slot in range(SLOTS):
            proc.start(100 + slot, slurm(slot))
            self.nvml.set(slot, compute=f"{100 + slot}:1")
        self.collector = Nvml(
            node="n1",
            patience=QUICK,
            environment=nvml.environment,
            kernel_log=nvml.folder / "no-kernel-log",
            jobs_every_s=0.0,
            proc=proc.root,
        )
        self.show()

    def show(self) -> None:
        """Put the boards as they are now into the stub."""
        for slot, board in enumerate(self.boards):
            self.nvml.gpus[slot] |= {
                "uuid": board.uuid,
                "serial": f"S{board.number}",
                "sm_clock": board.clock,
                "field.83": board.energy,
            }
        self.nvml.write()

    def settle(self) -> None:
        """Read until exactly the boards that are there give a sample of what they are now."""
        here = {board.uuid: board.energy for slot, board in enumerate(self.boards) if slot not in self.away}
        deadline = time.monotonic() + PATIENCE_S
        while self.tick() != here or self.told != self.expected:
            assert time.monotonic() < deadline, str((self.done, self.told - self.expected, self.expected - self.told))
            time.sleep(0.02)
        for slot in self.here():
            self.boards[slot].seen.append(self.boards[slot].energy)

    def tick(self) -> dict[str, int | None]:
        """One reading; the energy of each GPU in it."""
        try:
            reading = self.collector.collect()
        except SourceUnavailable:
            return {}
        self.told.update((event.kind, event.gpu_uuid) for event in reading.events)
        self.inventory = reading.inventory[0] if reading.inventory else self.inventory
        found: dict[str, int | None] = {}
        for batch in reading.samples:
            for i, gpu in enumerate(batch.gpu):
                values = {name: column[i] for name, column in batch.columns.items()}
                uuid, energy = batch.gpus[gpu], values.get("energy_mj")
                assert energy is None or isinstance(energy, int)
                self.rows.append((uuid, batch.time_ns[i], values.get("sm_clock_mhz"), energy))  # type: ignore[arg-type]
                found[uuid] = energy
        for jobs in reading.jobs:
            self.jobs = {}
            for job in jobs.jobs:
                if job.seen_ns is None:
                    self.jobs.setdefault(job.gpu_uuid, set()).add(job.job_id)
        return found

    def here(self) -> list[int]:
        return [slot for slot in range(SLOTS) if slot not in self.away]

    def reload(self) -> None:
        """The driver goes and comes: handles die, and every process that had it has to begin anew."""
        self.epoch += 1
        self.nvml.about(epoch=self.epoch)

    def indices_change(self) -> None:
        order = list(range(SLOTS))
        self.random.shuffle(order)
        self.nvml.about(order=",".join(map(str, order)))
        if self.random.random() < 0.7:
            self.reload()

    def the_driver_is_loaded_anew(self) -> None:
        another, counters = self.random.choice([(True, True), (True, False), (False, True)])
        if another:
            self.driver += 1
            self.nvml.about(driver=f"580.{self.driver}")
        if counters:
            for slot, board in enumerate(self.boards):
                board.reset()
                board.reset_away = slot in self.away
        self.expected["driver_reload", ""] += 1
        self.reload()

    def a_board_is_reset(self) -> None:
        board = self.boards[self.random.choice(self.here())]
        board.reset()
        self.expected["gpu_reset", board.uuid] += 1

    def a_board_goes(self) -> None:
        if len(self.here()) <= LEAST:
            return
        self.goes(self.random.choice(self.here()), **self.random.choice([{"missing": 1}, {"fail": 15}]))

    def goes(self, slot: int, **how: object) -> None:
        """This board is lost, in that way."""
        self.nvml.set(slot, **how)
        self.away.add(slot)
        self.expected["gpu_lost", self.boards[slot].uuid] += 1

    def a_board_comes_back(self) -> None:
        if not self.away:
            return
        self.comes_back(self.random.choice(sorted(self.away)))

    def comes_back(self, slot: int) -> None:
        """This board is there again."""
        self.nvml.set(slot, missing=None, fail=None)
        self.away.discard(slot)
        board = self.boards[slot]
        if board.reset_away:
            self.expected["gpu_reset", board.uuid] += 1
            board.reset_away = False

    def another_board_is_in_a_slot(self) -> None:
        slot = self.random.choice(self.here())
        self.boards[slot] = board = Board(len(self.all) + 20, energy=self.random.choice([3, 10**9]))
        self.all.append(board)
        self.expected["new_gpu", board.uuid] += 1
        self.reload()

    def two_boards_change_places(self) -> None:
        one, other = self.random.sample(self.here(), 2)
        self.boards[one], self.boards[other] = self.boards[other], self.boards[one]
        self.reload()

    def an_XID_comes(self) -> None:
        slot = self.random.choice(self.here())
        self.nvml.xid(slot, 31)
        self.expected["xid", self.boards[slot].uuid] += 1

    def check(self) -> None:
        """Samples, inventory and jobs are those of the boards that are there."""
        clocks = {board.uuid: board.clock for board in self.all}
        assert {(uuid, clock) for uuid, _, clock, _ in self.rows} <= set(clocks.items()), self.done
        assert self.inventory is not None
        there = {self.boards[slot].uuid: (f"S{self.boards[slot].number}", slot + 1) for slot in self.here()}
        assert {gpu.gpu_uuid: (gpu.serial, gpu.slot) for gpu in self.inventory.gpus} == there, self.done
        jobs = {self.boards[slot].uuid: {str(slot)} for slot in self.here()}
        assert {uuid: self.jobs.get(uuid) for uuid in jobs} == jobs, self.done

    def growth(self) -> dict[str, int]:
        """Energy that each GPU used, as a window over all of this counts it, in mJ."""
        rows = sorted((uuid, time_ns, energy) for uuid, time_ns, _, energy in self.rows)
        columns = dict(zip(("gpu_uuid", "time_ns", "energy_mj"), map(list, zip(*rows, strict=True)), strict=True))
        frame = samples(columns)
        found = counter_features(frame, Groups.of(frame))["energy_j"].to_list()
        names = list(dict.fromkeys(columns["gpu_uuid"]))
        return {name: round(joules * 1e3) for name, joules in zip(names, found, strict=True) if joules is not None}


CHANGES: tuple[Callable[[Machine], None], ...] = (
    Machine.indices_change,
    Machine.the_driver_is_loaded_anew,
    Machine.a_board_is_reset,
    Machine.a_board_goes,
    Machine.a_board_comes_back,
    Machine.another_board_is_in_a_slot,
    Machine.two_boards_change_places,
    Machine.an_XID_comes,
)


@pytest.fixture
def machine(request: pytest.FixtureRequest, nvml: NvmlStub, tmp_path: Path) -> Iterator[Machine]:
    """Six boards, seen once."""
    one = Machine(nvml, tmp_path, request.param)
    try:
        one.settle()
        yield one
    finally:
        one.collector.close()


@pytest.mark.parametrize("machine", range(10), indirect=True)
def test_whatever_changes_everyone_stays_who_they_are(machine: Machine) -> None:
    """After each change every sample, slot, serial and job is the right board's, and what happened is told, once.

    No growth of a counter is negative, taken from another board's counter or from before a reset.
    """
    for _ in range(STEPS):
        for slot in machine.here():
            machine.boards[slot].energy += machine.random.randint(1_000, 9_000)
        machine.show()
        machine.settle()
        change = machine.random.choice(CHANGES)
        machine.done.append(change.__name__)
        change(machine)
        machine.show()
        machine.settle()
        machine.check()
    for _ in range(3):
        machine.tick()
    assert machine.told == machine.expected, machine.done  # and nothing is told late
    assert machine.growth() == {board.uuid: board.grown for board in machine.all if board.uuid in machine.growth()}
    assert {board.uuid for board in machine.all} == {uuid for uuid, *_ in machine.rows}


@pytest.mark.parametrize("machine", [0], indirect=True)
def test_a_reload_is_the_node_s_however_few_gpus_are_left(machine: Machine) -> None:
    """With half of them lost the others are not called failed one by one when the driver is loaded anew."""
    for slot in range(SLOTS // 2):
        machine.goes(slot, fail=15)
        machine.settle()
    machine.the_driver_is_loaded_anew()
    machine.show()
    machine.settle()
    assert {kind for kind, _ in machine.told} == {"gpu_lost", "driver_reload"}


@pytest.mark.parametrize("machine", [0], indirect=True)
def test_a_board_that_comes_back_is_found_while_another_is_away(machine: Machine) -> None:
    """The number of GPUs is what it was when the agent began, and yet one of them is new."""
    machine.goes(0, missing=1)
    machine.settle()
    machine.reload()
    machine.settle()
    machine.goes(5, missing=1)
    machine.settle()
    machine.comes_back(0)
    machine.settle()
    machine.check()


@pytest.mark.parametrize("machine", [0], indirect=True)
def test_an_index_that_is_another_s_by_now_makes_no_gpu_up(machine: Machine) -> None:
    """A board that was lost from the start is looked for by its index, in a process that counts in another order."""
    machine.goes(4, fail=15)
    machine.settle()
    machine.reload()
    machine.settle()
    machine.nvml.about(order="4,0,1,2,3,5")
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        machine.tick()
    machine.check()
    machine.comes_back(4)
    machine.settle()
    machine.check()
    assert {uuid for uuid, *_ in machine.rows} == {board.uuid for board in machine.all}
