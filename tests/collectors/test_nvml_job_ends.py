"""When a job has ended: for any order of what the driver tells, refuses, hides and forgets."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.cgroup import Owner
from collectors.job_book import JobBook
from collectors.nvml.jobs import GONE_AFTER_NS, Jobs
from collectors.pods import Pods
from collectors.proc import Answer, Proc, Unknown
from telemetry.rows import check_jobs, to_json

STEP_NS = 10 * 10**9
HIDDEN, GONE = 98, 99  #: processes that are always so
Place = tuple[str, str]

GPU = st.sampled_from(["GPU-a", "GPU-b"])
LIST = st.fixed_dictionaries(
    {"l": st.lists(st.sampled_from([1, 2, 3, HIDDEN, GONE]), unique=True, max_size=4)},
    optional={"e": st.sampled_from([3, 4, 7, 999])},
)
LOOKS = st.lists(st.dictionaries(GPU, LIST, max_size=2), max_size=25)


class Known(Proc):
    """Process N is of job N, except for two."""

    def owners(self, pids: Iterable[int]) -> Mapping[int, Answer]:
        found: dict[int, Answer] = {pid: Owner(source="slurm", job_id=str(pid)) for pid in pids if pid != GONE}
        return found | ({HIDDEN: Unknown.HIDDEN} if HIDDEN in found else {})


@settings(deadline=None)
@given(LOOKS)
def test_a_job_ends_when_that_is_sure_and_not_before(looks: list[dict[str, dict[str, list[int]]]]) -> None:
    """Seen ones run; one that is not seen goes on until a sure look finds it gone for long enough; its end comes once.

    Whatever is published is accepted, and no job is told as seen when it was not.
    """
    jobs, book = Jobs("n1", Known(Path("unused")), Pods(Path("unused"))), JobBook()
    seen: dict[Place, int] = {}
    for number, look in enumerate(looks, start=1):
        now = number * STEP_NS
        lists = {gpu: {**told, "l": [[pid, 1] for pid in told["l"]]} for gpu, told in look.items()}
        told = jobs.update(lists, time_ns=now, rejected=Counter())
        assert bool(told) == bool(lists)
        ended = set()
        for gpu, one in look.items():
            running = {(gpu, str(pid)) for pid in one["l"] if pid not in (HIDDEN, GONE)}
            sure = "e" not in one and HIDDEN not in one["l"]
            lost = {place for place, last in seen.items() if place[0] == gpu and now - last >= GONE_AFTER_NS}
            ended |= (lost - running) if sure else set()
            seen |= dict.fromkeys(running, now)
        seen = {place: last for place, last in seen.items() if place not in ended}
        for snapshot in told:
            found = {(job.gpu_uuid, job.job_id): job.seen_ns or now for job in snapshot.jobs}
            assert found == seen
            news = book.news(snapshot, now=number)
            assert {(job.gpu_uuid, job.job_id) for job in (news.jobs if news else ()) if job.ended} == ended
            if news is not None:
                check_jobs(json.loads(to_json(news)))
