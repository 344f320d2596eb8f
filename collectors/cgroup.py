"""Control groups: which job a process belongs to, by the path that its scheduler put it at.

To read another scheduler's paths: a function like `_slurm`, one line in `owner`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

DEEPEST = 64  #: parts of a path that are looked at: nested containers have 20
LONGEST = 4_096  #: characters of a line, as of a path in Linux

# Slurm: the unit of slurmstepd, with the node's name before it where a machine runs several (cgroup v2), or `slurm`,
# `slurm_NODE` (v1); then the job by its raw number, under which members of arrays and heterogeneous jobs run, too.
_SLURM_V2 = re.compile(r"(?:[\w.-]{1,255}_)?slurmstepd\.scope", re.ASCII)
_SLURM_V1 = re.compile(r"slurm(?:_[\w.-]{1,255})?", re.ASCII)
_SLURM_USER = re.compile(r"uid_[0-9]{1,10}", re.ASCII)
_SLURM_JOB = re.compile(r"job_([0-9]{1,10})", re.ASCII)
_SLURM_OWN = frozenset(("", "system"))  #: where slurmstepd itself is

# Kubernetes: the pod's UID, with underscores by the systemd driver; that of a static pod is 32 digits without any.
_POD = re.compile(
    r"(?:[\w.-]{1,255}-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?::.*)?",
    re.ASCII,
)
# What the kubelet, or a runtime whose driver is another than the kubelet's, puts pods under.
_PODS = re.compile(r"(?:[\w.-]{1,255}-)?kubepods(?:[.-].*)?", re.ASCII)
_USERS = "user.slice"  #: where users may make any path they like


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A job as the control group names it: Slurm's job id, or a pod's UID; its name is not in there."""

    source: str
    job_id: str


class Unclear(ValueError):
    """A path of a scheduler that cannot be read: whose it is nobody can say."""


def owner(text: str) -> Owner | None:
    """The job that a process with this `/proc/PID/cgroup` belongs to, None if it belongs to none.

    Any version of control groups, hybrids included. Slurm before Kubernetes: its jobs may run in pods. Raises Unclear.
    """
    paths = [path for line in text.splitlines() if (path := _path(line)) is not None]
    if not paths:
        raise Unclear("no path of a control group in it")
    for find in (_slurm, _kubernetes):
        for path in paths:
            found = find(path)
            if found is not None:
                return found
    return None


def _path(line: str) -> Sequence[str] | None:
    """The parts of a line's path; none of a user's own, None for what is no line of this file."""
    number, colon, rest = line[:LONGEST].partition(":")
    _, second, path = rest.partition(":")
    if not (colon and second and number.isdigit() and path.startswith("/")):
        return None
    parts = [part for part in path.removesuffix(" (deleted)").split("/", DEEPEST)[:DEEPEST] if part]
    return [] if parts[:1] == [_USERS] else parts


def _slurm(path: Sequence[str]) -> Owner | None:
    for place, (part, below) in enumerate(pairwise(path)):
        scope = part == "system.slice" and _SLURM_V2.fullmatch(below)
        if not scope and not (_SLURM_V1.fullmatch(part) and _SLURM_USER.fullmatch(below)):
            continue
        job = path[place + 2] if len(path) > place + 2 else ""
        if job in _SLURM_OWN:
            return None
        match = _SLURM_JOB.fullmatch(job)
        if match is None:
            raise Unclear(f"a job of Slurm, but none with a number: {job[:80]!r}")
        return Owner(source="slurm", job_id=match[1])
    return None


def _kubernetes(path: Sequence[str]) -> Owner | None:
    first = next((place for place, part in enumerate(path) if _PODS.fullmatch(part)), None)
    if first is None:
        return None
    for part in path[first : first + 3]:  # kubepods, the class of service, the pod
        if match := _POD.fullmatch(part):
            return Owner(source="kubernetes", job_id=match[1].replace("_", "-"))
    return None
