"""Consumer groups of the in-memory log: who is a member, who owns which partition, and how far the group has come.

To change how partitions are spread: `_spread`. Pure bookkeeping: `memory.py` holds the lock and the clock.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from streams import Committed, TopicPartition

_log = logging.getLogger("isotach.memory")


class Group:
    """One consumer group.

    A partition that moves is first taken from its owner, when that one polls, and only then given to the next: no
    two members ever own it, and the first may commit until the moment it lets go.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[TopicPartition, Committed] = {}
        self.topics: set[str] = set()  #: topics that members have subscribed to, ever
        self._members: dict[str, Sequence[str]] = {}  # in the order of joining
        self._deadlines: dict[str, float] = {}
        self._target: dict[TopicPartition, str] = {}
        self._owner: dict[TopicPartition, str] = {}

    def join(self, member: str, topics: Sequence[str], counts: Mapping[str, int]) -> None:
        """Add a member of these topics, `counts` partitions each; partitions are spread anew."""
        self._members[member] = tuple(topics)
        self.topics.update(topics)
        self._spread(counts)

    def leave(self, member: str, counts: Mapping[str, int]) -> None:
        """Take a member out; what it owned is free at once."""
        if self._members.pop(member, None) is None:
            return
        self._deadlines.pop(member, None)
        self._owner = {tp: owner for tp, owner in self._owner.items() if owner != member}
        self._spread(counts)

    def alive(self, member: str) -> bool:
        """Whether it is still a member."""
        return member in self._members

    def touch(self, member: str, deadline: float | None) -> None:
        """The member is here and must be heard of again before the deadline; None while it waits in a poll."""
        if deadline is None:
            self._deadlines.pop(member, None)
        elif member in self._members:
            self._deadlines[member] = deadline

    def expire(self, now: float, counts: Mapping[str, int]) -> None:
        """Put out the members that have been silent for too long."""
        for member in [member for member, deadline in self._deadlines.items() if deadline <= now]:
            _log.warning("group %s: member %s was silent for too long and is put out", self.name, member)
            self.leave(member, counts)

    def next_deadline(self) -> float | None:
        """When the next silent member would be put out."""
        return min(self._deadlines.values(), default=None)

    def owned(self, member: str) -> set[TopicPartition]:
        """Partitions that the member owns now."""
        return {tp for tp, owner in self._owner.items() if owner == member}

    def release(self, member: str) -> list[TopicPartition]:
        """Partitions that the member must let go, free from now on."""
        gone = sorted(tp for tp, owner in self._owner.items() if owner == member and self._target.get(tp) != member)
        for tp in gone:
            del self._owner[tp]
        return gone

    def claim(self, member: str) -> list[TopicPartition]:
        """Free partitions that are meant for the member, its own from now on."""
        gained = sorted(tp for tp, target in self._target.items() if target == member and tp not in self._owner)
        for tp in gained:
            self._owner[tp] = member
        return gained

    def place(self, places: Iterable[tuple[TopicPartition, Committed]]) -> None:
        """Remember how far the group has come."""
        self.places.update(places)

    def _spread(self, counts: Mapping[str, int]) -> None:
        """Range assignment: each topic's partitions in equal runs over its subscribers, in the order of joining."""
        self._target = {}
        for topic in self.topics:
            members = [member for member, topics in self._members.items() if topic in topics]
            count = counts[topic]
            for i, member in enumerate(members):
                first, last = i * count // len(members), (i + 1) * count // len(members)
                self._target.update((TopicPartition(topic, p), member) for p in range(first, last))
