"""One node of a simulated fleet: where it is, what is in it, what air it breathes.

To describe nodes further: one field here, filled in `fleet.py`.
"""

from dataclasses import dataclass

from collectors.simulated.models import GpuModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: its place, model, how many GPUs, and the air at its inlet (mean, daily swing, hour of the peak UTC)."""

    name: str
    site: str
    rack: str
    block: str | None
    leaf: str | None
    model: GpuModel
    gpus: int
    metrics: tuple[str, ...]
    fabric: str | None
    inlet_c: float
    daily_c: float
    peak_hour: float

    @property
    def model_name(self) -> str:
        """The name of its GPU model in the description."""
        return self.model.name

    @property
    def place(self) -> tuple[tuple[str, str], ...]:
        """(level, value), nearest first, as an inventory gives it."""
        levels = (
            ("nvlink_domain", self.fabric),
            ("rack", self.rack),
            ("leaf", self.leaf),
            ("block", self.block),
            ("site", self.site),
        )
        return tuple((level, value) for level, value in levels if value is not None)
