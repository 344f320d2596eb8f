"""A busy host: GPUs of a whole node that stand empty while others on the same programme do not.

To tell contention by another trace of it: beside `engine` in `idle_beyond`.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STARVED = 0.05  #: share of time empty beyond the others': several times what phases of a window move it by
OWN_WORK = 0.005  #: log work per second: nodes that agree so closely work on one synchronous job
EMPTY = 0.75  #: of the activity lost, also lost by the engine: who waits for others has their kernel resident
NEAR = 8  #: neighbours looked at on either side; a job has more nodes than that, a node no use for more
MIN_PEERS = 3
SAME_PAUSES = 0.02  #: share of samples that are busy
SAME_TALK = 0.1  #: traffic with others per unit of work, relative


def idle_beyond(
    work: Floats, mix: Floats, talk: Floats, busy: Floats, engine: Floats, activity: Floats, *, same_mix: float
) -> Floats:
    """Share of time in which each node's GPUs stand empty beyond others on the same programme; NaN: not to be said.

    One value a node, its median GPU's: log `work` per second, log `mix`, memory traffic per unit of work, `talk`,
    traffic with others, `busy`, the share of its samples that are, log `engine` and log SM `activity`. Nodes that agree
    in mix (within `same_mix`), talk and pauses are on one programme, and those that do equal work too are mates in one
    synchronous job. A GPU that waits for another node's has a collective's kernel resident, spinning: its engine is
    busy, few of its SMs are. A GPU that its host does not feed has nothing. So the node that holds its mates up is the
    one whose engines are idle although its SMs are no less active than theirs; without mates, the one whose engines
    lose as much as its SMs against the median of at least `MIN_PEERS` nodes.
    """
    count = len(work)
    found = np.full(count, np.nan)
    if count < 2:
        return found
    said = talk / np.exp(work)

    def alike_among(others: NDArray[np.intp]) -> NDArray[np.bool_]:
        same = np.abs(mix[others] - mix[:, None]) < same_mix
        same &= np.abs(said[others] - said[:, None]) <= SAME_TALK * np.maximum(said[others], said[:, None])
        same &= np.abs(busy[others] - busy[:, None]) <= SAME_PAUSES
        return np.asarray(same & np.isfinite(engine[others]) & (others != np.arange(count)[:, None]))

    mates = _nearest(work)
    together = alike_among(mates) & (np.abs(work[mates] - work[:, None]) < OWN_WORK)
    best = np.where(together, engine[mates], -np.inf).argmax(axis=1)
    mate = mates[np.arange(count), best]
    peers = _nearest(mix)
    alike = alike_among(peers)
    enough = alike.sum(axis=1) >= MIN_PEERS
    usual, usually = (_median(np.where(alike, values[peers], np.nan), enough) for values in (engine, activity))
    mated = together.any(axis=1)
    lost = np.where(mated, engine[mate], usual) - engine
    less_active = np.where(mated, activity[mate], usually) - activity
    told = np.isfinite(lost)
    empty = told & (lost > 0) & (lost >= EMPTY * less_active)
    found[told] = 0.0
    found[empty] = 1 - np.exp(-lost[empty])
    return found


def _nearest(values: Floats) -> NDArray[np.intp]:
    """For each value the indices of its neighbours in order; itself stands in where there are none."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    places = np.arange(count)[:, None] + np.concatenate([np.arange(-NEAR, 0), np.arange(1, NEAR + 1)])[None, :]
    inside = (places >= 0) & (places < count)
    near = np.where(inside, order[np.clip(places, 0, count - 1)], order[:, None])
    found = np.empty_like(near)
    found[order] = near
    return found


def _median(values: Floats, enough: NDArray[np.bool_]) -> Floats:
    found = np.full(len(values), np.nan)
    if enough.any():
        found[enough] = np.nanmedian(values[enough], axis=1)
    return found
