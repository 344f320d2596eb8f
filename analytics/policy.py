"""The policy for XIDs as a file that a site edits: which code, how often within how long, leads to what.

To let a site decide something more: a field of `xid.XidPolicy`, its check in `_entry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analytics.reasons import TIER_RANK
from analytics.xid import UNLISTED, XIDS, XidPolicy
from telemetry.errors import SettingsError
from telemetry.tables import ACTIONS

NO_CHANGE = "none"  #: as a tier: the code says nothing about the GPU
MAX_CODE = 65_535
MAX_COUNT = 1_000
CAUSES = ("cooling", "power", "silicon", "memory", "link", "noisy_neighbour", "software", "telemetry")
_FIELDS = ("tier", "action", "cause", "count", "window_s", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What each code leads to, and any code that is not listed."""

    codes: Mapping[int, XidPolicy]
    unlisted: XidPolicy

    def of(self, code: int) -> XidPolicy:
        """What this code leads to."""
        return self.codes.get(code, self.unlisted)


DEFAULT = Policy(codes=XIDS, unlisted=UNLISTED)


def read_policy(path: Path) -> Policy:
    """The policy in a YAML file: `xids` by code, and `unlisted`; see docs/xid-policy.yaml for every field.

    Codes that the file does not name keep the default; raises SettingsError that names the file, the code, the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--xid-policy {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"--xid-policy {path}: not UTF-8") from None
    try:
        return parse_policy(text)
    except SettingsError as error:
        raise SettingsError(f"--xid-policy {path}: {error}") from None


def parse_policy(text: str) -> Policy:
    """The policy in a document; raises SettingsError naming the code and the field."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(document, dict):
        raise SettingsError("expected a mapping with `xids`, and maybe `unlisted`")
    _known(document, ("xids", "unlisted"), "the document")
    listed = document.get("xids") or {}
    if not isinstance(listed, dict):
        raise SettingsError("xids: expected a mapping from code to policy")
    codes = dict(XIDS)
    for code, entry in listed.items():
        if isinstance(code, bool) or not isinstance(code, int) or not 0 < code <= MAX_CODE:
            raise SettingsError(f"xids.{code}: expected a code, a whole number from 1 to {MAX_CODE}")
        codes[code] = _entry(entry, f"xids.{code}", XIDS.get(code, UNLISTED))
    other = document.get("unlisted")
    return Policy(codes=codes, unlisted=UNLISTED if other is None else _entry(other, "unlisted", UNLISTED))


def _entry(entry: Any, where: str, default: XidPolicy) -> XidPolicy:
    """One code's policy; fields that are absent keep the default's."""
    if not isinstance(entry, dict):
        raise SettingsError(f"{where}: expected a mapping with some of {', '.join(_FIELDS)}")
    _known(entry, _FIELDS, where)
    tier = _choice(
        entry, "tier", where, (NO_CHANGE, *(tier for tier in TIER_RANK if tier != "premium")), default.tier or NO_CHANGE
    )
    cause = _choice(entry, "cause", where, (NO_CHANGE, *CAUSES), default.cause or NO_CHANGE)
    action = _choice(entry, "action", where, ACTIONS, default.action)
    count = _number(entry, "count", where, default.count, low=1, high=MAX_COUNT)
    if count != int(count):
        raise SettingsError(f"{where}.count: expected a whole number, got {count:g}")
    text = entry.get("text", default.text)
    if not isinstance(text, str) or not text.strip() or len(text) > 200:
        raise SettingsError(f"{where}.text: expected one line of 1 to 200 characters")
    return XidPolicy(
        hardware=tier in ("degraded", "quarantine"),
        tier=None if tier == NO_CHANGE else tier,
        action=action,
        cause=None if cause == NO_CHANGE else cause,
        text=" ".join(text.split()),
        count=int(count),
        window_s=_number(entry, "window_s", where, default.window_s, low=1, high=365 * 86_400),
    )


def _known(entry: Mapping[Any, Any], fields: tuple[str, ...], where: str) -> None:
    for name in entry:
        if name not in fields:
            raise SettingsError(f"{where}: no field {name!r}; there are {', '.join(fields)}")


def _choice(entry: Mapping[str, Any], name: str, where: str, choices: tuple[str, ...], default: str) -> str:
    value = entry.get(name, default)
    if value not in choices:
        raise SettingsError(f"{where}.{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def _number(entry: Mapping[str, Any], name: str, where: str, default: float, *, low: float, high: float) -> float:
    value = entry.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SettingsError(f"{where}.{name}: expected a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def to_yaml(policy: Policy = DEFAULT) -> str:
    """The policy as a document that `parse_policy` reads back."""
    head = (
        "# What each XID leads to; the default, for a copy to be edited and named by --xid-policy.\n"
        "# tier: the best tier a GPU with it can have: none (says nothing about the GPU), standard, degraded,\n"
        "#   unknown, quarantine. action: " + ", ".join(ACTIONS) + ". cause: none, " + ", ".join(CAUSES) + ".\n"
        "# count, window_s: so many on one GPU within so many seconds before it counts.\n"
        "# Codes left out keep this default. Source: NVIDIA's XID catalogue, docs.nvidia.com/deploy/xid-errors.\n"
    )
    lines = [head + "xids:"]
    lines += [f"  {code}: {_line(entry)}" for code, entry in sorted(policy.codes.items())]
    return "\n".join([*lines, f"unlisted: {_line(policy.unlisted)}"]) + "\n"


def _line(entry: XidPolicy) -> str:
    return (
        f"{{tier: {entry.tier or NO_CHANGE}, action: {entry.action}, cause: {entry.cause or NO_CHANGE}, "
        f'count: {entry.count}, window_s: {entry.window_s:g}, text: "{entry.text}"}}'
    )
