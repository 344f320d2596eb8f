"""Patience: how long the crew waits for what, and how often it tries again.

To wait for something else: a field here, its use in `crew.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long is waited for what, in seconds.

    `late_s`: one GPU, while the others wait. `tick_s`: all of them. `reopen_s`, `open_s`: opening a GPU that was open
    before, or never, while the others wait. `start_s`: the library, or opening a GPU, before it counts as hanging.
    `hang_s`: any other call of a GPU that is read apart.
    `retry_s`: before a hanging or lost GPU is tried again, twice as long each time, up to the second figure.
    `settle`: readings in time before a GPU is read with the others again. `renew_s`: the age of the process at which
    another takes over, which finds GPUs that came back and a driver that was changed.
    """

    late_s: float
    tick_s: float
    reopen_s: float = 1.5
    open_s: float = 5.0
    start_s: float = 30.0
    hang_s: float = 5.0
    retry_s: tuple[float, float] = (5.0, 300.0)
    settle: int = 30
    renew_s: float = 600.0

    @classmethod
    def of(cls, interval_s: float) -> "Patience":
        """For one reading in so many seconds."""
        return cls(late_s=min(2.0, max(0.2, 0.4 * interval_s)), tick_s=0.9 * interval_s)
