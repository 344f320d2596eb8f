"""Measured figures, each beside an alternative measured in the same run and the figure it has to reach.

To add a benchmark: a module with `figures(*, quick)` that yields figures, one line in `BENCHMARKS`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure: every repeat's value, and what it is held against.

    `alternative` names another way of doing the same, with its own repeats in the same run. `reference` is a known
    measurement that this one should reach, with `reference_of` saying of what; None where nobody has measured it.
    """

    name: str
    unit: str
    values: Sequence[float]
    more_is_better: bool = True
    alternative: str | None = None
    alternative_values: Sequence[float] = ()
    reference: float | None = None
    reference_of: str = ""


class Benchmark(Protocol):
    """What each module offers under the name `figures`."""

    def __call__(self, *, quick: bool) -> Iterator[Figure]:
        """The figures, one after the other as they are measured; raises NotHere."""
        ...


class NotHere(Exception):
    """This machine lacks what the benchmark needs; the text says what."""


BENCHMARKS: Mapping[str, str] = MappingProxyType(
    {
        "windows": "benchmarks.windows:figures",
        "kafka_windows": "benchmarks.kafka_windows:figures",
        "simulated_rate": "benchmarks.simulated_rate:figures",
        "transports": "benchmarks.transports:figures",
        "scoring": "benchmarks.scoring:figures",
        "blocks": "benchmarks.blocks:figures",
        "placing": "benchmarks.placing:figures",
        "store": "benchmarks.store:figures",
        "api": "benchmarks.api:figures",
        "freshness": "benchmarks.freshness:figures",
        "agent": "benchmarks.agent:figures",
        "scraper": "benchmarks.scraper:figures",
    }
)
"""Every benchmark: where its function is, resolved with `pkgutil.resolve_name`. Each runs in a process of its own."""


def measure(name: str, *, quick: bool) -> list[Figure]:
    """The figures of one benchmark, in this process."""
    return list(resolve_name(BENCHMARKS[name])(quick=quick))
