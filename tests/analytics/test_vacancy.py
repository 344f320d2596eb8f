"""Vacancy: what the best free GPUs of each node make together, whichever of them are busy.

To add a case: a fleet of its own in `made`.
"""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.candidates import distinct
from analytics.floor import Floor, expected, floor_of, log_below, together
from analytics.vacancy import vacancy_of

GPUS = 6


def made(seed: int) -> Floor:
    """Ten nodes of six GPUs; of a third only results of the whole node are known, of others of some GPUs."""
    random = np.random.default_rng(seed)
    node = np.arange(10 * GPUS) // GPUS
    source = np.where((node % 3 == 0) | (random.random(len(node)) < 0.2), "node", "measurement")
    speed = np.where(source == "node", 1.0 + node / 100, random.normal(1, 0.03, len(node)))
    scores = pl.DataFrame(
        {
            "gpu_uuid": [f"g{i:02d}" for i in range(len(node))],
            "node": [f"n{i}" for i in node],
            "as_of_ns": 0,
            "speeds": [
                f'{{"compute":{{"speed":{one:.6f},"low":{one * 0.98:.6f},"high":{one * 1.02:.6f},"source":"{how}"}}}}'
                for one, how in zip(speed, source, strict=True)
            ],
            "tier": "standard",
            "peer_group": "model",
        }
    )
    places = pl.DataFrame(schema={"node": pl.String, "position": pl.UInt16, "level": pl.String, "value": pl.String})
    return floor_of(scores, places, workload_class="compute")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), taken=st.integers(0, 40), size=st.integers(1, GPUS))
def test_busy_gpus_leave_exactly_what_the_others_make(seed: int, taken: int, size: int) -> None:
    """The row of a node's best free GPUs is the sum of their own log probabilities; a shared result counts once."""
    floor = made(seed)
    busy = np.random.default_rng(seed).choice(floor.uuid, taken, replace=False).tolist()
    vacancy = vacancy_of(floor, exclude_gpus=busy)
    able = np.flatnonzero(vacancy.count >= size)
    sizes = np.full(len(able), size)
    rows = vacancy.rows(able, sizes)
    for node, row in zip(able, rows, strict=True):
        free = [i for i in np.flatnonzero(floor.node == node) if floor.uuid[i] not in busy][:size]
        own = log_below(floor.mean, floor.sd, floor.points)
        known = distinct(floor, np.array(free))
        # Of GPUs that share their node's result the first one carries it, whichever of them is free.
        carrier = [int(np.flatnonzero(floor.shared & (floor.node == node))[0]) if floor.shared[i] else i for i in known]
        assert row == pytest.approx(own[carrier].sum(axis=0), abs=2e-3)
    assert vacancy.best(able, sizes).tolist() == [
        i for node in able for i in [i for i in np.flatnonzero(floor.node == node) if floor.uuid[i] not in busy][:size]
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 60))
def test_gpus_of_any_nodes_together_are_the_sum_of_their_own(seed: int, size: int) -> None:
    """Their row is that of the GPUs added up one by one, but for those that share their node's result."""
    floor = made(seed)
    gpu = np.sort(np.random.default_rng(seed).choice(len(floor.uuid), size, replace=False))
    known = distinct(floor, gpu)
    own = log_below(floor.mean[known], floor.sd[known], floor.points).sum(axis=0)
    near = own > -30  # below that nothing is left to tell apart
    assert together(floor, gpu)[near] == pytest.approx(own[near], abs=2e-3)
    assert expected(together(floor, gpu)[None], floor.points) == pytest.approx(
        expected(own[None], floor.points), abs=1e-5
    )


def test_only_one_peer_group_is_vacant_if_asked() -> None:
    """Nodes of another peer group have nothing free, and an unknown one leaves nothing at all."""
    floor = made(1)
    assert len(vacancy_of(floor, peer_group="model").free) == len(floor.uuid)
    assert len(vacancy_of(floor, peer_group="another").free) == 0
