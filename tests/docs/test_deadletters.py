"""Tests that docs/deadletters.md and the rules in the code are the same.

To add a rule: one line in `streams.deadletter.RULES`, one in the document.
"""

import re
from pathlib import Path

from streams.deadletter import RULES

ROOT = Path(__file__).resolve().parents[2]


def documented() -> list[str]:
    """Rules in the document's table, in order."""
    table = (ROOT / "docs" / "deadletters.md").read_text().partition("## Rules")[2]
    return [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]


def test_every_rule_is_documented_with_a_remedy() -> None:
    """The document has each rule once, in the order of the code, and a remedy for each."""
    assert documented() == list(RULES)
    table = (ROOT / "docs" / "deadletters.md").read_text().partition("## Rules")[2]
    for line in table.splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.strip("|").split("|"))


def test_every_rule_that_the_code_raises_is_known() -> None:
    """A rule named where a message is decoded is in the table."""
    files = [ROOT / "telemetry" / "codec.py", ROOT / "telemetry" / "rows.py", *(ROOT / "streams").glob("*.py")]
    pattern = r'BadInput\(\s*"([a-z0-9_]+)"|rule="([a-z0-9_]+)"|refuse\([^"]*"([a-z0-9_]+)"'
    raised = {rule for file in files for groups in re.findall(pattern, file.read_text()) for rule in groups if rule}
    assert raised <= set(RULES)
    assert {"late", "future", "not_zstd", "bad_window", "unknown_gpu"} <= raised
