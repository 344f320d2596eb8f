"""Dead letters: a rejected message or row with the rule that refused it, ready to be written.

To add a rule: one line in `RULES`, its remedy in docs/deadletters.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import polars as pl

from streams import Message, Outgoing
from streams.topics import DEADLETTER

MAX_VALUE_BYTES = 900_000  #: of a dead letter's value; a longer one is cut, or split between rows
MAX_HEADER_BYTES = 64 << 10  #: of the original headers, together; beyond that they are left out
_ROWS_AT_ONCE = 500  #: rows of one dead letter: every metric there is, at its longest, fits

RULES: Mapping[str, str] = MappingProxyType(
    {
        "empty": "The message has no value.",
        "too_large": "The value is longer than a message may be.",
        "unknown_content_type": "The content type is neither Arrow nor JSON, and the value does not begin like JSON.",
        "unknown_schema": "The schema header is missing, is another one, or names columns newer than this program.",
        "bad_header": "A header that the content type needs is missing or is no text.",
        "bad_node": "The node's name is missing, empty, longer than 253 characters or unprintable.",
        "bad_gpus": "The list of GPUs is empty, too long, repeats one, or has an empty, long or unprintable name.",
        "bad_interval": "The interval between samples is no number above 0 and up to 3600 s.",
        "not_zstd": "The value is no zstd frame, or is damaged.",
        "decompression_bomb": "The value would grow beyond what a batch may be.",
        "truncated": "The body ends too early, or its Arrow frame points outside it.",
        "wrong_schema": "The body holds other columns than its schema header says.",
        "unreadable": "The Arrow reader refused a body that passed every check.",
        "not_json": "The value begins like JSON, or must be JSON, and is none.",
        "not_an_object": "The JSON value is no object.",
        "missing_field": "A required field is absent or null.",
        "wrong_type": "A field has the wrong JSON type.",
        "bad_text": "A text is too long or holds a NUL.",
        "empty_name": "A name that identifies something is empty.",
        "not_finite": "A number is NaN or infinite.",
        "out_of_range": "A number is outside what its field can hold.",
        "repeated_gpu": "An inventory names a GPU twice.",
        "repeated_job": "A node's jobs name one GPU, job and start twice.",
        "unknown_class": "A measurement or job has a workload class that does not exist.",
        "unknown_scope": "A measurement speaks of something else than a GPU or a node.",
        "unknown_source": "A job is from something else than slurm, kubernetes or other.",
        "bad_window": "A message of `isotach.windows` has headers or columns that no window job writes.",
        "bad_time": "A row's time is missing or outside the years 2000 to 2099.",
        "unknown_gpu": "A row's GPU index is missing or outside the message's list of GPUs.",
        "late": "A row's window had ended at or before the watermark when its message came.",
        "future": "A row is stamped well after the time at which the log took its message in.",
    }
)
"""Every rule by name, with what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """One message, or some rows of one, that a rule refused.

    `message` is the index into the messages that were decoded. `rows` holds the refused rows, at least one, if the
    rest of the message is good; None if the whole message was refused.
    """

    message: int
    rule: str
    detail: str
    rows: pl.DataFrame | None = None

    @property
    def count(self) -> int:
        """Rows refused, 1 for a whole message."""
        return 1 if self.rows is None else len(self.rows)


def dead_letters(message: Message, rejected: Rejected) -> Iterator[Outgoing]:
    """The dead letters of one rejection: one for a whole message, for rows one in `_ROWS_AT_ONCE`.

    A whole message keeps its key, its value and its own headers. Rows become JSON objects, one a line, so that a
    single row is one JSON object; columns that are null in all of them are left out.
    """
    headers = {
        "rule": rejected.rule.encode(),
        "detail": rejected.detail[:500].encode("utf-8", "replace"),
        "topic": message.topic.encode(),
        "partition": b"%d" % message.partition,
        "offset": b"%d" % message.offset,
    }
    if rejected.rows is not None:
        for rows in rejected.rows.iter_slices(_ROWS_AT_ONCE):
            told = rows.select(s for s in rows if s.null_count() < len(s))
            value = told.write_ndjson().encode()
            yield Outgoing(
                topic=DEADLETTER, key=message.key, value=value, headers={**headers, "rows": b"%d" % len(rows)}
            )
        return
    value = message.value if message.value is not None else b""
    if len(value) > MAX_VALUE_BYTES:
        headers["cut-from"] = b"%d" % len(value)
        value = value[:MAX_VALUE_BYTES]
    own = {name: text for name, text in message.headers.items() if name not in headers and text is not None}
    if sum(len(name) + len(text) for name, text in own.items()) <= MAX_HEADER_BYTES:
        headers = {**own, **headers}
    yield Outgoing(topic=DEADLETTER, key=(message.key or b"")[:1024] or None, value=value, headers=headers)
