"""The spool: messages on disk on their way to the log, kept through outages and ends of the agent, however sudden.

To change what is kept of a message: `_TABLE` and `VERSION`; how much fits and what is lost first: `outbox.py`.
"""

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from streams import Outgoing
from streams.topics import TELEMETRY
from telemetry.errors import IsotachError, SettingsError

log = logging.getLogger(__name__)

FILE = "spool.sqlite"
VERSION = 1
LOCK_PATIENCE_S = 5.0  #: a predecessor may still be about to end
_SLACK_BYTES = 16 << 10  #: what one message may cost beside its own bytes: the rest of a page, the index
_SHRINK_BYTES = 1 << 20  #: an empty file larger than this is cut
_PRAGMAS = (
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    "synchronous = NORMAL",  # a killed process loses nothing; a machine without power the last moments, never the file
    "wal_autocheckpoint = 256",
    "journal_size_limit = 1048576",
    "cache_size = -256",
)
_TABLE = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, telemetry INTEGER NOT NULL, samples INTEGER NOT NULL,
    made_ns INTEGER NOT NULL, topic TEXT NOT NULL, key BLOB, headers TEXT NOT NULL, value BLOB
);
CREATE INDEX messages_by_kind ON messages (telemetry, id, samples);
"""


class SpoolError(IsotachError):
    """The disk does not take or give messages just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A message that waits. `samples`: GPU samples in it; `made_ns`: wall clock when it was queued.

    `patient`: whoever made it waits for room rather than lose it. `id`: its place in the spool, 0 outside.
    """

    message: Outgoing
    samples: int
    made_ns: int
    patient: bool = False
    id: int = 0

    @property
    def telemetry(self) -> bool:
        """Whether it is telemetry, which is lost first and sent last."""
        return self.message.topic == TELEMETRY

    @property
    def size(self) -> int:
        """Bytes, with what goes around the value."""
        return 200 + len(self.message.value or b"") + sum(map(len, self.message.headers.values()))


@dataclass(slots=True)
class _Kind:
    """Of telemetry, and of everything else: the last one taken, the last one sent, and how many `settle` forgets."""

    taken: int = 0
    sent: int = 0
    messages: int = 0
    samples: int = 0


class Spool:
    """A queue in one SQLite file in `folder`, at most `max_bytes` large, beside a journal of a few MB.

    For one process, and one thread at a time. What was sent stays until `settle`: after a sudden end it is sent once
    more rather than lost. A file that cannot be read is set aside under another name. Raises SettingsError if the
    folder cannot be used or belongs to another agent, SpoolError when the disk is in trouble later.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._path = folder / FILE
        self._max_bytes = max_bytes
        self._kinds = {True: _Kind(), False: _Kind()}
        self.messages = 0
        self.samples = 0
        self.lost_messages = 0  #: with a file that was set aside while in use
        self.lost_samples = 0
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = self._open()
        except OSError as error:
            raise SettingsError(f"spool {folder}: {error.strerror}; choose a folder this user can write") from None
        except sqlite3.OperationalError as error:
            locked = "locked" in str(error)
            why = "another agent uses it, give each its own" if locked else f"{error}; choose a folder on a local disk"
            raise SettingsError(f"spool {folder}: {why}") from None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return self._opened()

    def _opened(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self._path, timeout=LOCK_PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            for pragma in _PRAGMAS:
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN IMMEDIATE")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if version == 0 and tables == 0:
                for statement in filter(str.strip, _TABLE.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"it is of version {version}, this program's is {VERSION}")
            self.messages, self.samples = db.execute("SELECT count(*), total(samples) FROM messages").fetchone()
            self.samples = int(self.samples)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_name(f"{FILE}.unreadable-{time.time_ns()}")
        log.error("the spool %s cannot be read, it is now %s: %s", self._path, aside.name, error)
        self._path.rename(aside)
        for ending in ("-wal", "-shm", "-journal"):
            self._path.with_name(FILE + ending).unlink(missing_ok=True)

    @property
    def bytes(self) -> int:
        """Bytes of the file that hold something; 0 once closed."""
        if self._closed:
            return 0
        with self._explained():
            (pages,) = self._db.execute("PRAGMA page_count").fetchone()
            (free,) = self._db.execute("PRAGMA freelist_count").fetchone()
            (size,) = self._db.execute("PRAGMA page_size").fetchone()
            return int((pages - free) * size)

    def fits(self, size: int) -> bool:
        """Whether so many bytes more stay within the limit."""
        return not self.messages or self.bytes + size + _SLACK_BYTES <= self._max_bytes

    def add(self, items: Sequence[Waiting]) -> None:
        """Append, all or nothing."""
        rows = [
            (
                item.telemetry,
                item.samples,
                item.made_ns,
                item.message.topic,
                item.message.key,
                json.dumps({name: value.decode("latin-1") for name, value in item.message.headers.items()}),
                item.message.value,
            )
            for item in items
        ]
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT INTO messages (telemetry, samples, made_ns, topic, key, headers, value)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._db.execute("COMMIT")
            self.messages += len(items)
            self.samples += sum(item.samples for item in items)

    def take(self) -> Waiting | None:
        """The oldest message not yet taken, telemetry after all others; it stays in the file."""
        for telemetry, kind in ((False, self._kinds[False]), (True, self._kinds[True])):
            with self._explained():
                row = self._db.execute(
                    "SELECT id, samples, made_ns, topic, key, headers, value FROM messages"
                    " WHERE telemetry = ? AND id > ? ORDER BY id LIMIT 1",
                    (telemetry, kind.taken),
                ).fetchone()
                if row is None:
                    continue
                number, samples, made_ns, topic, key, headers, value = row
                kind.taken = number
                known = {name: text.encode("latin-1") for name, text in json.loads(headers).items()}
                message = Outgoing(topic=topic, key=key, value=value, headers=known)
                return Waiting(message=message, samples=samples, made_ns=made_ns, id=number)
        return None

    def sent(self, item: Waiting) -> None:
        """This one, and so all of its kind before it, was handed to the log; `settle` will forget it."""
        kind = self._kinds[item.telemetry]
        if item.id <= kind.taken:  # else it is from a file that was set aside
            kind.sent = item.id
            kind.messages += 1
            kind.samples += item.samples

    def settle(self) -> None:
        """Forget what was sent: the log has it."""
        with self._explained():
            gone = 0
            for telemetry, kind in self._kinds.items():
                where, at = "WHERE telemetry = ? AND id <= ?", (telemetry, kind.sent)
                (samples,) = self._db.execute(f"SELECT total(samples) FROM messages {where}", at).fetchone()  # noqa: S608
                gone += (count := self._db.execute(f"DELETE FROM messages {where}", at).rowcount)  # noqa: S608
                self.messages -= count
                self.samples -= int(samples)
                kind.messages = kind.samples = 0
            if gone and not self.messages and self._path.stat().st_size > _SHRINK_BYTES:
                self._db.execute("VACUUM")

    def drop(self) -> tuple[int, int]:
        """Lose the oldest telemetry that was not yet taken, else the oldest of the rest; (messages, samples) lost."""
        with self._explained():
            for telemetry in (True, False):
                row = self._db.execute(
                    "SELECT id, samples FROM messages WHERE telemetry = ? AND id > ? ORDER BY id LIMIT 1",
                    (telemetry, self._kinds[telemetry].taken),
                ).fetchone()
                if row is not None:
                    self._db.execute("DELETE FROM messages WHERE id = ?", row[:1])
                    self.messages -= 1
                    self.samples -= row[1]
                    return 1, row[1]
        return 0, 0

    def close(self) -> None:
        """Let go of the file; what was not settled stays in it."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Trouble of the disk as SpoolError; a file that turned unreadable is set aside, and its messages are lost."""
        try:
            yield
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            if type(error) in (sqlite3.DatabaseError, sqlite3.ProgrammingError):  # malformed; closed by the last try
                self._start_anew(error)
            raise SpoolError(f"spool {self._path}: {error}") from None
        except (OSError, ValueError) as error:
            raise SpoolError(f"spool {self._path}: {error}") from None

    def _start_anew(self, error: Exception) -> None:
        lost = self.messages - sum(kind.messages for kind in self._kinds.values())
        self.lost_messages += lost
        self.lost_samples += self.samples - sum(kind.samples for kind in self._kinds.values())
        log.error("%d messages in the spool are lost", lost)
        self.messages = self.samples = 0
        self._kinds = {True: _Kind(), False: _Kind()}
        self._let_go()
        with contextlib.suppress(OSError):
            self._set_aside(error)
        with contextlib.suppress(OSError, sqlite3.Error):
            self._db = self._open()
