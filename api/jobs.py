"""`/v1/jobs`: what ran on which GPU, and when.

To add a filter: a `Parameter` here and its condition.
"""

from typing import Any

from api import models
from api.answers import Built
from api.endpoint import Endpoint, Site, Values, listing
from api.fleet import TABLES
from api.parameters import LIMIT, OFFSET, Parameter
from api.rows import objects
from telemetry.tables import JOBS

_NAMES = ("node", "gpu_uuid", "job_id")


def _jobs(site: Site, values: Values) -> Built:
    conditions, parameters = ["true"], []
    for column in _NAMES:
        if values[column] is not None:
            conditions.append(f"{column} = ?")
            parameters.append(values[column])
    if values["at"] is not None:
        # Of one that has ended the time it was found gone is the end; one that runs is known up to when it was seen.
        conditions.append("started_ns <= ? AND (seen_ns > ? OR (NOT ended AND seen_ns = ?))")
        parameters += [values["at"]] * 3
    where = " AND ".join(conditions)
    total: Any = site.store.frame(f"SELECT count(*) FROM jobs WHERE {where}", parameters).item()  # noqa: S608
    rows = site.store.frame(
        f"FROM jobs WHERE {where} ORDER BY ended, seen_ns DESC, job_id, node, gpu_uuid LIMIT ? OFFSET ?",
        [*parameters, values["limit"] or 100_000, values["offset"]],
    )
    return listing(site.fleets.current(), objects(rows, JOBS), total)


ENDPOINTS = (
    Endpoint(
        path="/v1/jobs",
        summary="What ran on which GPU, and when",
        help="Running jobs first, then the newest. A job on eight GPUs has eight rows.",
        tables=(*TABLES, "jobs"),
        build=_jobs,
        model=models.JobList,
        example={
            "as_of": "2026-01-01T04:00:00.000Z",
            "valid_until": "2026-01-01T04:05:00.000Z",
            "stale": False,
            "total": 1,
            "items": [
                {
                    "gpu_uuid": "GPU-6f1c0b6e-0b52-4f0e-9f39-3f6f4d6d5a01",
                    "node": "n017",
                    "job_id": "184467",
                    "source": "slurm",
                    "name": None,
                    "namespace": None,
                    "workload_class": "compute",
                    "started_ns": 1_767_225_600_000_000_000,
                    "seen_ns": 1_767_239_940_000_000_000,
                    "ended": False,
                    "processes": 1,
                    "memory_bytes": 68_719_476_736,
                }
            ],
        },
        parameters=(
            Parameter(name="node", kind="text", help="Only jobs on this node.", example="n017"),
            Parameter(name="gpu_uuid", kind="text", help="Only jobs on this GPU."),
            Parameter(name="job_id", kind="text", help="Only this job.", example="184467"),
            Parameter(
                name="at",
                kind="time",
                help="Only jobs that ran at this time, as far as is known: ISO 8601 with its zone, or ns since 1970.",
                example="2026-01-01T00:00:00Z",
            ),
            LIMIT,
            OFFSET,
        ),
    ),
)
