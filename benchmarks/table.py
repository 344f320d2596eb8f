"""Figures as one table of text, and as JSON.

To show something more of a figure: a column in `COLUMNS` and its cell in `_cells`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks import Figure

COLUMNS = ("figure", "median", "lowest .. highest", "unit", "alternative in the same run", "reference", "reached")
NEAR = 0.9  #: a median within a tenth of the reference has reached it: machines differ by more


def table(figures: Sequence[Figure]) -> str:
    """A Markdown table, its columns aligned."""
    rows = [COLUMNS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reached(figure: Figure) -> bool | None:
    """Whether the median is as good as the reference, give or take a tenth; None without one."""
    if figure.reference is None:
        return None
    middle = median(figure.values)
    return middle >= NEAR * figure.reference if figure.more_is_better else NEAR * middle <= figure.reference


def as_json(figure: Figure) -> Mapping[str, Any]:
    """The figure with all its repeats."""
    return {name: getattr(figure, name) for name in Figure.__slots__} | {
        "values": list(figure.values),
        "alternative_values": list(figure.alternative_values),
        "median": median(figure.values),
        "reached": reached(figure),
    }


def _cells(figure: Figure) -> tuple[str, ...]:
    values = figure.values
    spread = f"{number(min(values))} .. {number(max(values))}" if len(values) > 1 else "once"
    return (
        figure.name,
        number(median(values)),
        spread,
        figure.unit,
        _alternative(figure),
        "" if figure.reference is None else f"{number(figure.reference)} ({figure.reference_of})",
        {None: "", True: "yes", False: "no"}[reached(figure)],
    )


def _alternative(figure: Figure) -> str:
    if figure.alternative is None or not figure.alternative_values:
        return ""
    other, middle = median(figure.alternative_values), median(figure.values)
    better, worse = (middle, other) if figure.more_is_better else (other, middle)
    ratio = f" ({better / worse:.1f} x)" if worse else ""  # nothing came of one of them: there is no ratio
    return f"{figure.alternative}: {number(other)}{ratio}"


def number(value: float) -> str:
    """Three digits that say something, thousands apart."""
    size = abs(value)
    if size >= 1_000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
