"""What is told of jobs: starts, ends, and now and then that they still run."""

from collectors.job_book import REPEAT_S, JobBook
from telemetry.records import Job, NodeJobs


def jobs(at: int, *names: str, **more: int) -> NodeJobs:
    """A node with these jobs, each on GPU-a."""
    running = tuple(Job(gpu_uuid="GPU-a", job_id=name, source="slurm", **more) for name in names)
    return NodeJobs(node="n1", seen_ns=at, jobs=running)


def told(news: NodeJobs | None) -> list[tuple[str, int | None, bool]] | None:
    """What was published: job, start, ended."""
    return None if news is None else [(job.job_id, job.started_ns, job.ended) for job in news.jobs]


def test_starts_and_ends_are_told_once() -> None:
    """A job starts when it was first seen, unless its source knows better, and ends when it is seen no more."""
    book = JobBook()
    assert told(book.news(jobs(10), now=0)) is None
    assert told(book.news(jobs(20, "7"), now=1)) == [("7", 20, False)]
    assert told(book.news(jobs(30, "7"), now=2)) is None
    assert told(book.news(jobs(40, "7", "8", started_ns=35), now=3)) == [("7", 20, False), ("8", 35, False)]
    assert told(book.news(jobs(50, "8"), now=4)) == [("8", 35, False), ("7", 20, True)]
    assert told(book.news(jobs(60), now=5)) == [("8", 35, True)]
    assert told(book.news(jobs(70), now=6 + REPEAT_S)) is None


def test_what_goes_on_is_told_again_but_not_for_numbers() -> None:
    """Memory that grows is no news; that the job still runs is, every quarter of an hour."""
    book = JobBook()
    book.news(jobs(1, "7", memory_bytes=1), now=0)
    assert book.news(jobs(2, "7", memory_bytes=2), now=REPEAT_S - 1) is None
    again = book.news(jobs(3, "7", memory_bytes=3), now=REPEAT_S)
    assert told(again) == [("7", 1, False)]
    assert again is not None
    assert again.jobs[0].memory_bytes == 3


def test_a_job_that_comes_back_starts_anew() -> None:
    """A pod of the same name after its end is another run."""
    book = JobBook()
    book.news(jobs(1, "7"), now=0)
    book.news(jobs(2), now=1)
    assert told(book.news(jobs(3, "7"), now=2)) == [("7", 3, False)]


def test_a_job_that_nobody_can_see_just_now_is_no_news() -> None:
    """Its own time goes with it when it is told again, and its end has the message's."""
    book = JobBook()
    book.news(jobs(1, "7"), now=0)
    assert book.news(jobs(2, "7", seen_ns=1), now=1) is None
    again = book.news(jobs(3, "7", seen_ns=1), now=REPEAT_S)
    assert again is not None
    assert [job.seen_ns for job in again.jobs] == [1]
    end = book.news(jobs(4), now=REPEAT_S + 1)
    assert end is not None
    assert [(job.ended, job.seen_ns) for job in end.jobs] == [(True, None)]
