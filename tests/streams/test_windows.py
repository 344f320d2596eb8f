"""Tests of the state machine of windows. `support/window_machine.py` drives it as the job does.

To add a case of the log's order: a strategy for `messages`.
"""

import itertools

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import SECOND, START, batch, gpu, message, numbered, rows_batch
from support.window_machine import NOW, WIDTH, Machine, make, same

from streams import Committed, Message
from streams.decode import decode
from streams.partition import EMPTY_AFTER


@st.composite
def logs(draw: st.DrawFn) -> list[Message]:
    """A partition: mostly moving on in time, with rows late, early, repeated, out of order, and from the future."""
    made, clock = [], 0.0
    for i in range(draw(st.integers(1, 14))):
        clock += draw(st.sampled_from([0, 1, 4, 9, 25, 130]))
        shifts = st.sampled_from([0, 0, 1, 2, 3, 7, -3, -8, -20, -30, -120, 12, 60])
        rows = [
            (draw(st.integers(0, 1)), max(0.0, clock + shift))
            for shift in draw(st.lists(shifts, min_size=1, max_size=5))
        ]
        node = draw(st.sampled_from(["n1", "n2", "n3"]))
        taken = START + int((clock + draw(st.sampled_from([0, 2, 30]))) * SECOND)
        made.append(message(rows_batch(node, rows, value=float(i)), offset=i * 2, time_ns=taken))  # gaps in offsets
    return made


def _cut(messages: list[Message], cuts: list[int]) -> list[list[Message]]:
    edges = sorted({0, len(messages), *(cut % (len(messages) + 1) for cut in cuts)})
    return [messages[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=25, deadline=None)
@given(logs(), st.lists(st.integers(0, 20), max_size=6))
def test_any_batching_gives_the_same_windows(messages: list[Message], cuts: list[int]) -> None:
    """Windows, refusals and places depend on the log, not on how it was cut into batches."""
    single, batched = Machine(), Machine()
    for one in messages:
        single.add([one])
    for part in _cut(messages, cuts):
        batched.add(part)
    same(single, batched)
    assert single.refused == batched.refused
    assert single.windows.place(0) == batched.windows.place(0)
    assert single.windows.open_rows == batched.windows.open_rows


@settings(max_examples=40, deadline=None)
@given(logs(), st.data())
def test_a_crash_anywhere_changes_nothing(messages: list[Message], data: st.DataObject) -> None:
    """Dropping everything at any moment and reading again from the last place publishes equal windows, none less."""
    silences = data.draw(st.dictionaries(st.integers(0, len(messages) - 1), st.sampled_from([3, 17, 45]), max_size=2))
    whole, broken = Machine(), Machine()
    for i, one in enumerate(messages):
        whole.add([one])
        if i in silences:
            whole.idle(silences[i])
    at, silent = 0, dict(silences)
    for _ in range(3 * len(messages) + 20):
        if at >= len(messages):
            break
        step = data.draw(st.integers(1, 3))
        step = min([step, *(i + 1 - at for i in silent if i >= at)])
        broken.add(messages[at : at + step])
        at += step
        if at - 1 in silent:
            broken.idle(silent.pop(at - 1))
        action = data.draw(st.sampled_from(["on", "on", "commit", "crash"]))
        if action == "commit":
            broken.commit()
        elif action == "crash":
            offset = broken.crash()
            at = next((i for i, one in enumerate(messages) if one.offset >= offset), len(messages))
    broken.add(messages[at:])
    same(whole, broken)
    assert set(whole.refused) == set(broken.refused)
    assert whole.windows.place(0)[0] == broken.windows.place(0)[0]


@settings(max_examples=15, deadline=None)
@given(logs(), st.data())
def test_a_message_read_twice_changes_nothing(messages: list[Message], data: st.DataObject) -> None:
    """A log that gives a message again, as after a rebalance, gives the same windows and refuses nothing twice."""
    once, twice = Machine(), Machine()
    for i, one in enumerate(messages):
        once.add([one])
        twice.add([*messages[data.draw(st.integers(0, i)) : i], one])
    same(once, twice)
    assert once.refused == twice.refused


@settings(max_examples=10, deadline=None)
@given(st.permutations(["n1", "n2", "n3", "n4"]))
def test_the_order_of_nodes_in_a_batch_does_not_matter(order: list[str]) -> None:
    """Nodes that report the same seconds, no longer than the lateness, may come in any order."""
    one, other = Machine(windows=make(lateness_s=10)), Machine(windows=make(lateness_s=10))
    for first in (0, 8, 16):
        names = ["n1", "n2", "n3", "n4"]
        one.add(
            [
                message(batch(n, first_s=first, seconds=8), offset=first * 4 + i, time_ns=NOW)
                for i, n in enumerate(names)
            ]
        )
        other.add(
            [
                message(batch(n, first_s=first, seconds=8), offset=first * 4 + i, time_ns=NOW)
                for i, n in enumerate(order)
            ]
        )
    same(one, other)
    assert one.starts() == [0]


def test_a_duplicate_under_another_offset_counts_once() -> None:
    """A producer that sends its batch again adds no samples; the first one stays."""
    machine = Machine()
    first, again = rows_batch("n1", [(0, 1), (0, 2)], value=1), rows_batch("n1", [(0, 1), (0, 2)], value=2)
    machine.add(numbered([first, again, rows_batch("n1", [(0, 16)])], time_ns=NOW))
    assert machine.published[START]["power_w"].to_list() == [1.0, 1.0]


def test_one_row_from_the_future_makes_no_other_row_late() -> None:
    """A row stamped a day ahead is set aside, and the ten on-time rows after it are all used."""
    machine = Machine()
    honest = [rows_batch("n1", [(0, second)]) for second in range(30)]
    future = rows_batch("n2", [(0, 86_399)])
    messages = [message(one, offset=i, time_ns=START + 31 * SECOND) for i, one in enumerate([*honest, future, *honest])]
    machine.add(messages)
    assert [rule for _, rule, _ in machine.refused if rule == "future"] == ["future"]
    repeated = [row for row in machine.refused if row[0] > 30 and row[2] >= START + 20 * SECOND]
    assert repeated == []


def test_a_clock_a_little_fast_makes_nobody_late() -> None:
    """A node 15 s ahead, within the allowed skew, does not move the watermark beyond the time of the log."""
    machine = Machine()
    machine.add([message(rows_batch("fast", [(0, 25)]), offset=0, time_ns=START + 10 * SECOND)])
    machine.add([message(rows_batch("n1", [(0, 9)]), offset=1, time_ns=START + 10 * SECOND)])
    assert machine.refused == []


def test_a_late_row_is_refused_again_after_a_restart() -> None:
    """The window was published, the job restarted, the late row came then: the same decision as without the restart."""
    machine = Machine()
    machine.add(numbered([rows_batch("n1", [(0, second)]) for second in (1, 5, 12, 18)], time_ns=NOW))
    assert machine.starts() == [0]
    machine.commit()
    offset = machine.crash()
    late = message(rows_batch("n1", [(0, 6)]), offset=4, time_ns=NOW)
    again = numbered([rows_batch("n1", [(0, second)]) for second in (1, 5, 12, 18)], time_ns=NOW)[offset:]
    machine.add([*again, late])
    assert machine.refused == [(4, "late", START + 6 * SECOND)]
    assert machine.starts() == [0]


def test_refusals_before_the_place_are_not_told_again() -> None:
    """What a restart reads again only for its rows sends no second dead letter."""
    machine = Machine()
    log = numbered(
        [rows_batch("n1", [(0, 1)]), rows_batch("n2", [(0, 999)]), rows_batch("n1", [(0, 2)])], time_ns=START
    )
    machine.add(log)
    machine.commit()
    assert machine.crash() == 0
    assert [machine.windows.is_new(one) for one in log] == [False, False, False]
    machine.add(log)
    assert len(machine.refused) == 1


def test_the_counter_base_is_the_last_row_of_the_window_before() -> None:
    """Each window starts with one carried row a GPU, and with none after a window without rows."""
    machine = Machine()
    rows = [[(0, 3), (1, 4)], [(0, 8)], [(0, 11), (1, 12)], [(0, 33)], [(0, 60)]]
    machine.add(numbered([rows_batch("n1", one) for one in rows], time_ns=NOW))
    window = machine.published[START + WIDTH]
    carried = window.filter("carry").select("gpu_uuid", (pl.col("time_ns") - START) // SECOND)
    assert carried.rows() == [(gpu("n1", 0), 8), (gpu("n1", 1), 4)]
    assert not machine.published[START + 3 * WIDTH]["carry"].any()


def test_a_silent_partition_closes_its_last_window_and_goes_on_telling() -> None:
    """Without any more messages the watermark moves with the clock: the last window closes, then empty ones."""
    machine = Machine()
    machine.add(numbered([rows_batch("n1", [(0, 1), (0, 9)])], time_ns=NOW))
    assert machine.starts() == []
    machine.idle(7)
    assert machine.starts() == [0]
    machine.idle(17)
    machine.idle(27)
    assert list(machine.published) == [START, START + WIDTH, START + 2 * WIDTH]


def test_a_silence_is_remembered_over_a_restart() -> None:
    """What came too late after a silence is too late after a restart as well."""
    machine = Machine()
    log = numbered([rows_batch("n1", [(0, 1), (0, 9)]), rows_batch("n1", [(0, 9.5)])], time_ns=NOW)
    machine.add(log[:1])
    machine.idle(20)
    at = machine.crash()
    machine.add(log[at:])
    assert [rule for _, rule, _ in machine.refused] == ["late"]


def test_a_partition_never_heard_tells_progress_and_stays_open() -> None:
    """An empty partition holds nobody back, and takes old samples when they come."""
    machine = Machine()
    closed = machine.windows.idle(0, silent_ns=60 * SECOND, now_ns=NOW)
    assert [(one.progress, one.window_end_ns) for one in closed] == [(True, START + 90 * SECOND)]
    machine.add(numbered([rows_batch("n1", [(0, 1), (0, 16)])], time_ns=NOW))
    assert machine.refused == []
    assert machine.starts() == [0]


def test_a_jump_in_time_does_not_publish_every_empty_window() -> None:
    """A gap of a month costs a few empty windows and one message of progress, not forty thousand."""
    machine = Machine()
    month = 30 * 86_400
    messages = numbered([rows_batch("n1", [(0, 1)]), rows_batch("n1", [(0, month)])], time_ns=START + month * SECOND)
    added = machine.windows.add(messages, decode(messages))
    assert len(added.closed) == 1 + EMPTY_AFTER + 1
    assert added.closed[-1].progress
    assert added.closed[-1].window_end_ns == START + (month - 10) * SECOND


def test_old_samples_are_as_good_as_new_ones() -> None:
    """A recording of thirty days ago, taken in today, loses no sample."""
    machine = Machine()
    today = START + 30 * 86_400 * SECOND
    machine.add(numbered([batch("n1", first_s=first) for first in range(0, 60, 10)], time_ns=today))
    assert machine.refused == []
    assert machine.starts() == [0, 10, 20, 30, 40]


def test_metadata_of_another_making_is_no_memory() -> None:
    """After an operator's tool has set the group's offsets, reading begins there as for the first time."""
    for metadata in ("", "{", "[1]", '{"position": "x"}', '{"advances": [1]}', "null", '{"watermark": "soon"}'):
        windows = make()
        windows.assign(0, Committed(7, metadata))
        assert windows.position(0) == 7
        assert len(windows.place(0).metadata) < 100


def test_rows_of_a_revoked_partition_are_forgotten() -> None:
    """A partition that went to another member holds no memory here, and its messages in flight are left out."""
    machine = Machine()
    messages = numbered([rows_batch("n1", [(0, 1)])], time_ns=NOW)
    machine.add(messages)
    machine.windows.revoke(0)
    assert machine.windows.open_rows == 0
    assert machine.windows.add(messages, decode(messages)).accepted == 0


def test_the_delay_of_a_message_is_that_of_its_newest_sample() -> None:
    """How long after its message's newest sample the log took the message in; below 0 if the node's clock is fast."""
    machine = Machine()
    rows = [[(0, 1), (0, 3)], [(1, 6)], [(0, 8), (1, 999)], [(0, 21)]]
    taken = [5.0, 5.0, 9.5, 21.0]
    messages = [
        message(rows_batch("n1", one), offset=i, time_ns=START + int(at * SECOND))
        for i, (one, at) in enumerate(zip(rows, taken, strict=True))
    ]
    machine.add(messages)
    window = machine.published[START]
    assert window.select("gpu_uuid", "delivery_delay_s").rows() == [
        (gpu("n1", 0), 2.0),
        (gpu("n1", 0), 2.0),
        (gpu("n1", 0), 1.5),
        (gpu("n1", 1), -1.0),
    ]
