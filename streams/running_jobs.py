"""Which job each GPU worked for, as the nodes told it: what the scorer needs of `isotach.jobs`.

To change for how long a job is believed that is not told again: `KNOWN_FOR_S`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analytics.job_classes import JOB_COLUMNS
from streams import Committed, Message, TopicPartition
from streams.deadletter import Rejected
from streams.records import decode_json
from streams.topics import JOBS

KNOWN_FOR_S = 2_250.0  #: jobs are told again every 15 minutes, a quarter more at most; one message may be lost
_SECOND = 1_000_000_000

_Key = tuple[str, str, str, int]


@dataclass(slots=True)
class _Job:
    row: Mapping[str, Any]
    from_ns: int
    until_ns: int
    ended: bool
    offset: int
    partition: int


class RunningJobs:
    """The jobs of each node that may still matter to a window, by snapshots of the topic in order.

    Memory and `places` are bounded by the jobs that run, not by those that ran.
    """

    def __init__(self, *, max_skew_ns: int) -> None:
        self._max_skew_ns = max_skew_ns
        self._nodes: dict[str, dict[_Key, _Job]] = {}

    def take(self, messages: Sequence[Message]) -> Sequence[Rejected]:
        """Learn from messages of the topic; what was no snapshot, or one from the future."""
        records, rejected = decode_json(messages)
        for record in records:
            message, rows = messages[record.message], record.rows["jobs"]
            seen_ns = max((row["seen_ns"] for row in rows), default=message.time_ns)
            if seen_ns > message.time_ns + self._max_skew_ns:
                detail = "stamped well after the log took it in"
                rejected.append(Rejected(message=record.message, rule="future", detail=detail))
                continue
            node = rows[0]["node"] if rows else (message.key or b"").decode(errors="replace")
            self._snapshot(node, rows, seen_ns, message)
        return rejected

    def _snapshot(self, node: str, rows: Sequence[Mapping[str, Any]], seen_ns: int, message: Message) -> None:
        jobs = self._nodes.get(node, {})
        told: set[_Key] = set()
        for row in rows:
            key = (row["gpu_uuid"], row["source"], row["job_id"], row["started_ns"])
            told.add(key)
            ended = bool(row["ended"])
            until = row["seen_ns"] if ended else row["seen_ns"] + round(KNOWN_FOR_S * _SECOND)
            jobs[key] = _Job(row, row["started_ns"], until, ended, message.offset, message.partition)
        for key, job in jobs.items():
            if key not in told and not job.ended:  # a job that is no longer among them has ended
                job.ended, job.until_ns = True, min(job.until_ns, seen_ns)
        if jobs:
            self._nodes[node] = jobs

    def during(self, start_ns: int, end_ns: int) -> pl.DataFrame:
        """Jobs that lasted for half of this time at least, with `JOB_COLUMNS`. Forgets those that ended before it."""
        half = (end_ns - start_ns) / 2
        found: dict[str, list[str | None]] = {name: [] for name in JOB_COLUMNS}
        for node in list(self._nodes):
            jobs = {key: job for key, job in self._nodes[node].items() if job.until_ns > start_ns}
            if jobs:
                self._nodes[node] = jobs
            else:
                del self._nodes[node]
            for job in jobs.values():
                if min(job.until_ns, end_ns) - max(job.from_ns, start_ns) >= half:
                    for name, values in found.items():
                        values.append(job.row[name])
        return pl.DataFrame(found, schema=JOB_COLUMNS)

    def places(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Committed]:
        """Where a restart reads on so that it knows the same: the oldest message that a kept job rests on."""
        oldest = {tp.partition: position for tp, position in positions.items()}
        for jobs in self._nodes.values():
            for job in jobs.values():
                oldest[job.partition] = min(oldest.get(job.partition, job.offset), job.offset)
        return {TopicPartition(JOBS, partition): Committed(oldest[partition]) for partition in sorted(oldest)}
