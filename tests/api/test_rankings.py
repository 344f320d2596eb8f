"""What schedulers read: GPUs, nodes, blocks and tiers, best first, and never an old answer as a new one."""

from typing import Any

import httpx
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.store import MINUTE, SECOND, START, Clock, nodes, scores, served, topology

from analytics.store import Store
from api.app import create_app
from api.fleet import Fleets
from isotach.site import name_places

BEST_FIRST = ["GPU-g", "GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-f", "GPU-h", "GPU-e"]


def get(client: httpx.Client, path: str, **parameters: Any) -> Any:
    """The body of a successful answer."""
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def uuids(body: Any) -> list[str]:
    """The GPUs of a list."""
    return [item["gpu_uuid"] for item in body["items"]]


def test_gpus_come_best_first(client: httpx.Client) -> None:
    """Healthy tiers by speed, ties by uuid, no speed after them, then unknown, then quarantine, however fast it is."""
    body = get(client, "/v1/gpus")
    assert uuids(body) == BEST_FIRST
    assert [item["rank"] for item in body["items"]] == list(range(1, 9))
    assert (body["total"], body["stale"]) == (8, False)
    assert (body["as_of"], body["valid_until"]) == ("2026-01-01T00:00:00.000Z", "2026-01-01T00:05:00.000Z")
    assert body["items"][3]["reasons"] == [{"code": "slow", "value": 0.9, "limit": 0.98, "text": "slow"}]
    assert (body["items"][0]["slot"], body["items"][0]["model"]) == (6, "NVIDIA H100 80GB HBM3")


def test_a_gpu_without_a_score_is_unknown(client: httpx.Client) -> None:
    """A GPU that the inventory names and nobody measured is listed, and never as healthy."""
    item = next(one for one in get(client, "/v1/gpus")["items"] if one["gpu_uuid"] == "GPU-h")
    assert (item["tier"], item["speed"], item["evidence"], item["reasons"][0]["code"]) == (
        "unknown",
        None,
        0,
        "no_score",
    )


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"tier": "premium"}, ["GPU-g", "GPU-b"]),
        ({"node": "n2"}, ["GPU-d", "GPU-f", "GPU-e"]),
        ({"node": "nowhere"}, []),
        ({"level": "rack", "value": "r1"}, ["GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-f", "GPU-e"]),
        ({"level": "rack", "value": "r2"}, ["GPU-g", "GPU-h"]),
        ({"level": "node", "value": "n3"}, ["GPU-g", "GPU-h"]),
        ({"level": "fleet", "value": "fleet", "limit": 2}, ["GPU-g", "GPU-a"]),
        ({"limit": 3, "offset": 2}, ["GPU-b", "GPU-c", "GPU-d"]),
        ({"limit": 2, "after": "GPU-b"}, ["GPU-c", "GPU-d"]),
        ({"limit": 0, "offset": 7}, ["GPU-e"]),
        ({"class": "memory"}, ["GPU-g", "GPU-a", "GPU-c", "GPU-b", "GPU-d", "GPU-f", "GPU-h", "GPU-e"]),
    ],
)
def test_gpus_are_filtered_and_paged(client: httpx.Client, parameters: dict[str, Any], expected: list[str]) -> None:
    """Filters keep the order, and pages join into the whole."""
    assert uuids(get(client, "/v1/gpus", **parameters)) == expected


def test_a_class_has_its_own_speeds(client: httpx.Client) -> None:
    """Asked for a class, a GPU shows the speed in that class, null where it has none, and keeps its place by tier."""
    items = {item["gpu_uuid"]: item for item in get(client, "/v1/gpus", **{"class": "memory"})["items"]}
    assert (items["GPU-b"]["speed"], items["GPU-b"]["speed_low"]) == (0.97, None)
    assert {item["workload_class"] for item in items.values()} == {"memory"}
    communication = get(client, "/v1/gpus", **{"class": "communication"})["items"]
    assert {item["speed"] for item in communication} == {None}


def test_all_that_is_known_of_a_gpu(client: httpx.Client) -> None:
    """One request tells the whole story: score, inventory, place, windows, changes, events of GPU and node."""
    body = get(client, "/v1/gpus/GPU-c", windows=2)
    assert (body["score"]["rank"], body["score"]["speeds"]["memory"]) == (4, {"speed": 0.99})
    assert body["inventory"]["slot"] == 2
    assert body["place"] == [["rack", "r1"], ["site", "north"]]
    assert [row["window_start_ns"] for row in body["windows"]] == [START - MINUTE, START - 2 * MINUTE]
    assert [row["transition_id"] for row in body["transitions"]] == ["t0", "t1", "t2"]
    assert [row["kind"] for row in body["events"]] == ["driver_reload", "xid"]
    assert "state" not in body["score"], "the scorer's state is private"
    unscored = get(client, "/v1/gpus/GPU-h")
    assert (unscored["as_of"], unscored["score"]["tier"]) == (None, "unknown")


def test_nodes_come_with_inventory_and_place(client: httpx.Client) -> None:
    """A node with a quarantined, an unknown or a missing GPU is not full, and one's worst tier is told."""
    items = {item["node"]: item for item in get(client, "/v1/nodes")["items"]}
    assert {node: item["full"] for node, item in items.items()} == {"n1": True, "n2": False, "n3": False}
    assert items["n2"]["worst_tier"] in ("quarantine", "unknown")
    assert items["n3"]["place"] == [["rack", "r2"]]
    assert [item["rank"] for item in items.values()] == [1, 2, 3]


def test_blocks_are_ranked_within_their_level(client: httpx.Client) -> None:
    """Every level with its blocks; a job's size leaves out what cannot hold it."""
    every = get(client, "/v1/blocks")["items"]
    assert {(item["level"], item["value"]) for item in every} == {
        ("rack", "r1"), ("rack", "r2"), ("site", "north"), ("fleet", "fleet"),
    }  # fmt: skip
    four = get(client, "/v1/blocks", level="rack", gpus=4)["items"]
    assert [(item["value"], item["rank"], item["healthy_gpus"]) for item in four] == [("r1", 1, 4)]
    assert get(client, "/v1/blocks", level="node", limit=1)["total"] == 3


def test_tiers_add_up_to_the_fleet(client: httpx.Client) -> None:
    """Every tier is there, also empty ones, with its GPUs best first."""
    body = get(client, "/v1/tiers", limit=1)
    assert [(item["tier"], item["count"], item["gpus"]) for item in body["items"]] == [
        ("premium", 2, ["GPU-g"]),
        ("standard", 2, ["GPU-a"]),
        ("degraded", 1, ["GPU-c"]),
        ("quarantine", 1, ["GPU-e"]),
        ("unknown", 2, ["GPU-f"]),
    ]


def test_transitions_come_newest_first(client: httpx.Client) -> None:
    """A poller asks since the last time it saw, as ns or ISO 8601, and can look at one node or GPU."""
    body = get(client, "/v1/transitions", limit=3)
    assert [item["transition_id"] for item in body["items"]] == ["t0", "t9", "t1"]
    assert body["total"] == 4
    for since in (str(START), "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"):
        assert [one["transition_id"] for one in get(client, "/v1/transitions", since=since)["items"]] == ["t0", "t9"]
    assert get(client, "/v1/transitions", node="n2")["total"] == 1
    assert get(client, "/v1/transitions", gpu_uuid="GPU-c", offset=2)["items"][0]["transition_id"] == "t2"


def test_jobs_are_found_by_gpu_node_name_and_time(client: httpx.Client) -> None:
    """Running ones come first; at its end a job has ended, and one that runs is known until it was seen."""

    def found(**wanted: str) -> list[tuple[str, str]]:
        return [(one["job_id"], one["gpu_uuid"]) for one in get(client, "/v1/jobs", **wanted)["items"]]

    assert found() == [("7", "GPU-a"), ("7", "GPU-b"), ("ml/train-0", "GPU-e"), ("6", "GPU-a")]
    assert found(gpu_uuid="GPU-a") == [("7", "GPU-a"), ("6", "GPU-a")]
    assert found(node="n2") == [("ml/train-0", "GPU-e")]
    assert found(job_id="7") == [("7", "GPU-a"), ("7", "GPU-b")]
    assert found(at=str(START - MINUTE)) == [("6", "GPU-a")]
    assert found(at="2026-01-01T00:00:00Z", node="n1") == [("7", "GPU-a"), ("7", "GPU-b")]
    assert found(at=str(START + MINUTE), gpu_uuid="GPU-b") == [("7", "GPU-b")]
    assert found(at=str(START + 2 * MINUTE)) == []


def test_an_operators_topology_comes_first() -> None:
    """The file given at the start places nodes before what the store or the node says."""
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "GPU-1"}]), "topology": topology({"n1": [("rack", "old")]})})
        with served(create_app(store, clock_ns=Clock(), topology=topology({"n1": [("rack", "new")]}))) as client:
            assert uuids(get(client, "/v1/gpus", level="rack", value="new")) == ["GPU-1"]
            assert uuids(get(client, "/v1/gpus", level="rack", value="old")) == []


def test_a_topology_with_short_names_places_nodes_with_full_ones() -> None:
    """The file given at the start and the one in the store, once the node has reported; then its name is stored."""
    full = "n1.cluster.local"
    with Store(None) as store:
        store.write({"nodes": nodes([{"node": full}]), "scores": scores([{"gpu_uuid": "GPU-1", "node": full}])})
        store.write({"topology": topology({"n1": [("site", "north")]})})
        with served(create_app(store, clock_ns=Clock(), topology=topology({"n1": [("rack", "r1")]}))) as client:
            assert uuids(get(client, "/v1/gpus", level="rack", value="r1")) == ["GPU-1"]
            assert uuids(get(client, "/v1/gpus", level="site", value="north")) == ["GPU-1"]
        name_places(store)
        assert store.table("topology")["node"].to_list() == [full]


def test_an_old_answer_is_never_served_as_a_new_one() -> None:
    """After valid_until every tier is unknown and the body says stale; new evidence makes it fresh at once."""
    clock = Clock(START)
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": f"GPU-{i}", "tier": "premium"} for i in range(3)])})
        with served(create_app(store, clock_ns=clock, stale_after_s=120)) as client:
            assert [item["tier"] for item in get(client, "/v1/gpus")["items"]] == ["premium"] * 3
            clock.now_ns = START + 120 * SECOND
            assert get(client, "/v1/gpus")["stale"] is False, "the last moment of validity"
            clock.now_ns += 1
            body = get(client, "/v1/gpus")
            assert (body["stale"], body["valid_until"]) == (True, "2026-01-01T00:02:00.000Z")
            assert [(one["tier"], one["stale"], one["reasons"][0]["code"]) for one in body["items"]] == [
                ("unknown", True, "stale")
            ] * 3
            assert get(client, "/v1/tiers")["items"][4]["count"] == 3
            assert get(client, "/v1/nodes")["items"][0]["healthy_gpus"] == 0
            assert get(client, "/v1/blocks")["items"][0]["healthy_gpus"] == 0
            assert get(client, "/v1/gpus/GPU-0")["stale"] is True
            store.write({"scores": scores([{"gpu_uuid": "GPU-0", "tier": "premium", "as_of_ns": clock.now_ns}])})
            body = get(client, "/v1/gpus")
            assert [item["tier"] for item in body["items"]] == ["premium", "unknown", "unknown"]
            assert body["stale"] is False


def test_an_empty_store_is_stale_and_says_so() -> None:
    """Before the first score there is no time to name, nothing to rank, and no error."""
    with Store(None) as store, served(create_app(store, clock_ns=Clock())) as client:
        for path in ("/v1/gpus", "/v1/nodes", "/v1/blocks", "/v1/transitions"):
            assert get(client, path) == {"as_of": None, "valid_until": None, "stale": True, "total": 0, "items": []}
        assert [item["count"] for item in get(client, "/v1/tiers")["items"]] == [0] * 5


def test_an_odd_number_costs_nobody_else_anything() -> None:
    """One NaN and one infinity among 64 scores are null; the other 62 are as usual."""
    rows = scores([{"gpu_uuid": f"GPU-{i:02}", "speed": 1.0 + i / 1000} for i in range(64)])
    odd = pl.Series([float("nan"), float("inf"), *rows["speed"][2:].to_list()])
    with Store(None) as store:
        store.write({"scores": rows})
        with store.transaction() as cursor:  # past the store's own check
            cursor.execute("DELETE FROM scores")
            cursor.register("odd", rows.with_columns(speed=odd))
            cursor.execute("INSERT INTO scores SELECT * FROM odd")
        with served(create_app(store, clock_ns=Clock())) as client:
            speeds = {item["gpu_uuid"]: item["speed"] for item in get(client, "/v1/gpus")["items"]}
    assert [uuid for uuid, speed in speeds.items() if speed is None] == ["GPU-00", "GPU-01"]
    assert speeds["GPU-63"] == 1.063


@settings(max_examples=6, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 30),
            st.sampled_from(["premium", "standard", "degraded", "quarantine", "unknown", "a tier of tomorrow"]),
            st.one_of(st.none(), st.sampled_from([0.9, 1.0, 1.1])),
        ),
        max_size=20,
        unique_by=lambda row: row[0],
    ),
    seed=st.integers(0, 5),
)
def test_every_replica_has_the_same_order(rows: list[tuple[int, str, float | None]], seed: int) -> None:
    """The order depends on what is stored, not on the order in which it came; a tier nobody knows is unknown."""
    frame = scores([{"gpu_uuid": f"GPU-{g}", "tier": tier, "speed": speed} for g, tier, speed in rows])
    orders = []
    for one in (frame, frame.sample(fraction=1.0, shuffle=True, seed=seed)):
        with Store(None) as store:
            store.write({"scores": one})
            fleet = Fleets(store, topology=None, clock_ns=Clock(), stale_after_ns=10**12).current()
            orders.append(fleet.ranked(None).select("gpu_uuid", "tier", "speed").rows())
    assert orders[0] == orders[1]
    healthy = ("premium", "standard", "degraded")
    key = [
        (0 if tier in healthy else 2 if tier == "quarantine" else 1, -(speed or 0.0), uuid)
        for uuid, tier, speed in orders[0]
    ]
    assert key == sorted(key)


def test_a_quarantined_gpu_stays_so_when_it_falls_silent() -> None:
    """A GPU that fell off the bus sends nothing any more: it must not become merely unknown."""
    clock = Clock(START)
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "GPU-0", "tier": "quarantine"}, {"gpu_uuid": "GPU-1"}])})
        clock.now_ns += 3_600 * SECOND
        with served(create_app(store, clock_ns=clock, stale_after_s=120)) as client:
            tiers = {one["gpu_uuid"]: one["tier"] for one in get(client, "/v1/gpus")["items"]}
    assert tiers == {"GPU-0": "quarantine", "GPU-1": "unknown"}


def test_a_gpu_whose_name_holds_a_slash_can_be_asked_for() -> None:
    """GPUs known by their index are named node/3: their detail is there, encoded or not."""
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "n1/3", "node": "n1"}])})
        with served(create_app(store)) as client:
            for path in ("/v1/gpus/n1/3", "/v1/gpus/n1%2F3"):
                assert client.get(path).json()["score"]["gpu_uuid"] == "n1/3"
