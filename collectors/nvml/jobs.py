"""Jobs of a node's GPUs, from the processes that NVML names and the control groups these are in.

To learn of a job in another way: `collectors/cgroup.py` for its paths; what is published of it: `JobBook`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from collectors.cells import Missing
from collectors.cgroup import Owner
from collectors.nvml.codes import meaning
from collectors.pods import Pods
from collectors.proc import Answer, Proc, Unknown
from telemetry.records import Job, NodeJobs

MOST_MEMORY = 2**50  #: bytes
GONE_AFTER_NS = 30 * 10**9  #: a job may have no process on its GPU for a moment, between two of its programs
Processes = Mapping[str, Any]
Names = Mapping[str, tuple[str, str] | None]


class Jobs:
    """What ran on each GPU when its processes were last read.

    A job ends when its GPU's list is whole, every process of it is known, none belongs to the job, and none did for
    half a minute. Until then it is kept, with the time at which it was last seen: not knowing is no end.
    """

    def __init__(self, node: str, proc: Proc, pods: Pods) -> None:
        self._node = node
        self._proc = proc
        self._pods = pods
        self._jobs: dict[str, dict[Owner, Job]] = {}

    def update(self, lists: Mapping[str, Processes], *, time_ns: int, rejected: Counter[str]) -> tuple[NodeJobs, ...]:
        """All that runs on the node, from new lists of processes by gpu_uuid; nothing if there is no new list.

        Counts what could not be read, each process once, and each GPU whose list was not given.
        """
        if not lists:
            return ()
        held = {gpu: _held(processes) for gpu, processes in lists.items()}
        owners = self._proc.owners({pid for pids in held.values() for pid in pids})
        for doubt, count in Counter(answer for answer in owners.values() if isinstance(answer, Unknown)).items():
            rejected[f"processes:{doubt}"] += count
        names = self._names(owners)
        for gpu, pids in held.items():
            code = lists[gpu].get("e")
            if isinstance(code, int) and (why := meaning(code)) is not Missing.UNSUPPORTED:
                rejected[f"processes:{why}"] += 1
            running = {pid: size for pid, size in pids.items() if pid in owners}
            found = _jobs(gpu, running, owners, names, time_ns)
            sure = code is None and not any(isinstance(owners[pid], Unknown) for pid in running)
            kept = self._jobs.get(gpu, {})
            if sure:
                kept = {key: job for key, job in kept.items() if time_ns - (job.seen_ns or 0) < GONE_AFTER_NS}
            self._jobs[gpu] = kept | found
        told = (
            replace(job, seen_ns=None if job.seen_ns == time_ns else job.seen_ns)
            for jobs in self._jobs.values()
            for job in jobs.values()
        )
        return (NodeJobs(node=self._node, seen_ns=time_ns, jobs=tuple(told)),)

    def _names(self, owners: Mapping[int, Answer]) -> Names:
        """Of the pods that are seen, or were and are kept."""
        here = {owner for owner in owners.values() if isinstance(owner, Owner)}
        kept = {owner for jobs in self._jobs.values() for owner in jobs}
        return self._pods.names(owner.job_id for owner in here | kept if owner.source == "kubernetes")

    def forget(self, gpu_uuid: str) -> None:
        """This GPU has left the node, and so have its jobs."""
        self._jobs.pop(gpu_uuid, None)


def _held(processes: Processes) -> dict[int, int | None]:
    """Bytes that each process holds, None where that is unknown; a process on several instances holds their sum."""
    held: dict[int, int | None] = {}
    for pid, size in processes.get("l", ()):
        known = size if isinstance(size, int) and 0 <= size <= MOST_MEMORY else None
        before = held.get(pid, 0)
        held[pid] = None if known is None or before is None else before + known
    return held


def _jobs(
    gpu: str, pids: Mapping[int, int | None], owners: Mapping[int, Answer], names: Names, time_ns: int
) -> dict[Owner, Job]:
    found: dict[Owner, Job] = {}
    for pid, size in sorted(pids.items()):
        owner = owners[pid]
        if not isinstance(owner, Owner):
            continue
        job = found.get(owner)
        if job is not None:
            total = None if size is None or job.memory_bytes is None else job.memory_bytes + size
            found[owner] = replace(job, processes=(job.processes or 0) + 1, memory_bytes=total)
            continue
        namespace, pod = names.get(owner.job_id) or (None, None)
        found[owner] = Job(
            gpu_uuid=gpu,
            job_id=owner.job_id if pod is None else f"{namespace}/{pod}",
            source=owner.source,
            namespace=namespace,
            processes=1,
            memory_bytes=size,
            seen_ns=time_ns,
        )
    return found
