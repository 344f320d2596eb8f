"""The jobs of each node as they were last published: what there is to tell when a collector has looked again.

To change how often what has not changed is told again: `REPEAT_S`.
"""

from dataclasses import replace

from telemetry.records import Job, NodeJobs

REPEAT_S = 900.0  #: the scorer forgets a job that it has not heard of for two and a half times as long


class JobBook:
    """Keeps when each job was first seen on each GPU, and finds the ends. Not for several threads at once."""

    def __init__(self) -> None:
        self._running: dict[str, dict[tuple[str, str], Job]] = {}
        self._repeat_at: dict[str, float] = {}

    def news(self, seen: NodeJobs, *, now: float, repeat_s: float = REPEAT_S) -> NodeJobs | None:
        """What is to be published of it: all that run, with their starts, and those that have ended since last time.

        None if nothing but numbers of processes and bytes has changed. A node that never had a job is not told.
        """
        before = self._running.get(seen.node, {})
        running: dict[tuple[str, str], Job] = {}
        for job in seen.jobs:
            key = (job.gpu_uuid, job.job_id)
            known = before.get(key)
            started = job.started_ns if known is None else known.started_ns
            running[key] = replace(job, started_ns=seen.seen_ns if started is None else started)
        ended = [replace(job, ended=True, seen_ns=None) for key, job in before.items() if key not in running]
        changed = bool(ended) or {k: _said(j) for k, j in running.items()} != {k: _said(j) for k, j in before.items()}
        self._running[seen.node] = running
        if not changed and (not running or now < self._repeat_at.get(seen.node, 0.0)):
            return None
        self._repeat_at[seen.node] = now + repeat_s
        return replace(seen, jobs=(*running.values(), *ended))


def _said(job: Job) -> Job:
    """A job without what changes all the time."""
    return replace(job, processes=None, memory_bytes=None, seen_ns=None)
