"""One figure of the table: what was measured, what it should be, whether it is.

To add another shape of target: a branch in `target` and `holds`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`low` and `high` bound what it should be, ends included; neither: told, not judged. `n`: out of how many.

    `decided` false: what was seen is too little to say whether the target is met.
    """

    set: str
    figure: str
    value: float | str | None
    n: int
    low: float | None = None
    high: float | None = None
    equal: str | None = None
    decided: bool = True

    @property
    def target(self) -> str | None:
        """The target in words, null where there is none."""
        if self.equal is not None:
            return self.equal
        if self.low is not None and self.high is not None:
            return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f">= {self.low:g}"
        return None if self.high is None else f"<= {self.high:g}"

    @property
    def holds(self) -> bool | None:
        """Whether the value as printed meets the target; null where there is none, or where nothing is decided."""
        if self.target is None or not self.decided:
            return None
        if self.equal is not None:
            return self.value == self.equal
        if not isinstance(self.value, int | float):
            return False
        shown = round(float(self.value), 3)
        return bool((self.low is None or shown >= self.low) and (self.high is None or shown <= self.high))

    def row(self) -> dict[str, Any]:
        """The figure as JSON."""
        value = round(float(self.value), 6) + 0.0 if isinstance(self.value, float) else self.value
        return {"set": self.set, "figure": self.figure, "value": value, "target": self.target, "holds": self.holds} | {
            "n": self.n
        }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a figure, columns aligned."""
    words = {True: "yes", False: "NO", None: ""}
    head = ("set", "figure", "value", "target", "holds", "n")
    cells = [head] + [
        (r["set"], r["figure"], _short(r["value"]), _short(r["target"] or ""), words[r["holds"]], str(r["n"]))
        for r in rows
    ]
    widths = [max(len(cell[i]) for cell in cells) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(cell, widths, strict=True)).rstrip() for cell in cells)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """The figures as a JSON list."""
    path.write_text(json.dumps(list(rows), indent=1) + "\n")
