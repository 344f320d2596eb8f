"""Locality: the levels a job can be spread over, nearest first, and what it pays for being spread so far.

To set a level's factor: `penalties`, from the request; to change what is usual: `NEAR` and `ACROSS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from analytics.blocks import FLEET, NODE, members_of
from telemetry.errors import BadInput

NEAR: tuple[str, ...] = (NODE, "nvlink_sub_domain", "nvlink_domain")
"""Levels inside which a job pays nothing: its GPUs talk over NVLink, as inside one node."""

ACROSS = 1.7
"""Factor of a job that leaves its node or NVLink domain: the constant of PAL's own simulations (arXiv 2408.11919;
hal-uw/blox-pal, `--locality-penalty`), which sweeps it from 1.0 to 3.0. The same source measured 1.0 to 1.16 for single
models on two clusters, and nothing beyond the node's edge: farther levels cost the same until somebody says more."""

MOST = 1_000.0
"""Largest factor taken."""

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level: its name, its values, and per node of the fleet the index of its value, -1 where it has none."""

    name: str
    values: tuple[str, ...]
    block: Indices


def levels_of(nodes: Sequence[str], topology: pl.DataFrame) -> tuple[Level, ...]:
    """Levels from `node` to `fleet`, nearest first, for these nodes in this order; `topology` holds rows of its table.

    The order of levels is that of `analytics.blocks`. Values are numbered by name, so that the order of rows is
    nobody's business.
    """
    members = members_of(topology)
    found = [Level(name=NODE, values=tuple(nodes), block=np.arange(len(nodes), dtype=np.int64))]
    frame = pl.DataFrame({"node": list(nodes)}, schema={"node": pl.String})
    for (name,), rows in members.group_by("level", maintain_order=True):
        values = rows["value"].unique().sort()
        index = pl.DataFrame({"value": values, "block": pl.Series(range(len(values)), dtype=pl.Int64)})
        placed = frame.join(rows.join(index, on="value"), on="node", how="left", maintain_order="left")
        block = placed["block"].fill_null(-1).to_numpy()
        found.append(Level(name=str(name), values=tuple(values.to_list()), block=block))
    found.append(Level(name=FLEET, values=(FLEET,), block=np.zeros(len(nodes), dtype=np.int64)))
    return tuple(found)


def factors(levels: Sequence[str], penalties: Mapping[str, float] | None = None) -> list[float]:
    """The factor of each level, given nearest first: by how much a job takes longer when it is spread that far.

    `penalties` names levels; of the others those in `NEAR` cost 1, the rest `ACROSS`, or as much as the level before
    if that is more. Raises BadInput for a level that is not there, a factor below 1, or one below a nearer level's.
    """
    given = dict(penalties or {})
    for name, factor in given.items():
        if name not in levels:
            raise BadInput("unknown_level", f"no level {name!r} to charge for; there are {', '.join(levels)}")
        if not (math.isfinite(factor) and 1 <= factor <= MOST):
            raise BadInput("out_of_range", f"penalty of {name}: {factor}; from 1 to {MOST:g}")
    result: list[float] = []
    nearer = 1.0
    for name in levels:
        factor = given.get(name, max(nearer, 1.0 if name in NEAR else ACROSS))
        if factor < nearer:
            raise BadInput("out_of_range", f"penalty of {name}: {factor}; no less than {nearer} of the level before")
        result.append(factor)
        nearer = factor
    return result
