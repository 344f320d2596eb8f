"""The replay collector: the same samples, at the speed that was asked for."""

from array import array
from dataclasses import replace

import pytest
from support.recording import START_NS, batch

from collectors.replay import Replay
from telemetry.errors import EndOfInput, NoData, SettingsError
from telemetry.records import NodeInventory, SampleBatch


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return 2_000_000_000 * 10**9 + round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def ten_seconds(number: int, **more: object) -> SampleBatch:
    return batch(start_ns=START_NS + number * 10 * 10**9, samples=10, **more)  # type: ignore[arg-type]


def everything(replay: Replay) -> list[SampleBatch]:
    found: list[SampleBatch] = []
    while True:
        try:
            found += replay.collect().samples
        except NoData:
            continue
        except EndOfInput:
            return found


def test_a_recording_is_given_whole_and_once() -> None:
    """As fast as it goes, with its own times: every batch, in order, then the end, again and again."""
    batches = [ten_seconds(0), batch(samples=0), ten_seconds(1), ten_seconds(2, node="n2")]
    replay = Replay(batches=iter(batches))
    assert everything(replay) == [batches[0], batches[2], batches[3]]
    with pytest.raises(EndOfInput):
        replay.collect()


@pytest.mark.parametrize(("speed", "seconds"), [(1.0, 29.0), (10.0, 2.9), (0.5, 58.0)])
def test_time_passes_at_the_speed_asked_for(speed: float, seconds: float) -> None:
    """A batch comes when its last sample would have been taken, so many times as fast."""
    clock = Clock()
    replay = Replay(
        batches=[ten_seconds(i) for i in range(3)],
        speed=speed,
        clock_ns=clock.time_ns,
        monotonic=clock.monotonic,
        sleep=clock.sleep,
    )
    assert len(everything(replay)) == 3
    assert clock.now - 1000.0 == pytest.approx(seconds)


def test_a_call_does_not_wait_long() -> None:
    """An agent that wants to stop is not held for the length of a gap in the recording."""
    clock = Clock()
    replay = Replay(
        batches=[ten_seconds(0), ten_seconds(1000)], speed=1.0, monotonic=clock.monotonic, sleep=clock.sleep
    )
    with pytest.raises(NoData, match="next batch is due"):
        replay.collect()
    assert clock.now - 1000.0 <= 0.5


@pytest.mark.parametrize("buffers", [False, True])
def test_times_are_moved_to_now_by_one_amount(buffers: bool) -> None:
    """The first sample is now, and the distances between samples stay."""
    clock = Clock()
    batches = [ten_seconds(0), ten_seconds(3)]
    if buffers:
        batches = [replace(one, time_ns=array("q", one.time_ns)) for one in batches]
    moved = everything(Replay(batches=batches, rebase="now", clock_ns=clock.time_ns))
    shift = clock.time_ns() - START_NS
    assert [list(one.time_ns) for one in moved] == [[t + shift for t in one.time_ns] for one in batches]
    assert moved[0].columns == batches[0].columns


def test_a_loop_goes_on_where_the_last_round_ended() -> None:
    """The second round begins one interval after the end of the first: no sample twice, none out of order."""
    replay = Replay(batches=[ten_seconds(0), ten_seconds(1)], loop=True)
    times = [t for _ in range(5) for one in replay.collect().samples for t in one.time_ns[::2]]
    assert times == [START_NS + i * 10**9 for i in range(50)]


def test_a_loop_over_nothing_ends() -> None:
    """An empty recording is at its end at once, loop or not."""
    with pytest.raises(EndOfInput):
        Replay(batches=[], loop=True).collect()


def test_inventory_comes_first_and_once() -> None:
    """Whoever reads the log knows the GPUs before their samples."""
    record = NodeInventory(node="n1", seen_ns=START_NS, gpus=())
    replay = Replay(batches=[ten_seconds(0), ten_seconds(1)], inventory=[record])
    assert [list(replay.collect().inventory) for _ in range(2)] == [[record], []]


def test_a_running_ahead_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Moved to now and replayed faster than it was recorded, samples come from the future: the log says so."""
    clock = Clock()
    everything(Replay(batches=[ten_seconds(i) for i in range(30)], rebase="now", clock_ns=clock.time_ns))
    assert sum("ahead of the clock" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"speed": 0.0}, "speed of a replay is 0"),
        ({"speed": float("inf")}, "speed of a replay is inf"),
        ({"rebase": "tomorrow"}, "rebase of a replay"),
        ({"loop": True, "batches": iter(())}, "can be read again"),
    ],
)
def test_settings_that_make_no_sense_are_refused(more: dict[str, object], message: str) -> None:
    """The text names what is wrong."""
    with pytest.raises(SettingsError, match=message):
        Replay(**({"batches": []} | more))  # type: ignore[arg-type]


def test_closing_lets_go_of_the_recording() -> None:
    """The reader behind it is closed, and closing twice does no harm."""
    closed = []

    def reader() -> object:
        try:
            yield ten_seconds(0)
            yield ten_seconds(1)
        finally:
            closed.append(True)

    replay = Replay(batches=reader())  # type: ignore[arg-type]
    replay.collect()
    replay.close()
    replay.close()
    assert closed == [True]
