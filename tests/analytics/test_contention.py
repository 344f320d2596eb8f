"""A busy host: nodes whose GPUs stand empty beyond those of nodes on the same programme.

To add a case: what changes of `idle` for one node of eight, and what must be said of it.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from analytics.contention import STARVED, idle_beyond

Floats = NDArray[np.float64]


def idle(node: int = 0, *, together: bool = True, nodes: int = 8, **changes: float) -> Floats:
    """What is said of so many nodes in one synchronous job, or each on its own, of which one differs."""
    traces = {
        "work": np.log(1000.0) + (0.0 if together else 0.02) * np.arange(nodes),
        "mix": np.full(nodes, -8.0),
        "talk": np.full(nodes, 0.4),
        "busy": np.ones(nodes),
        "engine": np.log(np.full(nodes, 0.93 if together else 1.0)),
        "activity": np.log(np.full(nodes, 0.85 if together else 0.97)),
    }
    for name, value in changes.items():
        traces[name][node] = value
    traces["talk"] *= np.exp(traces["work"] - np.log(1000.0))
    return idle_beyond(*traces.values(), same_mix=0.05)


def test_the_node_that_its_host_starves_is_told_from_those_that_wait_for_it() -> None:
    """All of a job are 85 % active; who waits has a collective's kernel resident, who starves has none."""
    said = idle(3, engine=np.log(0.85))
    assert said[3] == pytest.approx(1 - 0.85 / 0.93)
    assert said[3] > STARVED
    assert np.delete(said, 3).tolist() == [0.0] * 7


def test_who_waits_for_a_slow_gpu_of_another_node_is_not_starved() -> None:
    """Mates are less active than the node with the slow GPU, by more than their engines are idle."""
    said = idle(0, engine=np.log(1.0), activity=np.log(0.97))
    assert said.max() == 0.0


def test_a_node_alone_on_its_work_is_held_against_others_on_its_programme() -> None:
    """A tenth less of everything on independent GPUs: as empty as inactive; waiting with a kernel resident is not."""
    less = {"work": np.log(1000.0) - 0.1, "activity": np.log(0.87)}
    assert idle(0, together=False, engine=np.log(0.9), **less)[0] == pytest.approx(0.1, abs=1e-9)
    assert idle(0, together=False, engine=np.log(0.95), **less)[0] == 0.0


@pytest.mark.parametrize(
    "other", [{"mix": -7.5}, {"busy": 0.8}, {"talk": 0.9}], ids=["traffic", "pauses", "talks to others"]
)
def test_another_programme_says_nothing(other: dict[str, float]) -> None:
    """An empty engine is what its own programme makes of it; nobody runs the same."""
    assert np.isnan(idle(2, engine=np.log(0.8), **other)[2])


def test_two_alone_unknown_engines_and_no_nodes_say_nothing() -> None:
    """Too few to know what is usual, or nothing read."""
    assert np.isnan(idle(0, nodes=2, together=False, engine=np.log(0.8))).all()
    assert np.isnan(idle(1, engine=np.nan)[1])
    assert len(idle_beyond(*[np.empty(0)] * 6, same_mix=0.05)) == 0
