"""The crew: which process reads which GPU, so that one that hangs costs only itself.

All GPUs are read by one child. A GPU that keeps it waiting is left to that child, and a new one takes the others over.
To change how long anything is waited for: `patience.py`.
"""

import logging
import select
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from collectors.listing import normal_bus_id
from collectors.nvml.codes import GPU_GONE, REFUSALS, words
from collectors.nvml.patience import Patience
from collectors.nvml.reader import NS, Reader
from collectors.nvml.seat import Hang, Look, Seat, Trouble
from collectors.nvml_child import wire
from telemetry.errors import SourceHangs, SourceUnavailable

log = logging.getLogger(__name__)

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, RESET_REQUIRED, MISMATCH = 3, 4, 6, 16, 18

MOST_STUCK = 2  #: killed processes that do not die, with which a new start is still tried
APART_S = 0.05  #: for a GPU that is read apart and answers, after the others have: whoever makes it is in time
GATHER_S = 0.004  #: before listening: waking up for each answer costs more than reading it


class Crew:
    """The processes that read the GPUs of this node. Not for several threads at once, except `close`."""

    def __init__(
        self,
        patience: Patience,
        *,
        environment: Mapping[str, str] = MappingProxyType({}),
        monotonic: Callable[[], float] = time.monotonic,
        who_every_s: float | None = None,
    ) -> None:
        self.patience = patience  #: may be changed while it runs
        self.starts = 0  #: of children, all together
        self._who_every_s = who_every_s
        self._environment = environment
        self._monotonic = monotonic
        self._main: Reader | None = None
        self._next: Reader | None = None
        self._ending: list[Reader] = []
        self._refused: dict[int, int] = {}  # by the successor: seat and code
        self.seats: dict[int, Seat] = {}
        self.driver: str | None = None
        self.count = 0
        self._grown = False
        self._skip: set[int] = set()  # read in this tick before another process took over: once is enough
        self._renew_at = 0.0
        self._answered_at = 0.0  # when any GPU last gave a reading
        self._mismatch_told = False
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all children that are not known to be gone."""
        return tuple(reader.pid for reader in (*self._readers(), *self._ending))

    def look(self) -> Look:
        """One reading of every GPU that answers in time.

        Raises SourceUnavailable when NVML as a whole cannot be used, SourceHangs when no GPU answers any more.
        """
        look = Look()
        self._skip.clear()
        self._bury()
        if self._grown:
            log.info("NVML has other GPUs than before: looking for them")
            self._end_all()
        end = self._monotonic() + self.patience.tick_s
        if self._main is None:
            self._begin(look)
            end += self.patience.open_s
        self._listen(look, 0.0)  # what came late, so that its reader can be asked again
        for reader in self._readers():
            if reader is not self._next:
                reader.read()
        self._gather(look, end)
        if refusal := self._refusal():
            self._end_all()
            raise SourceUnavailable(f"{REFUSALS[refusal]}: {words(refusal)}")
        silent_s = self._monotonic() - self._answered_at
        waited_for = [seat for seat in self.seats.values() if seat.trouble in (Trouble.LATE, Trouble.HANGS)]
        enough_s = self.patience.hang_s + self.patience.reopen_s * len(self.seats)  # any may hang on the way
        if waited_for and not look.readings and silent_s > enough_s:
            call = waited_for[0].words
            self._end_all()
            raise SourceHangs(f"no GPU answers for {silent_s:.0f} s: {call} hangs")
        self._attend(look)
        return look

    def close(self) -> None:
        """Kill every child; safe to call twice."""
        self._closed = True
        self._end_all()
        for reader in self._ending:
            reader.wait(1.0)
        self._bury()

    def _start(self, seats: Iterator[Seat] | list[Seat]) -> Reader:
        if self._closed:
            raise SourceUnavailable("the collector was closed")
        self.starts += 1
        targets = {seat.number: seat.where for seat in seats}
        return Reader(targets, monotonic=self._monotonic, environment=self._environment, who_every_s=self._who_every_s)

    def _readers(self) -> list[Reader]:
        found = [self._main, self._next, *(seat.apart for seat in self.seats.values())]
        return [reader for reader in found if reader is not None and not reader.ended]

    def _end(self, reader: Reader) -> None:
        reader.end()
        if not reader.dead:
            self._ending.append(reader)

    def _end_all(self) -> None:
        for reader in self._readers():
            self._end(reader)
        self._main = self._next = None
        self._grown = False
        self.seats = {}

    def _bury(self) -> None:
        """Reap what was killed; what sits in the driver stays, and is looked at again."""
        self._ending = [reader for reader in self._ending if not reader.dead]

    def _begin(self, look: Look) -> None:
        """Start the library, and a seat for each GPU that it counts."""
        self._end_all()
        stuck = [reader for reader in self._ending if not reader.wait(0.2)]
        if len(stuck) > MOST_STUCK:
            raise SourceHangs(f"{len(stuck)} killed processes are stuck in the driver")
        self._main = main = self._start([])
        while not main.about:
            self._listen(look, 0.2)
            _, age = main.stuck(self._monotonic())
            if not main.about and age > self.patience.start_s:
                self._end_all()
                raise SourceHangs(f"NVML does not start within {self.patience.start_s:.0f} s")
        if "error" in main.about:
            self._ended(main)
        self.driver = str(main.about.get("driver") or "") or None
        self.count = int(main.about["count"])
        if not self.count:
            self._end_all()
            raise SourceUnavailable("no GPU is found: NVML counts none")
        self.seats = {number: Seat(number=number, where=number) for number in range(self.count)}
        main.open({seat.number: seat.where for seat in self.seats.values()})
        now = self._monotonic()
        self._answered_at = now + self.patience.open_s * self.count  # if all but the last hang when they are opened
        self._renew_at = now + self.patience.renew_s

    def _gather(self, look: Look, end: float) -> None:
        """Listen until the main process has read all its GPUs, someone keeps it waiting, or the tick is over."""
        time.sleep(GATHER_S)
        while (main := self._main) is not None and main.busy:
            now = self._monotonic()
            doing, age = main.stuck(now)
            patience = self._wait_for(doing)
            if age >= patience:
                time.sleep(GATHER_S)
                if main.stuck(now)[0] == doing:  # not an entry read while it was written
                    self._part(look, doing, age)
                continue
            if now >= end:
                break
            self._listen(look, min(patience - age, end - now) + 0.001)
        self._listen(look, 0.0)
        end = min(end, self._monotonic() + APART_S)
        while self._monotonic() < end and any(
            seat.apart is not None and seat.apart.busy and seat.trouble is None for seat in self.seats.values()
        ):
            self._listen(look, max(0.001, end - self._monotonic()))

    def _wait_for(self, doing: wire.Doing) -> float:
        if doing.phase == wire.STARTING:
            return self.patience.start_s
        if doing.phase == wire.READING:
            return self.patience.late_s if doing.target >= 0 else self.patience.hang_s
        known = doing.target in self.seats and self.seats[doing.target].bus is not None
        return self.patience.reopen_s if known else self.patience.open_s

    def _listen(self, look: Look, timeout_s: float) -> None:
        readers = {reader.descriptor: reader for reader in self._readers()}
        poll = select.poll()
        for descriptor in readers:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, timeout_s) * 1_000):
            reader = readers[descriptor]
            for message in reader.take():
                self._hear(look, reader, message)
            if reader.ended:
                self._ended(reader)

    def _ended(self, reader: Reader) -> None:
        code = reader.about.get("error")
        self._end(reader)
        if reader is self._main:
            self._end_all()
            if isinstance(code, int):
                raise SourceUnavailable(f"{REFUSALS.get(code, 'NVML does not start')}: {words(code)}")
            raise SourceUnavailable("the process that reads NVML ended by itself")

    def _hear(self, look: Look, reader: Reader, message: dict[str, Any]) -> None:
        if "xids" in message:
            look.xids += [(number, code) for number, code in message["xids"] if self._owns(reader, number)]
            if reader is self._main and (count := message.get("count")) is not None:
                self._grown = self._grown or count > self.count
                self.count = min(self.count, count)  # one may come back while another is away
            return
        number = message.get("opened", message.get("gpu"))
        seat = self.seats.get(number) if isinstance(number, int) else None
        if seat is None:
            return
        if "opened" in message and (reader is self._next or self._owns(reader, seat.number)):
            self._opened(seat, reader, message)
        elif "gpu" in message and self._owns(reader, seat.number):
            self._read(look, seat, reader, message)

    def _owns(self, reader: Reader, number: int) -> bool:
        seat = self.seats.get(number)
        return seat is not None and (reader is seat.apart or (reader is self._main and seat.together))

    def _opened(self, seat: Seat, reader: Reader, message: dict[str, Any]) -> None:
        code = message.get("error")
        if code is None:
            bus = normal_bus_id(message.get("bus"))
            taken = {other.bus for other in self.seats.values() if other is not seat} - {None}
            if reader is seat.apart and bus in taken:
                self._grown = True  # it was never seen, and its index is another GPU's by now
                self._leave(seat, reader, Trouble.LOST, NOT_FOUND)
                return
            if bus is not None:
                seat.bus, seat.where = bus, str(message["bus"])
                seat.uuid = message.get("uuid") or seat.uuid
            seat.statics |= message.get("s", {})
        elif reader is self._next:
            self._refused[seat.number] = code
        else:
            self._leave(seat, reader, _trouble(code), code)

    def _read(self, look: Look, seat: Seat, reader: Reader, message: dict[str, Any]) -> None:
        code = message.get("lost")
        if code is not None:
            self._leave(seat, reader, Trouble.LOST, int(code))
            return
        self._answered_at = self._monotonic()
        if seat.number not in self._skip:
            look.readings.setdefault(seat.number, []).append(message)
        seat.statics |= message.get("c", {})
        if not message.get("v") and "reset" not in message:
            codes = set(message.get("x", {}).values())
            self._leave(seat, reader, Trouble.FAILED, min(codes - {NO_PERMISSION} or codes or {NOT_SUPPORTED}))
            return
        if "reset" in message:
            if seat.trouble is not Trouble.RESET:
                seat.trouble, seat.words, seat.failures = Trouble.RESET, words(RESET_REQUIRED), 0
                self._retry_later(seat)
            return
        if seat.trouble in (Trouble.HANGS, Trouble.LATE) and seat.told:
            seconds = self._monotonic() - seat.since
            look.hangs.append(Hang(seat=seat, call=seat.words, seconds=seconds, over=True))
        seat.trouble, seat.told, seat.failures = None, False, 0

    def _part(self, look: Look, doing: wire.Doing, age: float) -> None:
        """The GPU that keeps the main process waiting keeps the process; a new one takes over the others."""
        main, seat = self._main, self.seats.get(doing.target)
        if main is None or seat is None:
            self._end_all()
            raise SourceHangs(f"NVML hangs: {doing.call} gives no answer for {age:.1f} s")
        log.info("GPU %s is slow to answer %s: read apart", seat.uuid or seat.number, doing.call)
        seat.together, seat.apart, seat.good = False, main, 0
        seat.trouble, seat.words, seat.since = Trouble.LATE, doing.call, self._monotonic() - age
        main.keep(seat.number)
        self._main = self._start([other for other in self.seats.values() if other.together])
        self._skip |= look.readings.keys()

    def _leave(self, seat: Seat, reader: Reader, trouble: Trouble, code: int) -> None:
        """Nobody reads this GPU until it is tried again."""
        if seat.trouble is not trouble:
            seat.since, seat.failures = self._monotonic(), 0
        seat.trouble, seat.words, seat.code, seat.good = trouble, words(code), code, 0
        if reader is seat.apart:
            seat.apart = None
            self._end(reader)
        else:
            seat.together = False
            reader.drop(seat.number)
        self._retry_later(seat)

    def _retry_later(self, seat: Seat) -> None:
        first, last = self.patience.retry_s
        seat.retry_at = self._monotonic() + min(last, first * 2.0 ** min(seat.failures, 20))
        seat.failures += 1

    def _attend(self, look: Look) -> None:
        """Kill what hangs, try again what was given up, let in what is well again, renew what is old."""
        now = self._monotonic()
        started = False
        for seat in self.seats.values():
            reader = seat.apart
            if reader is not None and reader.ended:
                seat.apart = None
                self._retry_later(seat)
            elif reader is not None:
                self._watch(look, seat, reader, now)
            elif not (seat.together or started) and now >= seat.retry_at and (seat.stuck is None or seat.stuck.dead):
                seat.stuck = None
                seat.apart = self._start([seat])
                started = True  # one at a time: starting costs more than reading
        well = [seat for seat in self.seats.values() if seat.good >= self.patience.settle and seat.trouble is None]
        reset = [seat for seat in self.seats.values() if seat.trouble is Trouble.RESET and seat.together]
        due = now >= self._renew_at or any(now >= seat.retry_at for seat in reset)
        if self._next is None and (well or due):
            for seat in reset:
                self._retry_later(seat)
            self._refused.clear()
            self._next = self._start([seat for seat in self.seats.values() if seat.together or seat in well])
        elif self._next is not None:
            self._succeed(look, self._next, now)

    def _watch(self, look: Look, seat: Seat, reader: Reader, now: float) -> None:
        in_time = seat.number in look.readings and not reader.busy
        seat.good = seat.good + 1 if in_time else 0
        if not reader.busy:
            return
        doing, _ = reader.stuck(now)
        age = now - doing.call_ns * NS  # of the one call: many that take long are no hang
        if age < (self.patience.hang_s if doing.phase == wire.READING else self.patience.start_s):
            return  # without persistence mode a driver takes seconds to wake a GPU up
        if seat.trouble is not Trouble.HANGS:
            seat.trouble, seat.since, seat.told = Trouble.HANGS, now - age, False
        seat.words = doing.call
        if not seat.told and look.readings:  # where no GPU answers it is the node that hangs
            seat.told = True
            look.hangs.append(Hang(seat=seat, call=doing.call, seconds=age, over=False))
        seat.apart, seat.stuck = None, reader
        self._end(reader)
        self._retry_later(seat)

    def _succeed(self, look: Look, successor: Reader, now: float) -> None:
        """Let the new process take over once it has opened and read everything; give it up if it cannot."""
        if not successor.ended and successor.busy:
            doing, age = successor.stuck(now)
            if age < self._wait_for(doing) + self.patience.open_s:
                return
        self._next = None
        self._renew_at = now + self.patience.renew_s
        if successor.ended or successor.busy:
            code = successor.about.get("error")
            if code == MISMATCH and not self._mismatch_told:
                self._mismatch_told = True
                look.notes.append(f"{REFUSALS[MISMATCH]}: a new process gets {words(MISMATCH)}")
            if not successor.ended:
                self._end(successor)
            for seat in self.seats.values():
                seat.good = 0
            return
        for seat in self.seats.values():
            if seat.number in successor.targets and seat.apart is not None:
                self._end(seat.apart)
                seat.apart, seat.together, seat.good = None, True, 0
        if self._main is not None:
            self._end(self._main)
        self._main = successor
        for number, code in self._refused.items():
            self._leave(self.seats[number], successor, _trouble(code), code)
        self.driver = str(successor.about.get("driver") or "") or self.driver

    def _refusal(self) -> int | None:
        """The code with which most GPUs fail at once and none works: it speaks of the node rather than of the GPUs.

        Those that are lost have nothing to say in this.
        """
        if any(seat.trouble in (None, Trouble.RESET) for seat in self.seats.values()):
            return None
        codes = [seat.code for seat in self.seats.values() if seat.trouble is Trouble.FAILED]
        there = [seat for seat in self.seats.values() if seat.trouble is not Trouble.LOST]
        most = 2 * len(codes) > len(there)
        return min(codes) if most and REFUSALS.keys() >= set(codes) else None


def _trouble(code: int) -> Trouble:
    return Trouble.LOST if code in GPU_GONE else Trouble.FAILED
