"""Reading descriptions: every value is taken by name, checked, and named with its full path when it is wrong.

To accept a new field: take it in the `read` function of its noun; what nobody takes is refused as unknown.
"""

from collections.abc import Iterator
from typing import TypeVar

from telemetry.errors import SettingsError

Default = TypeVar("Default")


class Section:
    """One mapping of a description, with its path. All methods raise SettingsError naming the field."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise SettingsError(f"{path}: expected a mapping of named fields, got {_shown(value)}")
        self.path = path
        self._values: dict[str, object] = dict(value)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def refuse(self, key: str, why: str) -> SettingsError:
        """The error for one field of this section, for the caller to raise."""
        return SettingsError(f"{self.path}.{key}: {why}")

    def text(self, key: str, default: Default) -> str | Default:
        """Text that is not empty; a number is read as its text, since YAML reads `01` as one."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise self.refuse(key, f"expected text, got {_shown(value)}")
        return str(value)

    def name(self, key: str) -> str:
        """Text that must be there."""
        value = self.text(key, None)
        if value is None:
            raise self.refuse(key, "is required")
        return value

    def number(self, key: str, default: Default, *, low: float, high: float) -> float | Default:
        """A number between two limits, both allowed."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"expected a number from {low:g} to {high:g}, got {_shown(value)}")
        return float(value)

    def integer(self, key: str, default: int, *, low: int, high: int) -> int:
        """A whole number between two limits, both allowed."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"expected a whole number from {low} to {high}, got {_shown(value)}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, f"expected true or false, got {_shown(value)}")
        return value

    def choice(self, key: str, default: str, among: tuple[str, ...]) -> str:
        """One of a few words."""
        value = self.text(key, default)
        if value not in among:
            raise self.refuse(key, f"expected one of {', '.join(among)}, got {_shown(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or one text alone; None if absent."""
        value = self._values.pop(key, None)
        if value is None:
            return None
        values = value if isinstance(value, list) else [value]
        if not values or any(isinstance(item, bool) or not isinstance(item, str | int) for item in values):
            raise self.refuse(key, f"expected text or a list of texts, got {_shown(value)}")
        return tuple(str(item) for item in values)

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """A list of numbers."""
        value = self._values.pop(key, None)
        if value is None:
            return default
        if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, int | float) for x in value):
            raise self.refuse(key, f"expected a list of numbers, got {_shown(value)}")
        return tuple(float(item) for item in value)

    def section(self, key: str) -> "Section":
        """A mapping inside this one; empty if absent."""
        value = self._values.pop(key, None)
        return Section({} if value is None else value, f"{self.path}.{key}")

    def sections(self, key: str) -> Iterator["Section"]:
        """A list of mappings; none if absent."""
        value = self._values.pop(key, None)
        if value is None:
            return
        if not isinstance(value, list):
            raise self.refuse(key, f"expected a list, got {_shown(value)}")
        for i, item in enumerate(value):
            yield Section(item, f"{self.path}.{key}[{i}]")

    def named_sections(self, key: str) -> Iterator[tuple[str, "Section"]]:
        """A mapping of names to mappings; none if absent."""
        inner = self.section(key)
        for name in list(inner._values):
            yield name, inner.section(name)

    def done(self) -> None:
        """Raises if a field was given that nobody took: a misspelt field must not be ignored."""
        if self._values:
            raise self.refuse(sorted(self._values)[0], "unknown field")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
