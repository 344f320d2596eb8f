"""Checks of Kafka: reached, let in, topics as they must be, of the same time. Nothing is created or written.

To check another thing there: `kafka`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isotach import roles
from isotach.checks.finding import Finding
from telemetry.errors import IsotachError, SettingsError, TransportRefused

if TYPE_CHECKING:
    from streams.kafka import KafkaTransport

KAFKA_TIMEOUT_S = 5.0
RECORD_PATIENCE_S = 3.0  #: how long a record is waited for whose time tells the broker's
CLOCK_OFFSET_LIMIT_S = 5.0
NOTHING_SENT = "nothing is sent or read: an agent keeps what fits into its memory, then drops the oldest"


def kafka(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """The broker and the topics, if --bootstrap is given."""
    if not settings["bootstrap"]:
        yield Finding(check="kafka", state="note", seen="no --bootstrap: this set-up runs without Kafka")
        return
    try:
        transport = roles.kafka_untouched(settings, timeout_s=KAFKA_TIMEOUT_S)
    except ModuleNotFoundError:
        yield _wrong("no client", "pip install 'isotach[agent]'")
        return
    except SettingsError as error:
        yield _wrong(str(error), "mend the setting; docs/transports.md lists them")
        return
    try:
        yield from _reached(settings, transport)
    finally:
        transport.close()


def _wrong(seen: str, remedy: str) -> Finding:
    return Finding(check="kafka", state="wrong", seen=seen, lost=NOTHING_SENT, remedy=remedy)


def _reached(settings: Mapping[str, Any], transport: "KafkaTransport") -> Iterator[Finding]:
    try:
        transport.reach(timeout_s=KAFKA_TIMEOUT_S)
    except TransportRefused as error:
        tls = "TLS" in str(error)
        remedy = "check --kafka-ca-file, and the name in --bootstrap against the broker's certificate"
        yield _wrong(str(error), remedy if tls else "check --kafka-username, --kafka-password-file and the mechanism")
        return
    except IsotachError as error:
        yield _wrong(str(error), "check --bootstrap, the broker, the network, and --kafka-security-protocol")
        return
    yield Finding(check="kafka", state="ok", seen=f"reached at {settings['bootstrap']}")
    try:
        missing, differences = transport.examine(roles.topics(settings))
    except IsotachError as error:
        remedy = "give this user Describe and DescribeConfigs on the topics (docs/transports.md)"
        yield Finding(check="kafka topics", state="note", seen=str(error), lost="this check", remedy=remedy)
        return
    for difference in differences:
        seen, _, remedy = difference.partition(": ")
        lost = "window, score and serve do not start"
        yield Finding(check="kafka topics", state="wrong", seen=seen, lost=lost, remedy=remedy)
    if missing:
        seen = f"{len(missing)} are not there yet: {', '.join(missing)}"
        remedy = "the first process that starts makes them, if it has the right Create"
        yield Finding(check="kafka topics", state="note", seen=seen, lost="nothing runs yet", remedy=remedy)
    elif not differences:
        yield Finding(check="kafka topics", state="ok", seen="all there, as they must be")
    if not missing:
        yield from _clock(transport)


def _clock(
    transport: "KafkaTransport",
    *,
    clock_ns: Callable[[], int] = time.time_ns,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Finding]:
    """Our clock against the broker's, which stamps each record as it takes it in; as records come, so not always."""
    from streams.topics import TELEMETRY

    offset_s = None
    try:
        reader = transport.read(transport.ends(TELEMETRY))
        try:
            deadline = monotonic() + RECORD_PATIENCE_S
            while offset_s is None and monotonic() < deadline:
                for message in reader.poll(timeout_s=0.2):
                    offset_s = (clock_ns() - message.time_ns) / 1e9
        finally:
            reader.close()
    except IsotachError as error:
        yield Finding(check="kafka clock", state="note", seen=f"not compared: {error}")
        return
    if offset_s is None:
        yield Finding(check="kafka clock", state="note", seen="not compared: no telemetry came in while we looked")
        return
    wrong = abs(offset_s) > CLOCK_OFFSET_LIMIT_S
    yield Finding(
        check="kafka clock",
        state="wrong" if wrong else "ok",
        seen=f"{offset_s:+.1f} s against the broker",
        lost="samples from the future are set aside, old ones come late" if wrong else "",
        remedy="run NTP or chrony on both" if wrong else "",
    )
