"""What spoils samples on their way: lost, frozen, garbage, late, skewed, unsupported. The GPUs feel nothing of it.

To add a way: one branch in `disturb`, one entry in `faults.FAULTS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.fault import Fault
from collectors.simulated.noise import key, uniform

KINDS = frozenset(
    {
        "ecc_corrected_storm",
        "missing_samples",
        "frozen_values",
        "garbage_values",
        "unsupported_metrics",
        "late_batches",
        "clock_skew",
    }
)
STORM_LOSS = 0.5  #: of the samples under load; 18 to 82 % were lost on a GB200 with 17,700 errors a second
GARBAGE: tuple[tuple[str, float], ...] = (
    ("utilization_ratio", 26.19),  # 2619 %, as seen in the field
    ("utilization_ratio", 42_949_672.95),  # 4294967295 %
    ("ecc_corrected_total", 1.0e12),
)


@dataclass(slots=True, kw_only=True)
class Spoilt:
    """The samples of one node in one segment after all that happened to them, flat, GPU by GPU."""

    columns: dict[str, Any]
    time_ns: NDArray[np.int64]
    gpu: NDArray[np.uint16]
    late_s: float


class Disturbance:
    """Spoils the samples of one node; remembers what frozen GPUs last said."""

    def __init__(self, node: str, gpus: int, *, seed: int) -> None:
        self._keys = np.array([key(seed, "lost", node, slot) for slot in range(gpus)], dtype=np.uint64)
        self._frozen: dict[str, dict[str, NDArray[Any]]] = {}

    def disturb(
        self,
        faults: Sequence[tuple[Fault, NDArray[np.intp]]],
        columns: Mapping[str, NDArray[Any]],
        *,
        ticks: NDArray[np.uint64],
        time_ns: NDArray[np.int64],
        absent: NDArray[np.bool_],
        working: NDArray[np.bool_],
    ) -> Spoilt:
        """The samples that arrive, given the faults that act on slots of this node during these ticks."""
        gpus = len(self._keys)
        kept = np.repeat(~absent[:, None], len(ticks), axis=1)
        changed: dict[str, NDArray[Any]] = dict(columns)
        unsupported: dict[str, NDArray[np.bool_]] = {}
        late_s = 0.0
        shift_ns = 0
        for fault, slots in faults:
            chance = uniform(self._keys ^ np.uint64(key(fault.name)), ticks, 3)
            chosen = np.zeros(gpus, dtype=np.bool_)
            chosen[slots] = True
            if fault.kind == "missing_samples":
                kept &= ~chosen[:, None] | (chance >= fault.size)
            elif fault.kind == "ecc_corrected_storm":
                kept &= ~chosen[:, None] | ~working | (chance >= STORM_LOSS)
            elif fault.kind == "frozen_values":
                self._freeze(fault, slots, changed)
            elif fault.kind == "garbage_values":
                _garble(changed, chosen[:, None] & (chance < fault.size), chance * (1.0 / max(fault.size, 1e-12)))
            elif fault.kind == "unsupported_metrics":
                for name in fault.metrics:
                    if name in changed:
                        unsupported[name] = unsupported.get(name, np.zeros(gpus, dtype=np.bool_)) | chosen
            elif fault.kind == "late_batches":
                late_s = max(late_s, fault.size)
            elif fault.kind == "clock_skew":
                shift_ns += math.floor(fault.size * 1e9)
        flat: dict[str, Any] = {}
        for name, values in changed.items():
            if name not in unsupported:
                flat[name] = values[kept]
            elif not unsupported[name].all():
                silent = np.repeat(unsupported[name][:, None], len(ticks), axis=1)[kept]
                flat[name] = [
                    None if gone else value for gone, value in zip(silent, values[kept].tolist(), strict=True)
                ]
        return Spoilt(
            columns=flat,
            time_ns=np.tile(time_ns, (gpus, 1))[kept] + shift_ns,
            gpu=np.repeat(np.arange(gpus, dtype=np.uint16)[:, None], len(ticks), axis=1)[kept],
            late_s=late_s,
        )

    def _freeze(self, fault: Fault, slots: NDArray[np.intp], columns: dict[str, NDArray[Any]]) -> None:
        if fault.name not in self._frozen:
            self._frozen[fault.name] = {name: values[slots, 0].copy() for name, values in columns.items()}
        for name, last in self._frozen[fault.name].items():
            columns[name] = columns[name].copy()
            columns[name][slots] = last[:, None]


def _garble(columns: dict[str, NDArray[Any]], hit: NDArray[np.bool_], chance: NDArray[np.float64]) -> None:
    which = np.minimum((chance * len(GARBAGE)).astype(int), len(GARBAGE) - 1)
    for i, (name, value) in enumerate(GARBAGE):
        if name in columns:
            columns[name] = columns[name].copy()
            columns[name][hit & (which == i)] = value
