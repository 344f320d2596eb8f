"""One partition of the in-memory log: messages by offset, compaction by key, and the murmur2 rule for keys.

To change what is kept: here for one partition, `memory.py` for who still needs it.
"""

from bisect import bisect_left
from functools import lru_cache

from streams import Message

_MASK = 0xFFFF_FFFF
_CUT = 1_024  # dead entries at the front before the lists are cut: keeps trimming linear over a log's life


@lru_cache(maxsize=65_536)
def murmur2(key: bytes) -> int:
    """The hash that Kafka's Java clients and librdkafka's `murmur2_random` take of a key: 32 bits, as Austin Appleby's
    MurmurHash2 with seed 0x9747b28c."""
    length = len(key)
    m = 0x5BD1_E995
    h = 0x9747_B28C ^ length
    whole = length - length % 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & _MASK
        k = (k ^ k >> 24) * m & _MASK
        h = h * m & _MASK ^ k
    if whole < length:
        h = (h ^ int.from_bytes(key[whole:], "little")) * m & _MASK
    h = (h ^ h >> 13) * m & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among so many."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions


class PartitionLog:
    """Messages of one partition in offset order; a compacted one keeps the newest message of each key."""

    __slots__ = ("_head", "_latest", "_messages", "_offsets", "alive", "compact", "next_offset", "tombstones")

    def __init__(self, *, compact: bool, next_offset: int = 0) -> None:
        self.compact = compact
        self.next_offset = next_offset
        self.alive = 0  #: messages held
        self.tombstones: dict[int, int] = {}  #: offset -> time_ns of deletions still held, oldest first
        self._offsets: list[int] = []
        self._messages: list[Message | None] = []
        self._head = 0
        self._latest: dict[bytes, int] = {}

    def append(self, message: Message) -> int | None:
        """Add a message at its offset, which is at or past `next_offset`; returns the offset that it supersedes."""
        self._offsets.append(message.offset)
        self._messages.append(message)
        self.next_offset = message.offset + 1
        self.alive += 1
        if not self.compact or message.key is None:
            return None
        before = self._latest.get(message.key)
        self._latest[message.key] = message.offset
        if message.value is None:
            self.tombstones[message.offset] = message.time_ns
        if before is not None:
            self.drop(before)
        return before

    def first(self, offset: int = 0) -> Message | None:
        """The first message held at or past an offset."""
        found = self.read(offset, 1)
        return found[0] if found else None

    def read(self, offset: int, limit: int) -> list[Message]:
        """Up to `limit` messages at or past an offset."""
        i = bisect_left(self._offsets, offset, self._head)
        found: list[Message] = []
        while i < len(self._messages) and len(found) < limit:
            message = self._messages[i]
            if message is not None:
                found.append(message)
            i += 1
        return found

    def drop(self, offset: int) -> None:
        """Forget one message, if it is held."""
        i = bisect_left(self._offsets, offset, self._head)
        if i >= len(self._offsets) or self._offsets[i] != offset:
            return
        message = self._messages[i]
        if message is None:
            return
        self._messages[i] = None
        self.alive -= 1
        self.tombstones.pop(offset, None)
        if message.key is not None and self._latest.get(message.key) == offset:
            del self._latest[message.key]
        self._tidy()

    def trim(self, before: int) -> int:
        """Forget everything below an offset; returns how many messages went."""
        i = bisect_left(self._offsets, before, self._head)
        gone = [message for message in self._messages[self._head : i] if message is not None]
        if self.compact:
            for message in gone:
                self.drop(message.offset)
            return len(gone)
        self._messages[self._head : i] = [None] * (i - self._head)
        self._head = i
        self.alive -= len(gone)
        self._tidy()
        return len(gone)

    def newest(self, count: int) -> int:
        """The offset from which `count` messages are left, for a log without holes."""
        return max(self.next_offset - count, 0)

    def _tidy(self) -> None:
        if len(self._offsets) - self.alive <= max(_CUT, self.alive):
            return
        held = [(o, m) for o, m in zip(self._offsets, self._messages, strict=True) if m is not None]
        self._offsets = [offset for offset, _ in held]
        self._messages = [message for _, message in held]
        self._head = 0
