"""The transports that the contract tests run over: every one in `streams.TRANSPORTS`."""

import uuid
from collections.abc import Iterator

import pytest
from support.transports import Site

from streams import TRANSPORTS
from streams.memory import MemoryTransport


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.kafka] if name == "kafka" else []) for name in TRANSPORTS]
)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A log of the test's own, in each transport."""
    made = {"kafka": _kafka, "memory": _memory}[request.param](request)
    yield made
    made.transport.close()


def _memory(request: pytest.FixtureRequest) -> Site:
    transport = MemoryTransport(session_timeout_s=1.0)
    return Site(transport=transport, impatient=lambda: transport, silence_s=1.0)


def _kafka(request: pytest.FixtureRequest) -> Site:
    from streams.kafka import KafkaTransport

    broker = request.getfixturevalue("kafka_broker")
    prefix = f"test-{uuid.uuid4().hex[:8]}."
    shortest = max(broker.shortest_session_s, 2.0)
    transport = KafkaTransport(bootstrap=broker.bootstrap, prefix=prefix, session_timeout_s=max(shortest, 4.0))

    def impatient() -> KafkaTransport:
        opened = KafkaTransport(
            bootstrap=broker.bootstrap,
            prefix=prefix,
            session_timeout_s=shortest,
            overrides={"max.poll.interval.ms": str(round(shortest * 1_000))},
        )
        request.addfinalizer(opened.close)
        return opened

    return Site(transport=transport, impatient=impatient, silence_s=shortest)
