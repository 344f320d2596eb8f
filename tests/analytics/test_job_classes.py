"""One class for one job: which windows take it, and which keep their own.

To add a case: a row of `CASES`: what each GPU of `n0` shows, the jobs, and the classes that count.
"""

from collections.abc import Sequence

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from support.samples import IDLE, windows

from analytics.job_classes import JOB_COLUMNS, of_jobs

Job = tuple[int, str, str | None]  # index of its GPU, its id, the class that its owner gave it


def jobs(told: Sequence[Job]) -> pl.DataFrame:
    rows = [(f"GPU-{gpu}", "slurm", name, given) for gpu, name, given in told]
    return pl.DataFrame(rows, schema=JOB_COLUMNS, orient="row")


CASES = {
    "a label wins over what shows": (
        ["memory", "mixed"], [(0, "a", "compute"), (1, "a", "compute")], ["compute", "compute"],
    ),
    "a label tells a class where none is known": ([None], [(0, "a", "memory")], ["memory"]),
    "an idle GPU of a labelled job is not scored": (["idle"], [(0, "a", "compute")], [None]),
    "most of the job's GPUs decide": (
        ["compute", "compute", "mixed"], [(0, "a", None), (1, "a", None), (2, "a", None)], ["compute"] * 3,
    ),
    "GPUs that do not work have no vote": (
        ["compute", "compute", "idle"], [(0, "a", None), (1, "a", None), (2, "a", None)], ["compute", "compute", None],
    ),
    "half is not most": (
        ["compute", "compute", "mixed", "mixed"], [(i, "a", None) for i in range(4)],
        ["compute", "compute", "mixed", "mixed"],
    ),
    "one GPU is no majority": (["compute"], [(0, "a", None)], ["compute"]),
    "one against an unknown is no majority": ([None, "compute"], [(0, "a", None), (1, "a", None)], [None, "compute"]),
    "two jobs on one GPU leave it alone": (
        ["mixed", "compute"], [(0, "a", "compute"), (0, "b", "compute"), (1, "b", None)], ["mixed", "compute"],
    ),
    "a job told twice on one GPU is one job": (["mixed"], [(0, "a", None), (0, "a", "compute")], ["compute"]),
    "other jobs do not matter": (
        ["mixed", "compute", "compute"], [(1, "a", None), (2, "a", None)], ["mixed", "compute", "compute"],
    ),
    "a job on a GPU without a window is nobody's": (["mixed"], [(7, "a", "compute")], ["mixed"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_window_takes_the_class_of_its_job(case: str) -> None:
    """Only the class changes, only where the job is known to be the one that worked."""
    shown, told, counts = CASES[case]
    rows = [
        {"gpu_uuid": f"GPU-{i}", "slot": i} | (dict(IDLE) if name == "idle" else {"workload_class": name})
        for i, name in enumerate(shown)
    ]
    before = windows(rows)
    after = of_jobs(before, jobs(told))
    assert after["workload_class"].to_list() == counts
    assert_frame_equal(after.drop("workload_class"), before.drop("workload_class"))


def test_the_same_id_in_two_schedulers_is_two_jobs() -> None:
    """Slurm and Kubernetes both count from one."""
    before = windows([{"gpu_uuid": f"GPU-{i}", "workload_class": name} for i, name in enumerate(("mixed", "compute"))])
    told = jobs([(0, "1", None), (1, "1", "compute")]).with_columns(source=pl.Series(["slurm", "kubernetes"]))
    assert of_jobs(before, told)["workload_class"].to_list() == ["mixed", "compute"]
