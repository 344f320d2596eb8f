"""The file behind the in-memory log: what is acknowledged is on disk, and a restart goes on from there.

To change the format: raise `VERSION` and migrate in `_prepare`; `memory.py` decides what is written and what goes.
"""

import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from streams import Committed, Message, TopicPartition, TopicSpec
from telemetry.errors import StoreError

APPLICATION_ID = 0x49534F54  # "ISOT": tells our files from other SQLite files
VERSION = 1

_SCHEMA = """
create table meta (name text primary key, value text not null) without rowid;
create table topics (name text primary key, partitions integer not null, cleanup text not null,
    retention_ms integer) without rowid;
create table ends (topic text not null, partition integer not null, next_offset integer not null,
    primary key (topic, partition)) without rowid;
create table messages (topic text not null, partition integer not null, offset integer not null,
    time_ns integer not null, key blob, headers text not null, value blob);
create unique index message_places on messages (topic, partition, offset);
create table places (consumers text not null, topic text not null, partition integer not null,
    offset integer not null, metadata text not null, primary key (consumers, topic, partition)) without rowid;
"""


class StoredTopic(NamedTuple):
    """A topic as it was created."""

    name: str
    partitions: int
    cleanup: str
    retention_ms: int | None


class Journal:
    """A SQLite file with every message that somebody may still need, and the groups' places.

    WAL with synchronous=FULL: `append` returns after an fsync, so that what was acknowledged survives a power cut too;
    NORMAL would survive a killed process only. Locked for as long as it is open: a second process is refused.
    Raises StoreError, naming the file and the remedy, for a file that is locked, damaged, foreign or newer. Not for
    use by several threads at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path} cannot be opened ({error}): check the folder and its owner") from None
        try:
            self._prepare()
            self.log_id = str(self._db.execute("select value from meta where name = 'log_id'").fetchone()[0])
        except (sqlite3.Error, TypeError) as error:
            self._db.close()
            raise self._explained(error) from None
        except StoreError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        self._db.execute("pragma locking_mode = exclusive")
        self._db.execute("begin exclusive")  # takes the lock now, not at the first write
        (application,) = self._db.execute("pragma application_id").fetchone()
        (version,) = self._db.execute("pragma user_version").fetchone()
        (tables,) = self._db.execute("select count(*) from sqlite_master").fetchone()
        if application != APPLICATION_ID and (application or tables):
            raise StoreError(f"{self.path} is a database of another program; name another file for the journal")
        if version > VERSION:
            raise StoreError(f"{self.path} was made by a newer version (format {version}, this is {VERSION}): upgrade")
        self._db.execute("rollback")
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        damage = self._db.execute("pragma quick_check(1)").fetchone()
        if damage != ("ok",):
            raise sqlite3.DatabaseError(str(damage and damage[0]))
        if tables == 0:
            self._db.executescript(f"begin exclusive; {_SCHEMA} commit")
            self._db.execute("begin exclusive")
            self._db.execute("insert into meta values ('log_id', ?)", (f"journal-{uuid.uuid4()}",))
            self._db.execute(f"pragma application_id = {APPLICATION_ID}")
            self._db.execute(f"pragma user_version = {VERSION}")
            self._db.execute("commit")

    def _explained(self, error: Exception) -> StoreError:
        text = str(error)
        if "locked" in text:
            return StoreError(f"{self.path} is open in another process: stop that one, or name another journal")
        if "unable to open" in text or "readonly" in text:
            return StoreError(f"{self.path} cannot be written ({text}): check the folder, its owner and its space")
        return self.damaged(text)

    def damaged(self, what: object) -> StoreError:
        """The error for content that cannot be what was written."""
        return StoreError(
            f"{self.path} is damaged or no journal ({what}): restore it from a backup, or move it away to start anew"
        )

    def topics(self) -> list[StoredTopic]:
        """Every topic that was created."""
        return [StoredTopic(*row) for row in self._rows("select name, partitions, cleanup, retention_ms from topics")]

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that was ever written to: offsets are never used twice."""
        rows = self._rows("select topic, partition, next_offset from ends")
        return {TopicPartition(topic, partition): end for topic, partition, end in rows}

    def places(self) -> dict[str, dict[TopicPartition, Committed]]:
        """Every group's places."""
        found: dict[str, dict[TopicPartition, Committed]] = {}
        for group, topic, partition, offset, metadata in self._rows("select * from places"):
            found.setdefault(group, {})[TopicPartition(topic, partition)] = Committed(offset, metadata)
        return found

    def messages(self) -> Iterator[Message]:
        """Every message kept, each partition's in offset order."""
        columns = "topic, partition, offset, time_ns, key, headers, value"
        for row in self._rows(f"select {columns} from messages order by topic, partition, offset"):  # noqa: S608
            topic, partition, offset, time_ns, key, headers, value = row
            yield Message(
                topic=topic,
                partition=partition,
                offset=offset,
                time_ns=time_ns,
                key=key,
                headers={name: text.encode("latin-1") for name, text in json.loads(headers).items()},
                value=value,
            )

    def create(self, specs: Sequence[TopicSpec]) -> None:
        """Remember topics, durably."""
        with self._transaction() as db:
            rows = [(s.name, s.partitions, s.cleanup, s.retention_ms) for s in specs]
            db.executemany("insert into topics values (?, ?, ?, ?)", rows)

    def append(
        self,
        messages: Sequence[Message],
        *,
        places: Mapping[str, Mapping[TopicPartition, Committed]],
        gone: Iterable[tuple[TopicPartition, int]] = (),
        trimmed: Mapping[TopicPartition, int],
    ) -> None:
        """Write messages and groups' places, forget single offsets and everything below others: all or nothing.

        Returns when it is on disk; raises StoreError when nothing was written.
        """
        ends = {(m.topic, m.partition): m.offset + 1 for m in messages}
        with self._transaction() as db:
            db.executemany("insert into messages values (?, ?, ?, ?, ?, ?, ?)", map(_row, messages))
            db.executemany("insert or replace into ends values (?, ?, ?)", [(*tp, end) for tp, end in ends.items()])
            for group, kept in places.items():
                rows = [(group, *tp, place.offset, place.metadata) for tp, place in kept.items()]
                db.executemany("insert or replace into places values (?, ?, ?, ?, ?)", rows)
            forget = "delete from messages where topic = ? and partition = ? and offset"
            db.executemany(f"{forget} = ?", [(*tp, offset) for tp, offset in gone])
            db.executemany(f"{forget} < ?", [(*tp, offset) for tp, offset in trimmed.items()])

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _rows(self, sql: str) -> Iterator[Any]:
        try:
            yield from self._db.execute(sql)
        except sqlite3.Error as error:
            raise self._explained(error) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("begin immediate")
            yield self._db
            self._db.execute("commit")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise StoreError(f"{self.path} cannot be written ({error}): check the disk and its space") from None


def _row(message: Message) -> tuple[object, ...]:
    headers = json.dumps({name: value.decode("latin-1") for name, value in message.headers.items()})
    m = message
    return m.topic, m.partition, m.offset, m.time_ns, m.key, headers, m.value
