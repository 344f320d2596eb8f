"""Sending recorded telemetry and measurements through the log, with progress: what `import` and `replay` share.

To add a format: `analytics/tabular.py`.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

SHOWN_REJECTS = 5


class RecordedClock:
    """A clock that stands where the recording is: time passes only as it is read."""

    def __init__(self) -> None:
        self._now_ns = 0

    def __call__(self) -> int:
        """Now, in ns UTC."""
        return self._now_ns

    def reach(self, time_ns: int) -> None:
        """Move on to this time; never back."""
        self._now_ns = max(self._now_ns, time_ns)

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._now_ns += int(seconds * 1e9)


class Rejected:
    """Rows that were not taken: counted by rule, the first few kept with their row numbers."""

    def __init__(self) -> None:
        self.by_rule: Counter[str] = Counter()
        self._first: list[str] = []

    def add(self, row: int, rule: str, detail: str) -> None:
        """One row."""
        self.by_rule[rule] += 1
        if len(self._first) < SHOWN_REJECTS:
            self._first.append(f"row {row}: {rule}: {detail}")

    def add_all(self, rule: str, count: int) -> None:
        """Rows of which only the rule is known."""
        self.by_rule[rule] += count

    def report(self, console: Console) -> None:
        """Say what was not taken, if anything."""
        if not self.by_rule:
            return
        counts = ", ".join(f"{count} {rule}" for rule, count in self.by_rule.most_common())
        console.print(f"[yellow]Not taken: {counts}[/]", highlight=False)
        for line in self._first:
            console.print(f"  {line}", highlight=False)
        left = self.by_rule.total() - len(self._first)
        if left > 0:
            console.print(f"  and {left} more", highlight=False)


@contextlib.contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where that is a terminal; yields what to call with each number of rows done."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda rows: bar.advance(task, rows)
