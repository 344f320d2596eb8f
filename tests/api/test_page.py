"""The page at `/`, over real HTTP."""

import re

import httpx


def test_the_page_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    """Whoever opens it on a closed network sees it whole, and no other host is ever asked."""
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r"https?://", answer.text) == []


def test_the_page_asks_only_for_what_is_there(client: httpx.Client) -> None:
    """Every endpoint that its script asks answers."""
    asked = set(re.findall(r"/v1/[a-z]+", client.get("/").text))
    assert asked == {"/v1/tiers", "/v1/gpus", "/v1/transitions", "/v1/blocks"}
    for path in asked:
        assert client.get(path).status_code == 200
