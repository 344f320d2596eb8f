"""Every error that Isotach raises on purpose.

To add one: a subclass here, with one sentence that says who raises it and what its catcher does.
"""


class IsotachError(Exception):
    """The root: a command prints it as one line and exits with status 1."""


class SettingsError(IsotachError):
    """A setting is missing, unknown or out of range; the text names the setting and the remedy."""


class SourceUnavailable(IsotachError):
    """A source is absent or broken as a whole: that one collector stops, says so once and is tried again later."""


class SourceHangs(SourceUnavailable):
    """A source gives no answer in its time: reported as a hang, else as SourceUnavailable."""


class NoData(IsotachError):
    """A source has nothing to say at this moment; not a failure."""


class EndOfInput(IsotachError):
    """A recording has been read to its end: its collector is done, which is no failure."""


class BadInput(IsotachError):
    """A file, message or answer from outside breaks its format; `rule` names it in counters and dead letters."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule
        self.detail = detail


class TransportError(IsotachError):
    """The log (Kafka, the in-memory transport, the server behind HTTP) cannot be used now."""


class TransportRefused(TransportError):
    """The log is there and refuses us: credentials, rights, certificate. Waiting does not help."""


class Fenced(TransportError):
    """A newer process has taken over this transactional id: this one must stop at once."""


class StoreError(IsotachError):
    """The DuckDB store cannot be opened, is locked by another process, or was made by a newer version."""
