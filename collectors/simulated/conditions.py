"""What acts on each GPU of a group from one change to the next: limits, heat, errors, presence.

To let a fault act on something new: one array here with its healthy value, and its reader in physics or observation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.simulated.silicon import Silicon

Floats = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Conditions:
    """Arrays with one value a GPU. Multipliers are 1 where all is well."""

    limit_w: Floats  #: power limit that is enforced
    clock_share: Floats  #: highest clock allowed by a setting, of the model's highest
    held_share: Floats  #: highest clock allowed by hardware slowdown or brake
    heat_c: Floats  #: added to the air at the inlet
    resistance: Floats  #: multiplies the thermal resistance
    silicon: Floats  #: multiplies speed at equal clock
    drift_per_tick: Floats  #: speed lost each tick since `drift_from`
    drift_from: NDArray[np.int64]
    host: Floats  #: multiplies speed: what the host lets through
    link: Floats  #: multiplies the speed of links
    ecc_per_s: Floats
    replay_per_s: Floats
    nvlink_per_s: Floats
    bits: NDArray[np.uint64]  #: clock-event reasons that are active whatever the load
    flapping: NDArray[np.bool_]  #: the power-cap reason comes and goes each tick
    absent: NDArray[np.bool_]  #: gives no samples
    remap_pending: NDArray[np.uint8]
    remap_failed: NDArray[np.uint8]
    link_gen: NDArray[np.uint8]
    link_width: NDArray[np.uint8]
    recovery: NDArray[np.uint8]
    fabric_mask: NDArray[np.uint32]


def healthy(silicon: Silicon) -> Conditions:
    """Conditions under which nothing is wrong."""
    n = len(silicon.key)

    def ones() -> Floats:
        return np.ones(n)

    def zeros() -> Floats:
        return np.zeros(n)

    return Conditions(
        limit_w=silicon.limit_w.copy(),
        clock_share=ones(),
        held_share=ones(),
        heat_c=zeros(),
        resistance=ones(),
        silicon=ones(),
        drift_per_tick=zeros(),
        drift_from=np.zeros(n, dtype=np.int64),
        host=ones(),
        link=ones(),
        ecc_per_s=zeros(),
        replay_per_s=zeros(),
        nvlink_per_s=zeros(),
        bits=np.zeros(n, dtype=np.uint64),
        flapping=np.zeros(n, dtype=np.bool_),
        absent=np.zeros(n, dtype=np.bool_),
        remap_pending=np.zeros(n, dtype=np.uint8),
        remap_failed=np.zeros(n, dtype=np.uint8),
        link_gen=silicon.pcie_gen.copy(),
        link_width=np.full(n, 16, dtype=np.uint8),
        recovery=np.zeros(n, dtype=np.uint8),
        fabric_mask=np.zeros(n, dtype=np.uint32),
    )
