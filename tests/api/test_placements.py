"""Placements and replacements over real HTTP and from the command line."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.store import MINUTE, START, Clock, nodes, scores, served, topology

from analytics.store import Store
from api import models
from api.app import create_app
from api.placements import ENDPOINTS, FIELDS, MAX_BODY, QUESTION, Job
from isotach.commands.place import command
from telemetry.errors import IsotachError

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def fill(store: Store) -> None:
    """Four nodes of 8 GPUs in two racks: n1 and n2 in r1, n3 (fast) and n4 (one GPU quarantined) in r2."""
    speed = {"n1": 1.0, "n2": 0.99, "n3": 1.05, "n4": 1.02}
    store.write(
        {
            "scores": scores(
                [
                    {
                        "gpu_uuid": f"GPU-{node}-{i}",
                        "node": node,
                        "tier": "quarantine" if (node, i) == ("n4", 0) else "standard",
                        "speeds": {"compute": {"speed": one, "low": one * 0.998, "high": one * 1.002}},
                    }
                    for node, one in speed.items()
                    for i in range(8)
                ]
            ),
            "nodes": nodes([{"node": node} for node in speed]),
            "topology": topology(
                {node: [("rack", "r1" if node < "n3" else "r2"), ("site", "north")] for node in speed}
            ),
        }
    )


@pytest.fixture(scope="module")
def racks() -> Iterator[httpx.Client]:
    """A client of a real server over the four nodes."""
    with Store(None) as store:
        fill(store)
        with served(create_app(store, clock_ns=Clock(START + MINUTE))) as client:
            yield client


def ask(client: httpx.Client, **body: Any) -> dict[str, Any]:
    """The answer to a question that is no mistake."""
    answer = client.post("/v1/placements", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    models.PlacementList.model_validate(found, strict=True)
    return found


def test_a_job_of_full_nodes_is_placed(racks: httpx.Client) -> None:
    """Two full nodes within a rack are n1 and n2: of the other rack's nodes one is not full."""
    answer = ask(racks, nodes=2, within="rack")
    assert (answer["total"], answer["free_gpus"], answer["free_nodes"]) == (1, 31, 3)
    (choice,) = answer["items"]
    assert (choice["level"], choice["value"], choice["locality_penalty"]) == ("rack", "r1", 1.7)
    assert [node["node"] for node in choice["nodes"]] == ["n1", "n2"]
    assert [len(node["gpus"]) for node in choice["nodes"]] == [8, 8]
    assert choice["cost"] == pytest.approx(choice["expected_slowdown"] * 1.7, abs=2e-6)
    assert ask(racks, nodes=2)["items"][0]["value"] == "north", "n3 is worth leaving the rack for"
    assert ask(racks, nodes=2, penalties={"rack": 1.0})["items"][0]["value"] == "r1"


def test_no_place_is_an_empty_list_that_says_what_is_free(racks: httpx.Client) -> None:
    """Four full nodes do not exist: the caller sees why."""
    answer = ask(racks, nodes=4, exclude_nodes=["n1"])
    assert (answer["items"], answer["total"], answer["free_gpus"], answer["free_nodes"]) == ([], 0, 23, 2)


def test_busy_gpus_are_left_out(racks: httpx.Client) -> None:
    """What the caller knows to be busy is in no choice."""
    busy = [f"GPU-n3-{i}" for i in range(7)]
    answer = ask(racks, gpus=2, exclude_gpus=busy, limit=100)
    given = {one for choice in answer["items"] for node in choice["nodes"] for one in node["gpus"]}
    assert not given & set(busy)
    assert [choice["value"] for choice in answer["items"]] == ["n4", "n1", "n2"]


def test_a_busy_name_that_nobody_has_is_told(racks: httpx.Client) -> None:
    """A node's name written another way excludes nothing, and the answer says so; an unhealthy GPU is known."""
    answer = ask(racks, gpus=1, exclude_nodes=["n1", "n2.example"], exclude_gpus=["GPU-n4-0", "GPU-none", "GPU-n3-1"])
    assert (answer["unknown_names"], answer["unknown_total"]) == (["n2.example", "GPU-none"], 2)
    many = ask(racks, gpus=1, exclude_nodes=[f"x{i}" for i in range(50)])
    assert (len(many["unknown_names"]), many["unknown_total"]) == (20, 50)
    assert ask(racks, gpus=1, exclude_nodes=["n1"])["unknown_total"] == 0


def test_a_stale_fleet_has_no_healthy_gpu() -> None:
    """Old scores place nobody: every tier is unknown."""
    with Store(None) as store:
        fill(store)
        with served(create_app(store, clock_ns=Clock(START + 600 * MINUTE))) as client:
            answer = ask(client, gpus=1)
    assert (answer["stale"], answer["items"], answer["free_gpus"]) == (True, [], 0)


def test_a_placement_follows_the_store() -> None:
    """A GPU that is quarantined between two questions is in the first answer only."""
    with Store(None) as store:
        fill(store)
        with served(create_app(store, clock_ns=Clock(START + MINUTE))) as client:
            before = ask(client, gpus=8)["items"][0]["value"]
            row = {"gpu_uuid": "GPU-n3-1", "node": "n3", "tier": "quarantine", "speeds": "{}"}
            store.write({"scores": scores([row])})
            after = ask(client, gpus=8)["items"][0]["value"]
    assert (before, after) == ("n3", "n1")


@pytest.mark.parametrize(
    ("body", "rule", "says"),
    [
        ("{", "not_json", "JSON"),
        ("[1]", "not_an_object", "object"),
        ('{"gpus": 1, "colour": "red"}', "unknown_parameter", "gpus, nodes, node_gpus, class"),
        ("{}", "bad_parameter", "gpus, or nodes"),
        ('{"gpus": 1, "nodes": 1}', "bad_parameter", "one of them"),
        ('{"gpus": 0}', "bad_parameter", "gpus=0"),
        ('{"gpus": "8"}', "bad_parameter", "integer"),
        ('{"gpus": 8.5}', "bad_parameter", "integer"),
        ('{"gpus": true}', "bad_parameter", "integer"),
        ('{"gpus": 8, "class": "graphics"}', "bad_parameter", "'compute', 'memory'"),
        ('{"gpus": 8, "within": "galaxy"}', "bad_parameter", "node, rack, site, fleet"),
        ('{"gpus": 8, "tolerance": -0.1}', "bad_parameter", "tolerance"),
        ('{"gpus": 8, "penalties": {"rack": 0.5}}', "bad_parameter", "penalty of rack"),
        ('{"gpus": 8, "penalties": {"rack": null}}', "bad_parameter", "penalties.rack"),
        ('{"gpus": 8, "exclude_gpus": ["a", 1]}', "bad_parameter", "exclude_gpus.1"),
        ('{"gpus": 8, "tiers": ["quarantine"]}', "bad_parameter", "premium, standard, degraded"),
        ('{"nodes": 1, "split": true}', "bad_parameter", "split"),
        ('{"gpus": 8, "limit": 1000}', "bad_parameter", "limit"),
    ],
)
def test_a_wrong_body_is_named_with_what_is_allowed(racks: httpx.Client, body: str, rule: str, says: str) -> None:
    """422 in the shape of every refusal: the field, and what it may be."""
    answer = racks.post("/v1/placements", content=body)
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["rule"] == rule
    assert says in error["detail"]
    assert error["remedy"]


def test_a_question_may_be_long_but_not_endless(racks: httpx.Client) -> None:
    """A hundred thousand busy GPUs fit; what is larger than the limit is refused unread; it is a POST route."""
    many = [f"GPU-{i:08x}-7a5b-4c1d-9e2f-0123456789ab" for i in range(100_000)]
    assert ask(racks, gpus=1, exclude_gpus=many)["total"] == 4
    answer = racks.post("/v1/placements", content=b" " * (MAX_BODY + 1))
    assert (answer.status_code, answer.json()["error"]["rule"]) == (413, "too_large")
    assert racks.get("/v1/placements").status_code == 405
    assert racks.post("/v1/placements?x=1", json={"gpus": 1}).status_code == 422


def test_replacements_are_near_first(racks: httpx.Client) -> None:
    """For n2 its rack's n1 comes before the faster n3; n4 is not full and never comes."""
    answer = racks.get("/v1/replacements?node=n2").json()
    models.ReplacementList.model_validate(answer, strict=True)
    assert [(one["node"], one["level"], len(one["gpus"])) for one in answer["items"]] == [
        ("n1", "rack", 8),
        ("n3", "site", 8),
    ]
    assert racks.get("/v1/replacements?node=n4&within=rack").json()["items"][0]["node"] == "n3"
    lost = racks.get("/v1/replacements?node=n9")
    assert (lost.status_code, lost.json()["error"]["rule"]) == (404, "unknown_node")
    for path in ("/v1/replacements", "/v1/replacements?node=n1&within=galaxy"):
        assert racks.get(path).status_code == 422


def test_the_documents_say_what_the_code_does(racks: httpx.Client) -> None:
    """Examples fit their models, the page has every field, and the schema of the body is in the OpenAPI document."""
    QUESTION.model.model_validate(QUESTION.example, strict=True)
    Job.model_validate(QUESTION.asked)
    for endpoint in ENDPOINTS:
        endpoint.model.model_validate(endpoint.example, strict=True)
    section = PAGE.partition("## `POST /v1/placements`")[2].partition("\n## ")[0]
    assert [field for field in FIELDS if f"`{field}`" not in section] == []
    document = racks.get("/openapi.json").json()
    body = document["paths"]["/v1/placements"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["properties"]) == set(FIELDS)
    assert body["example"] == QUESTION.asked


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's file with the four nodes."""
    path = tmp_path_factory.mktemp("store") / "fleet.duckdb"
    with Store(path) as store:
        fill(store)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `isotach place`."""
    try:
        with pytest.raises(SystemExit) as ended:
            command.main(list(arguments), prog_name="isotach place")
    except IsotachError as error:  # the one line and status 1 that `isotach.cli.main` makes of it
        return 1, "", str(error)
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_the_command_reads_a_file_and_a_server_alike(
    racks: httpx.Client, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same question has the same answer from a store's file and over HTTP, in every format."""
    question = ["--nodes", "1", "--exclude-node", "n[3-4]", "--penalty", "rack=1.2", "--format"]
    code, text, _ = run(capsys, "--store", str(file), *question, "json")
    assert code == 0
    items = json.loads(text)
    assert [one["value"] for one in items] == ["n1", "n2"]
    assert json.loads(run(capsys, "--server", str(racks.base_url), *question, "json")[1]) == items
    rows = list(csv.DictReader(io.StringIO(run(capsys, "--store", str(file), *question, "csv")[1])))
    assert [(one["value"], json.loads(one["nodes"])) for one in rows] == [(one["value"], one["nodes"]) for one in items]
    shown = run(capsys, "--store", str(file), *question, "table")[1]
    assert "n1 (8)" in shown
    assert "2 of 2" in shown


def test_the_command_warns_of_names_that_nobody_has(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, so that a program's JSON stays whole."""
    question = ("--store", str(file), "--nodes", "1", "--format", "json", "--max-age-s", "90")
    code, text, error = run(capsys, *question, "--exclude-node", "n[3-4].example")
    assert (code, "2 excluded names are not known there: n3.example, n4.example" in error) == (0, True)
    assert json.loads(text)
    assert run(capsys, *question, "--exclude-node", "n[3-4]")[2] == ""


def test_the_command_finds_a_replacement(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--replace` asks which node takes over."""
    _, text, _ = run(capsys, "--store", str(file), "--replace", "n4", "--format", "json")
    assert [one["node"] for one in json.loads(text)] == ["n3", "n1", "n2"]
    assert "nearest level" in run(capsys, "--store", str(file), "--replace", "n4")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--gpus", "1", "--nodes", "1"], 2, "one of --gpus, --nodes and --replace"),
        ([], 2, "one of --gpus, --nodes and --replace"),
        (["--gpus", "1", "--penalty", "rack"], 2, "LEVEL=FACTOR"),
        (["--gpus", "1", "--exclude-node", "n[1"], 2, "--exclude-node"),
        (["--replace", "n1", "--split"], 2, "--replace takes"),
        (["--gpus", "1", "--within", "galaxy"], 1, "there are node, rack, site, fleet"),
        (["--replace", "n9"], 1, "n9"),
    ],
)
def test_the_command_says_what_is_wrong(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    """One line, no stack trace."""
    found, _, error = run(capsys, "--store", str(file), *arguments)
    assert found == code
    assert says in " ".join(error.split())
    assert "Traceback" not in error
