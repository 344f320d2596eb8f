"""How answers travel: tags, compression, one build a version."""

import asyncio
import gzip
import threading
import time

import httpx
import pytest
from support.store import START, Clock, scores, served

from analytics.store import Store
from api.answers import Answers, Built
from api.app import create_app


@pytest.mark.parametrize(
    "header", ['"{tag}"', 'W/"{tag}"', '"zzz", W/"{tag}"', "*", '"a" ,"{tag}"', '"{tag}-gz"', 'W/"{tag}-gz"']
)
def test_a_client_that_has_the_answer_gets_304(client: httpx.Client, header: str) -> None:
    """Weak, listed and any-tags match, as proxies send them: no body, the tag repeated."""
    tag = client.get("/v1/tiers", headers={"accept-encoding": "identity"}).headers["etag"].strip('"')
    answer = client.get("/v1/tiers", headers={"if-none-match": header.format(tag=tag), "accept-encoding": "identity"})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", f'"{tag}"')
    assert answer.headers["cache-control"] == "no-cache"
    assert client.get("/v1/tiers", headers={"if-none-match": '"other"'}).status_code == 200


def test_the_same_content_has_the_same_tag_on_every_replica(client: httpx.Client, store: Store, clock: Clock) -> None:
    """A client may move to another replica and still be told that nothing changed."""
    with served(create_app(store, clock_ns=clock)) as other:
        assert other.get("/v1/gpus").headers["etag"] == client.get("/v1/gpus").headers["etag"]


def test_large_answers_are_compressed_for_whoever_takes_that(client: httpx.Client) -> None:
    """Both forms are the same answer under different tags; who refuses gzip gets none; small ones stay as they are."""
    plain = client.get("/v1/gpus", headers={"accept-encoding": "identity"})
    with client.stream("GET", "/v1/gpus", headers={"accept-encoding": "gzip"}) as zipped:
        raw = b"".join(zipped.iter_raw())
    assert gzip.decompress(raw) == plain.content
    assert zipped.headers["etag"] != plain.headers["etag"]
    assert zipped.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert "content-encoding" not in client.get("/v1/gpus", headers={"accept-encoding": "gzip;q=0"}).headers
    assert "content-encoding" not in client.get("/v1/gpus?limit=1", headers={"accept-encoding": "gzip"}).headers


def test_an_answer_changes_with_the_store_and_only_then() -> None:
    """The tag stays while nothing that the route reads changes, whatever else is written, and moves when it does."""
    with Store(None) as store:
        store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
        with served(create_app(store, clock_ns=Clock())) as client:
            first = client.get("/v1/gpus").headers["etag"]
            store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
            assert client.get("/v1/gpus").headers["etag"] == first, "equal content, equal tag"
            store.write({"scores": scores([{"gpu_uuid": "GPU-1", "speed": 0.9, "as_of_ns": START + 1}])})
            answer = client.get("/v1/gpus", headers={"if-none-match": first})
            assert (answer.status_code, answer.json()["items"][0]["speed"]) == (200, 0.9)


def test_readers_never_see_less_than_what_was_written_before_they_asked() -> None:
    """A write that has returned is in every answer that is asked for after it, under load from many readers."""
    with Store(None) as store, served(create_app(store, clock_ns=Clock())) as client:
        stop = threading.Event()

        def read() -> None:
            with httpx.Client(base_url=client.base_url) as mine:
                while not stop.is_set():
                    mine.get("/v1/gpus")

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for count in range(1, 16):
                store.write({"scores": scores([{"gpu_uuid": f"GPU-{count:02}"}])})
                assert client.get("/v1/gpus").json()["total"] == count
        finally:
            stop.set()
            for reader in readers:
                reader.join()


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    """A probe may ask for the headers alone."""
    answer = client.head("/v1/gpus")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["etag"] == client.get("/v1/gpus").headers["etag"]


def test_a_failed_build_is_logged_and_the_next_one_works(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be built is logged and answered 503; the next change is built and served as ever."""
    with Store(None) as store, served(create_app(store, clock_ns=Clock())) as client:
        with store.transaction() as cursor:
            cursor.execute("ALTER TABLE topology RENAME TO away")
        store.write({"scores": scores([{"gpu_uuid": "GPU-1"}])})
        assert client.get("/v1/gpus").status_code == 503
        deadline = time.monotonic() + 10
        while "could not be rebuilt" not in caplog.text:
            assert time.monotonic() < deadline, "the failure was not logged"
            time.sleep(0.01)
        with store.transaction() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO topology")
        store.write({"scores": scores([{"gpu_uuid": "GPU-2"}])})
        assert client.get("/v1/gpus").json()["total"] == 2


def test_a_build_that_the_clock_overtakes_is_not_served() -> None:
    """Who asks after the end of validity gets a new build, though one from before it is still under way."""
    clock, begun, go_on = Clock(0), threading.Event(), threading.Event()
    answers = Answers(clock_ns=clock, version_of=lambda *_: 1)

    def build() -> Built:
        now = clock.now_ns
        if now == 0:
            begun.set()
            go_on.wait(10)
        return Built(body={"built_at": now}, expires_ns=100 if now < 100 else 10**9)

    async def ask() -> bytes:
        return (await answers.get(("/", b""), "/", ("scores",), build)).body

    async def scenario() -> bytes:
        early = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait, 10)
        clock.now_ns = 100
        late = asyncio.create_task(ask())
        await asyncio.sleep(0.05)
        go_on.set()
        await early
        return await late

    assert asyncio.run(scenario()) == b'{"built_at":100}'
