"""Processes by their number: which job each one belongs to, as `/proc` says it, without rights of any kind.

Read is `/proc/PID/cgroup` alone. Environments and command lines are not: they need rights, and hold secrets.
"""

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from collectors.cgroup import Owner, Unclear, owner

PROC = Path("/proc")
MOST_PID = 4_194_304  #: PID_MAX_LIMIT of Linux on 64 bits
LONGEST = 1 << 16  #: bytes of a cgroup file that are read: one has 0.1 to 4 KB
HOST_NAMESPACE = "pid:[4026531836]"
"""The first PID namespace, that of the host: PROC_PID_INIT_INO in include/linux/proc_ns.h."""


class Unknown(StrEnum):
    """Why nobody can say which job a process belongs to."""

    HIDDEN = "hidden"  #: by the driver (PID 0), or by hidepid
    NO_PERMISSION = "no_permission"
    OTHER_NAMESPACE = "other_namespace"  #: numbers here are other processes than those that the driver means
    OUT_OF_RANGE = "out_of_range"
    UNREADABLE = "unreadable"


Answer = Owner | Unknown | None


class Gone(Exception):
    """The process has ended."""


class Proc:
    """The processes of the machine, by numbers as the host counts them. `root` may be the host's, in a container."""

    def __init__(self, root: Path = PROC) -> None:
        self._root = root

    def owners(self, pids: Iterable[int]) -> Mapping[int, Answer]:
        """For each process that still runs its job, None for no job, or why that is unknown.

        Numbers are used again: what is returned is true of this moment, and was not kept from an earlier one.
        """
        wanted = set(pids)
        if not wanted:
            return {}
        doubt = self._doubt()
        found: dict[int, Answer] = {}
        for pid in wanted:
            try:
                found[pid] = self._owner(pid) if doubt is None else doubt
            except Gone:
                continue
        return found

    def _doubt(self) -> Unknown | None:
        """Why no number means anything here; None if they are the host's."""
        try:
            own = (self._root / "self").readlink() == Path(str(os.getpid()))
            if own and (self._root / "self/ns/pid").readlink() != Path(HOST_NAMESPACE):
                return Unknown.OTHER_NAMESPACE
        except OSError:
            return Unknown.UNREADABLE
        return None

    def _owner(self, pid: int) -> Answer:
        if pid == 0:
            return Unknown.HIDDEN
        if not 0 < pid <= MOST_PID:
            return Unknown.OUT_OF_RANGE
        try:
            text, cut = self._text(pid)
        except PermissionError:
            return Unknown.NO_PERMISSION
        except (FileNotFoundError, ProcessLookupError):
            if not (self._root / "1").exists():  # process 1 is always there: others are hidden from us as well
                return Unknown.HIDDEN
            raise Gone from None
        except (OSError, ValueError):
            return Unknown.UNREADABLE
        try:
            found = owner(text)
        except Unclear:
            return Unknown.UNREADABLE
        return Unknown.UNREADABLE if found is None and cut else found

    def _text(self, pid: int) -> tuple[str, bool]:
        """The file, and whether it was longer than what was read; whole lines only, as half a path may be another."""
        with (self._root / str(pid) / "cgroup").open("rb", buffering=0) as file:
            data = b""
            while len(data) < LONGEST and (more := file.read(LONGEST - len(data))):
                data += more
        if not data:
            raise ProcessLookupError
        cut = len(data) == LONGEST
        return (data[: data.rfind(b"\n") + 1] if cut else data).decode("utf-8", "replace"), cut
