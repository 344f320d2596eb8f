"""Slurm hostlists: `gpu[01-04,07],login1` to names and back, every leading zero kept.

To accept more syntax: extend `_items`; whatever `fold` writes must come back from `expand` unchanged.
"""

import re
from collections.abc import Iterable, Iterator

from telemetry.errors import BadInput

MAX_NAMES = 200_000
"""Names that one hostlist may stand for; a fleet of 100,000 GPUs has 12,500 nodes."""

MAX_DEPTH = 4
"""Brackets inside brackets."""

Alternative = list[str] | tuple[int, int, int]
"""Alternatives at one place of a name: texts, or a range of numbers (low, high, width)."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f,\[\]{}\"']")


def check_name(name: str) -> str:
    """The name, if it can stand in a hostlist; raises BadInput for an empty one, or with spaces, commas, brackets."""
    if not name or len(name) > 253 or _FORBIDDEN.search(name):
        raise BadInput(
            "bad_node_name", f"{name[:80]!r} is no node name: 1 to 253 characters, no spaces, commas, brackets"
        )
    return name


def expand(text: str, *, limit: int = MAX_NAMES) -> list[str]:
    """The names a hostlist stands for, in its order, repeats included.

    Several brackets in one name (`rack[1-2]node[01-04]`) vary from the right; brackets may hold further lists
    (`n[1-2,0[3-4]]`). Numbers keep the width of the low end: `[08-10]` is 08, 09, 10. Raises BadInput for a list that
    is malformed or stands for more than `limit` names, before making any of them.
    """
    names: list[str] = []
    for item in _split(text, text):
        parts = list(_parts(item, text, depth=0, limit=limit))
        total = len(names)
        count = 1
        for part in parts:
            count *= _count(part)
        if total + count > limit:
            raise BadInput("hostlist_too_large", f"{text[:80]!r} stands for more than {limit} names")
        names.extend(_product(parts))
    return [check_name(name) for name in names]


def _split(text: str, whole: str) -> Iterator[str]:
    """The parts between commas outside brackets."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and not depth:
            yield _trimmed(text[start:position], whole)
            start = position + 1
        if depth < 0 or depth > MAX_DEPTH:
            raise BadInput("bad_hostlist", f"brackets of {whole[:80]!r} do not match at character {position + 1}")
    if depth:
        raise BadInput("bad_hostlist", f"{whole[:80]!r} has an open bracket")
    yield _trimmed(text[start:], whole)


def _trimmed(item: str, whole: str) -> str:
    item = item.strip()
    if not item:
        raise BadInput("bad_hostlist", f"{whole[:80]!r} has nothing between two commas")
    if "{" in item:
        raise BadInput("bad_hostlist", f"{item[:80]!r} is a hostlist function: ask `scontrol show hostnames` for names")
    return item


def _parts(item: str, whole: str, *, depth: int, limit: int) -> Iterator[list[Alternative]]:
    """The places of one name, each a list of alternatives."""
    position = 0
    while position < len(item):
        start = item.find("[", position)
        if start < 0:
            yield [[item[position:]]]
            return
        if start > position:
            yield [[item[position:start]]]
        end, level = start, 0
        while True:  # _split has checked that the brackets match
            level += {"[": 1, "]": -1}.get(item[end], 0)
            if not level:
                break
            end += 1
        yield [_alternative(part, whole, depth=depth, limit=limit) for part in _split(item[start + 1 : end], whole)]
        position = end + 1


def _alternative(part: str, whole: str, *, depth: int, limit: int) -> Alternative:
    match = _RANGE.fullmatch(part)
    if match is None:
        if "[" not in part:
            raise BadInput("bad_hostlist", f"{part[:40]!r} in {whole[:80]!r} is no number or range of numbers")
        return expand(part, limit=limit)
    low, high = match[1], match[2] if match[2] is not None else match[1]
    if len(high) != len(low) and high.startswith("0"):
        raise BadInput("bad_hostlist", f"{part!r} in {whole[:80]!r} mixes paddings: write both ends equally wide")
    if int(high) < int(low):
        raise BadInput("bad_hostlist", f"{part!r} in {whole[:80]!r} runs backwards")
    return int(low), int(high), len(low)


def _count(part: list[Alternative]) -> int:
    return sum(len(one) if isinstance(one, list) else one[1] - one[0] + 1 for one in part)


def _product(parts: list[list[Alternative]]) -> list[str]:
    names = [""]
    for part in parts:
        texts: list[str] = []
        for one in part:
            if isinstance(one, list):
                texts.extend(one)
            else:
                low, high, width = one
                texts.extend(f"{number:0{width}d}" for number in range(low, high + 1))
        names = [name + text for name in names for text in texts]
    return names


def fold(names: Iterable[str]) -> str:
    """One hostlist for a set of names: repeats dropped, ranges over the last number of each name.

    n1, n01 and n001 stay three names. Raises BadInput for a name that cannot stand in a hostlist.
    """
    plain: list[str] = []
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(set(names)):
        match = _LAST_NUMBER.fullmatch(check_name(name))
        if match is None:
            plain.append(name)
        else:
            groups.setdefault((match[1], match[3]), []).append(match[2])
    folded = [f"{prefix}{_fold_numbers(digits)}{suffix}" for (prefix, suffix), digits in groups.items()]
    return ",".join(sorted(plain + folded))


def _fold_numbers(digits: list[str]) -> str:
    """`07` for one number, else `[001,01-04,7]`: one run of numbers never mixes two paddings."""
    widths = sorted({len(text) for text in digits if text.startswith("0") and len(text) > 1}, reverse=True)
    by_width: dict[int, list[int]] = {}
    for text in digits:
        padded = text.startswith("0") and len(text) > 1
        width = len(text) if padded else next((width for width in widths if width <= len(text)), 1)
        by_width.setdefault(width, []).append(int(text))
    runs: list[str] = []
    for width, numbers in sorted(by_width.items()):
        numbers.sort()
        start = previous = numbers[0]
        for number in [*numbers[1:], None]:
            if number is not None and number == previous + 1:
                previous = number
                continue
            low, high = f"{start:0{width}d}", f"{previous:0{width}d}"
            runs.append(low if start == previous else f"{low}-{high}")
            if number is not None:
                start = previous = number
    return runs[0] if len(runs) == 1 and "-" not in runs[0] else f"[{','.join(runs)}]"
