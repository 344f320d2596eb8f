"""Checks of the machine itself: interpreter, rights, clock, spool.

To add one: a function here, a line in `CHECKS` of `isotach/checks/__init__.py`.
"""

import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from isotach.checks.finding import Finding

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"agent": ("confluent_kafka", "pynvml"), "server": ("polars", "duckdb", "fastapi", "sklearn", "orjson", "rich")}
)
PARTS: Mapping[str, str] = MappingProxyType(
    {"agent": "no NVML and no Kafka here", "server": "no window, score, serve or up here"}
)
STATUS = Path("/proc/self/status")
RIGHTS: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "CAP_SYSLOG": (34, "/dev/kmsg where kernel.dmesg_restrict is 1"),
        "CAP_SYS_ADMIN": (21, "values that the driver keeps for administrators"),
    }
)
"""What a user other than root may lack: bit of the capability (linux/capability.h), and what it is good for."""
_STA_UNSYNC = 0x40  # linux/timex.h
_TIME_ERROR = 5
_LEAST_FREE_BYTES = 64 << 20


def python(_settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The interpreter and the optional parts."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding(check="python", state="ok", seen=f"Python {version}")
    for extra, modules in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        if missing:
            yield Finding(
                check=f"extra {extra}",
                state="note",
                seen=f"not here: {', '.join(missing)}",
                lost=PARTS[extra],
                remedy=f"pip install 'isotach[{extra}]' if this machine is to run them",
            )
        else:
            yield Finding(check=f"extra {extra}", state="ok", seen="installed")


def user(_settings: Mapping[str, Any], *, status: Path = STATUS) -> Iterator[Finding]:
    """Who runs this, and which rights beyond a plain user's are there. None of them is needed."""
    try:
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines() if ":" in line)
        held = int(lines["CapEff"], 16)
    except (OSError, ValueError, KeyError):
        yield Finding(check="user", state="note", seen=f"uid {os.getuid()}; its capabilities cannot be read")
        return
    lacking = [f"{name} ({good_for})" for name, (bit, good_for) in RIGHTS.items() if not held >> bit & 1]
    seen = f"uid {os.getuid()}" + (
        f", without {', '.join(lacking)}" if lacking else ", with every right that is of use"
    )
    yield Finding(check="user", state="ok", seen=seen)


class _Timex(ctypes.Structure):
    """The head of `struct timex`; the rest is room that the kernel may fill."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_byte * 256),
    )


class Kept(NamedTuple):
    """What the kernel says of its clock: whether something keeps it, and its greatest error."""

    kept: bool
    error_s: float


def kernel_clock() -> Kept | None:
    """What chrony, ntpd or timesyncd told the kernel (adjtimex, read only); None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    about = _Timex(modes=0)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(about))
    if state < 0:
        return None
    return Kept(state != _TIME_ERROR and not about.status & _STA_UNSYNC, about.maxerror / 1e6)


def clock(_settings: Mapping[str, Any], *, ask: Callable[[], Kept | None] = kernel_clock) -> Iterator[Finding]:
    """Whether anything keeps this clock; how far it is off against broker or server is said with these."""
    found = ask()
    if found is None:
        yield Finding(check="clock kept", state="note", seen="the kernel does not say")
    elif found.kept:
        yield Finding(check="clock kept", state="ok", seen=f"synchronised, off by at most {found.error_s:.3f} s")
    else:
        yield Finding(
            check="clock kept",
            state="note",
            seen="the kernel says that nothing keeps this clock",
            lost="once it has drifted, samples count as late or from the future, and are set aside",
            remedy="run chronyd, ntpd or systemd-timesyncd on the host",
        )


def spool(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the agent can keep messages on disk, where a folder is set."""
    folder = settings.get("spool")
    if not folder:
        return
    there = next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())
    lost = "what waits while the log is away is kept in memory only, and gone when the agent ends"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"x" * 4_096)
            probe.flush()
            os.fsync(probe.fileno())
        room = os.statvfs(there)
    except OSError as error:
        remedy = f"let uid {os.getuid()} write in {there}, or choose another --spool"
        yield Finding(check="spool", state="wrong", seen=f"{folder}: {error.strerror}", lost=lost, remedy=remedy)
        return
    free = room.f_bavail * room.f_frsize
    if free < _LEAST_FREE_BYTES:
        seen = f"{folder} is writable, {free >> 20} MiB free"
        yield Finding(check="spool", state="wrong", seen=seen, lost=lost, remedy="free some disk space there")
    else:
        yield Finding(check="spool", state="ok", seen=f"{there} is writable, {free >> 30} GiB free")
