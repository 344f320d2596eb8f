"""The contract of every transport, checked on real ones."""

import time

import pytest
from support.transports import Job, Site, out, read_all, spec, until, values

from streams import Committed, Revoked, TopicPartition
from streams.partition_log import partition_of
from telemetry.errors import Fenced, TransportError


def test_a_partition_keeps_its_order_and_a_key_its_partition(site: Site) -> None:
    """Messages of one key come back in the order they were sent, all from the partition that murmur2 names."""
    topic = site.topic(partitions=5)
    site.write(*(out(topic, f"node{i % 7}", str(i)) for i in range(200)))
    reader = site.transport.read({TopicPartition(topic, p): 0 for p in range(5)})
    messages = read_all(reader)
    assert sorted(int(m.value or b"") for m in messages) == list(range(200))
    for key in {m.key for m in messages}:
        of_key = [m for m in messages if m.key == key]
        assert [m.value for m in of_key] == sorted((m.value for m in of_key), key=lambda v: int(v or b""))
        assert {m.partition for m in of_key} == {partition_of(key or b"", 5)}
    reader.close()


def test_a_message_arrives_as_it_was_sent(site: Site) -> None:
    """Key, headers, None and empty values, and a chosen partition survive; the time is the log's own."""
    topic = site.topic(partitions=3)
    before = time.time_ns()
    site.write(
        out(topic, "k", "v", partition=2, **{"content-type": b"x", "node": "µ".encode()}),
        out(topic, "k", None, partition=2),
        out(topic, None, "", partition=2),
    )
    reader = site.transport.read({TopicPartition(topic, 2): 0})
    first, deletion, empty = read_all(reader)
    assert (first.topic, first.partition, first.key, first.value) == (topic, 2, b"k", b"v")
    assert dict(first.headers) == {"content-type": b"x", "node": "µ".encode()}
    assert (deletion.key, deletion.value, empty.key, empty.value) == (b"k", None, None, b"")
    assert [first.offset, deletion.offset, empty.offset] == [0, 1, 2]
    assert before - 2 * 10**9 < first.time_ns < time.time_ns() + 2 * 10**9
    reader.close()


def test_a_group_goes_on_from_its_place(site: Site) -> None:
    """The next member begins where the last one committed, and finds its metadata there."""
    topic = site.topic()
    tp = TopicPartition(topic, 0)
    site.write(*(out(topic, "k", str(i)) for i in range(10)))
    first = Job(site.transport.subscribe([topic], group="g", client_id="a"))
    until(lambda: len(first.messages) == 10, first)
    assert first.places() == {tp: None}
    first.source.commit({tp: Committed(6, '{"watermark": 7}')})
    first.source.close()
    second = Job(site.transport.subscribe([topic], group="g", client_id="b"))
    until(lambda: len(second.messages) == 4, second)
    assert second.places() == {tp: Committed(6, '{"watermark": 7}')}
    assert values(second.messages) == ["6", "7", "8", "9"]
    assert site.transport.committed("g", [tp]) == {tp: Committed(6, '{"watermark": 7}')}
    assert site.transport.committed("nobody", [tp]) == {}
    second.source.close()


def test_two_members_share_and_the_survivor_takes_over(site: Site) -> None:
    """A second member gets half of the partitions, nobody ever owns one twice, and a close gives them back."""
    topic = site.topic(partitions=4)
    first = Job(site.transport.subscribe([topic], group="g", client_id="a"))
    until(lambda: len(first.owned) == 4, first)
    second = Job(site.transport.subscribe([topic], group="g", client_id="b"))
    until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    assert not first.owned & second.owned
    site.write(*(out(topic, None, str(i), partition=i % 4) for i in range(40)))
    until(lambda: len(first.messages) + len(second.messages) == 40, first, second)
    first.source.commit({tp: Committed(10) for tp in first.owned})
    unread = len(second.messages)
    second.source.close()
    until(lambda: len(first.owned) == 4 and len(first.messages) == 40 - unread + 20, first)
    first.source.close()


def test_a_silent_member_is_put_out_and_nothing_is_lost(site: Site) -> None:
    """What a stuck member had read and not committed is read by the next; its late commit is dropped; it comes back."""
    topic = site.topic()
    tp = TopicPartition(topic, 0)
    site.write(*(out(topic, "k", str(i)) for i in range(5)))
    stuck = Job(site.impatient().subscribe([topic], group="g", client_id="stuck"))
    until(lambda: len(stuck.messages) == 5, stuck)
    other = Job(site.transport.subscribe([topic], group="g", client_id="other"))
    until(lambda: len(other.messages) == 5, other)
    other.source.commit({tp: Committed(2, "other's")})
    stuck.source.commit({tp: Committed(5, "late")})
    producer = site.transport.transactional_producer(transactional_id="stuck")
    with pytest.raises(TransportError):
        producer.publish([], group="g", places={tp: Committed(5, "late")}, source=stuck.source)
    producer.close()
    assert site.transport.committed("g", [tp]) == {tp: Committed(2, "other's")}
    until(lambda: any(isinstance(e, Revoked) for e in stuck.events), stuck, other)
    other.source.close()
    until(lambda: tp in stuck.owned and len(stuck.messages) == 8, stuck)
    assert values(stuck.messages[5:]) == ["2", "3", "4"]
    stuck.source.close()


def test_a_transaction_is_all_or_nothing(site: Site) -> None:
    """Messages and places of a transaction appear together, and one that is refused leaves no trace."""
    source_topic, compacted = site.topic(), site.topic(cleanup="compact")
    tp, other = TopicPartition(source_topic, 0), TopicPartition(compacted, 0)
    member = Job(site.transport.subscribe([source_topic], group="g", client_id="a"))
    until(lambda: member.owned, member)
    producer = site.transport.transactional_producer(transactional_id="scorer")
    places = {tp: Committed(3, "m"), other: Committed(1)}
    producer.publish([out(compacted, "a", "1")], group="g", places=places, source=member.source)
    with pytest.raises(TransportError):
        producer.publish(
            [out(compacted, "a", "2"), out(compacted, None, "no key")],
            group="g",
            places={tp: Committed(4)},
            source=member.source,
        )
    reader = site.transport.read({other: 0})
    assert values(read_all(reader, 1)) == ["1"]
    assert site.transport.committed("g", [tp, other]) == places
    producer.publish([out(compacted, "b", "3")], group="g", places={}, source=member.source)
    assert values(read_all(reader, 1)) == ["3"]
    for part in (reader, producer, member.source):
        part.close()


def test_a_newer_producer_fences_the_older(site: Site) -> None:
    """A scorer that wakes up after its successor has started can write nothing, again and again."""
    topic = site.topic(cleanup="compact")
    member = Job(site.transport.subscribe([topic], group="g", client_id="a"))
    old = site.transport.transactional_producer(transactional_id="scorer")
    old.publish([out(topic, "a", "old")], group="g", places={}, source=member.source)
    new = site.transport.transactional_producer(transactional_id="scorer")
    for _ in range(2):
        with pytest.raises(Fenced):
            old.publish([out(topic, "a", "zombie")], group="g", places={}, source=member.source)
    new.publish([out(topic, "a", "new")], group="g", places={}, source=member.source)
    reader = site.transport.read({TopicPartition(topic, 0): 0})
    until(lambda: len(member.messages) and member.messages[-1].value == b"new", member)
    assert b"zombie" not in [m.value for m in member.messages]
    assert values(read_all(reader, 1))[-1] in ("old", "new")  # compaction may have been faster
    for part in (reader, old, new, member.source):
        part.close()


def test_a_compacted_topic_tells_the_newest_value_and_deletions(site: Site) -> None:
    """Whoever reads from the start ends with the newest value of every key, and hears of deleted ones."""
    topic = site.topic(cleanup="compact")
    site.write(*(out(topic, f"gpu{i % 3}", str(i)) for i in range(30)), out(topic, "gpu1", None))
    reader = site.transport.read({TopicPartition(topic, 0): 0})
    state = {m.key: m.value for m in read_all(reader)}
    assert state == {b"gpu0": b"27", b"gpu1": None, b"gpu2": b"29"}
    reader.close()


def test_topics_that_differ_are_all_named(site: Site) -> None:
    """Asking again is fine; other settings are refused, each one named, and nothing is changed."""
    wanted = [spec("telemetry", partitions=2), spec("scores", cleanup="compact"), spec("events")]
    site.transport.ensure_topics(wanted)
    site.transport.ensure_topics(wanted)
    with pytest.raises(TransportError) as refused:
        site.transport.ensure_topics([spec("telemetry", partitions=4), spec("scores"), spec("events"), spec("new")])
    text = str(refused.value)
    assert "telemetry" in text
    assert "scores" in text
    assert "events" not in text
    assert [site.transport.partitions(name) for name in ("telemetry", "scores")] == [2, 1]


def test_a_topic_that_is_absent_is_an_error(site: Site) -> None:
    """Nobody waits for ever on a topic that was never created."""
    with pytest.raises(TransportError, match="absent"):
        site.transport.subscribe(["absent"], group="g", client_id="a")
    with pytest.raises(TransportError, match="absent"):
        site.transport.partitions("absent")


def test_a_reader_knows_when_it_has_caught_up(site: Site) -> None:
    """Empty, at the end, behind again: `caught_up` says so, with messages of transactions among the others too."""
    topic = site.topic()
    tp = TopicPartition(topic, 0)
    reader = site.transport.read({tp: 0})
    assert read_all(reader) == []
    site.write(*(out(topic, "k", str(i)) for i in range(3)))
    assert not reader.caught_up()
    assert values(read_all(reader)) == ["0", "1", "2"]
    assert reader.positions() == {tp: 3}
    later = site.transport.read({tp: 2})
    assert values(read_all(later)) == ["2"]
    beyond = site.transport.read({tp: 1_000})
    assert values(read_all(beyond)) == ["0", "1", "2"]
    for part in (reader, later, beyond):
        part.close()


def test_a_paused_partition_waits_and_loses_nothing(site: Site) -> None:
    """While one partition is paused the others go on; resumed, it goes on where it stopped."""
    topic = site.topic(partitions=2)
    job = Job(site.transport.subscribe([topic], group="g", client_id="a"))
    until(lambda: len(job.owned) == 2, job)
    job.source.pause([TopicPartition(topic, 0)])
    site.write(*(out(topic, None, str(i), partition=i % 2) for i in range(10)))
    until(lambda: len(job.messages) == 5, job)
    job.step(timeout_s=0.5)
    assert {m.partition for m in job.messages} == {1}
    job.source.resume([TopicPartition(topic, 0)])
    until(lambda: len(job.messages) == 10, job)
    assert values(job.messages[5:]) == ["0", "2", "4", "6", "8"]
    job.source.close()


def test_a_log_is_known_by_its_id(site: Site) -> None:
    """The same log has the same id, however often it is asked."""
    assert site.transport.log_id
    assert site.transport.log_id == site.transport.log_id
