"""Where the targets of the collector dcgm come from: settings, files, DNS, Kubernetes."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.dcgm import Exporters, answer, exporters, page, sends, serves

from collectors.dcgm.collector import Dcgm, tls_context
from collectors.dcgm.discovery import Dns, Kubernetes
from collectors.dcgm.targets import File, sources_of
from telemetry.errors import NoData, SettingsError, SourceUnavailable

TOKEN = "a-token-of-the-test"


def urls(source: object) -> list[str]:
    """The URLs that a source gives now."""
    return [target.url for target in source.find()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("n1", "http://n1:9400/metrics"),
        ("n1:9401", "http://n1:9401/metrics"),
        ("10.0.0.1", "http://10.0.0.1:9400/metrics"),
        ("fd00::1", "http://[fd00::1]:9400/metrics"),
        ("[fd00::1]:9401", "http://[fd00::1]:9401/metrics"),
        ("https://n1:9400", "https://n1:9400/metrics"),
        ("http://n1:9400/gpu/metrics?x=1", "http://n1:9400/gpu/metrics?x=1"),
    ],
)
def test_an_address_is_completed(text: str, url: str) -> None:
    """Port 9400 and /metrics are what dcgm-exporter has."""
    assert urls(*sources_of([text])) == [url]


@pytest.mark.parametrize(
    "text", ["", "n1:port", "n1:99999", "ftp://n1", "http://user:secret@n1/metrics", "n1 n2", "http://n1/ x"]
)
def test_what_is_no_address_is_refused_at_the_start(text: str) -> None:
    """The setting is named; nothing waits for the first scrape."""
    with pytest.raises(SettingsError, match="--dcgm-targets") as caught:
        sources_of([text])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".json", ".yml"])
def test_a_file_of_prometheus_is_read_again_when_it_changes(tmp_path: Path, suffix: str) -> None:
    """Scheme, path and node are labels; what has become unreadable is told and changes nothing."""
    path = tmp_path / f"targets{suffix}"
    groups = [
        {"targets": ["n1:9400"], "labels": {"node": "gpu-001", "__metrics_path__": "/m"}},
        {"targets": ["n2:9400", "n3:9400"], "labels": {"__scheme__": "https", "node": "not one"}},
    ]
    path.write_text(json.dumps(groups))
    (source,) = sources_of([str(path)])
    assert [(target.url, target.node) for target in source.find()] == [
        ("http://n1:9400/m", "gpu-001"),
        ("https://n2:9400/metrics", None),
        ("https://n3:9400/metrics", None),
    ]
    path.write_text(json.dumps(groups[:1]))
    os.utime(path, ns=(1, 1))
    assert urls(source) == ["http://n1:9400/m"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[{", "cannot be read"),
        ('{"targets": ["n1"]}', "entry 1"),
        ('[{"targets": ["n1"]}, {"labels": {}}]', "entry 2"),
        ('[{"targets": ["n1:port"]}]', "entry 1"),
    ],
)
def test_a_file_that_is_none_says_where(tmp_path: Path, content: str, words: str) -> None:
    """The message names file and entry."""
    path = tmp_path / "targets.json"
    path.write_text(content)
    with pytest.raises(SourceUnavailable, match=words):
        File(path).find()
    with pytest.raises(SourceUnavailable, match="No such file"):
        File(tmp_path / "absent.json").find()


def test_targets_come_and_go_while_it_runs(tmp_path: Path) -> None:
    """A changed file starts and ends scrapes; a broken one keeps those there are."""
    with exporters() as servers:
        hosts = [
            servers.add(serves(lambda i=i: page(1, node=f"n{i}", number=i, tick=time.monotonic_ns()))) for i in range(2)
        ]
        path = tmp_path / "targets.json"
        path.write_text(json.dumps([{"targets": hosts[:1]}]))
        collector = Dcgm(sources_of([str(path)]), node="x", interval_s=0.1, wait_s=1.0, look_every_s=0.1)

        def nodes(wanted: set[str]) -> None:
            until = time.monotonic() + 30
            found: set[str] = set()
            while found != wanted:
                assert time.monotonic() < until, found
                try:
                    found = {batch.node for _ in range(4) for batch in collector.collect().samples}
                except NoData:
                    continue

        try:
            nodes({"n0"})
            path.write_text(json.dumps([{"targets": hosts}]))
            nodes({"n0", "n1"})
            path.write_text("[{")
            nodes({"n0", "n1"})
            path.write_text(json.dumps([{"targets": hosts[1:]}]))
            nodes({"n1"})
        finally:
            collector.close()


def test_an_unreadable_list_of_targets_is_told_as_such(tmp_path: Path) -> None:
    """Without any target the source is unavailable, with the reason."""
    collector = Dcgm(sources_of([str(tmp_path / "absent.yml")]), node="x", interval_s=0.1, wait_s=2.0)
    try:
        with pytest.raises(SourceUnavailable, match=r"absent\.yml"):
            collector.collect()
    finally:
        collector.close()


def test_all_addresses_of_a_name_are_targets_asked_again_after_a_while() -> None:
    """A headless service grows; one answer is kept for half a minute."""
    answers: list[Sequence[str]] = [["10.0.0.1", "fd00::1"], ["10.0.0.2"]]
    now = 0.0
    source = Dns("dcgm.example.org:9401", resolve=lambda name: answers[0], monotonic=lambda: now)
    assert urls(source) == ["http://10.0.0.1:9401/metrics", "http://[fd00::1]:9401/metrics"]
    answers.pop(0)
    assert len(urls(source)) == 2
    now = 31.0
    assert urls(source) == ["http://10.0.0.2:9401/metrics"]


def test_a_name_that_is_unknown_is_told() -> None:
    """The name is in the message."""

    def unknown(name: str) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(SourceUnavailable, match="dcgm-dns nowhere"):
        Dns("nowhere", resolve=unknown).find()
    with pytest.raises(SettingsError, match="--dcgm-dns"):
        Dns("a b:9400")


def endpoint(address: str, node: str, **conditions: bool) -> Mapping[str, object]:
    """An endpoint, as the API has it."""
    return {"addresses": [address], "nodeName": node, "conditions": conditions}


def slices(*endpoints: Mapping[str, object], more: str = "") -> str:
    """An answer of the API: a list of EndpointSlices."""
    ports = [{"name": "gpu-metrics", "port": 9400, "protocol": "TCP"}]
    item = {"addressType": "IPv4", "endpoints": list(endpoints), "ports": ports}
    return json.dumps({"kind": "EndpointSliceList", "metadata": {"continue": more}, "items": [item]})


def kubernetes(servers: Exporters, account: Path, *bodies: str, status: int = 200, port: str = "9400") -> Kubernetes:
    """The discovery over a server that behaves as the API does: as many answers as it is asked for pages."""
    left = list(bodies)
    host = servers.add(
        lambda connection, path: connection.sendall(
            answer(left.pop(0) if left else "{}", kind="application/json", status=status)
        )
    )
    (account / "token").write_text(TOKEN + "\n")
    return Kubernetes(f"gpu-operator/nvidia-dcgm-exporter:{port}", server=host, account=account)


def test_ready_endpoints_of_a_service_are_targets(tmp_path: Path) -> None:
    """Page by page, with the token, each under its Kubernetes node; what is not ready is left out."""
    with exporters() as servers:
        first = slices(
            endpoint("10.0.0.1", "gpu-001", ready=True), endpoint("10.0.0.2", "gpu-002", ready=False), more="abc"
        )
        second = slices(endpoint("10.0.0.3", "gpu-003"))
        source = kubernetes(servers, tmp_path, first, second, port="gpu-metrics")
        assert [(target.url, target.node) for target in source.find()] == [
            ("http://10.0.0.1:9400/metrics", "gpu-001"),
            ("http://10.0.0.3:9400/metrics", "gpu-003"),
        ]
        asked = servers.heads
    assert asked[0].startswith("GET /apis/discovery.k8s.io/v1/namespaces/gpu-operator/endpointslices?labelSelector=")
    assert "service-name%3Dnvidia-dcgm-exporter" in asked[0]
    assert "continue=abc" in asked[1]
    assert f"Authorization: Bearer {TOKEN}\r\n" in asked[0]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, "{}", "get and list of endpointslices"),
        (500, "{}", "status 500"),
        (200, "<html>", "no JSON object"),
        (200, "{}", "no items"),
    ],
)
def test_what_the_api_refuses_is_told_without_the_token(tmp_path: Path, status: int, body: str, words: str) -> None:
    """The remedy is in the message, the token is not."""
    with exporters() as servers:
        source = kubernetes(servers, tmp_path, body, status=status)
        with pytest.raises(SourceUnavailable, match=words) as caught:
            source.find()
    assert TOKEN not in str(caught.value)


def test_outside_a_pod_the_message_says_so(tmp_path: Path) -> None:
    """No token, no certificate, no API: one line each."""
    with pytest.raises(SourceUnavailable, match="inside a pod"):
        Kubernetes("a/b", account=tmp_path).find()
    (tmp_path / "token").write_text(TOKEN)
    with pytest.raises(SourceUnavailable, match=r"ca\.crt"):
        Kubernetes("a/b", account=tmp_path).find()
    with exporters() as servers:
        host = servers.add(sends(b""))
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            Kubernetes("a/b", server=host, account=tmp_path).find()
    for text in ("service", "a/b:9400:1", "A/b", "a/b/c"):
        with pytest.raises(SettingsError, match="--dcgm-kubernetes"):
            Kubernetes(text)


def test_a_file_of_authorities_has_to_hold_some(tmp_path: Path) -> None:
    """The setting is named."""
    with pytest.raises(SettingsError, match="--dcgm-ca-file"):
        tls_context(tmp_path / "absent.pem")
