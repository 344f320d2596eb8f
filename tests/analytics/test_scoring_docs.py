"""docs/scoring.md says what the code does.

To document a reason, an XID or a threshold: its row in the table; this test names what is missing.
"""

from dataclasses import fields
from pathlib import Path

import pytest

from analytics.reasons import REASONS
from analytics.thresholds import Thresholds
from analytics.xid import XIDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scoring.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_is_documented_with_its_tier_action_and_cause(code: str) -> None:
    """The table of reasons is the one that decides."""
    reason = REASONS[code]
    row = next(row for row in ROWS if row[0].strip() == f"`{code}`")
    limit = f"`{reason.limit}`" if reason.limit else "-"
    said = ["by code"] * 3 if code == "xid" else [reason.tier, reason.action, reason.cause or "-"]
    assert row[1:6] == [*said, reason.kind, limit]


@pytest.mark.parametrize("threshold", fields(Thresholds), ids=lambda field: str(field.name))
def test_every_threshold_is_documented_with_its_default(threshold: object) -> None:
    """A default that changes changes here too."""
    name, default = threshold.name, threshold.default  # type: ignore[attr-defined]
    assert next(row for row in ROWS if row[0] == f"`{name}`")[1] == f"{default:g}"


@pytest.mark.parametrize("code", XIDS)
def test_every_xid_is_documented_with_its_policy(code: int) -> None:
    """What a code leads to can be looked up."""
    policy = XIDS[code]
    row = next(row for row in ROWS if row[0] == str(code))
    assert row[1:4] == [policy.tier or "no change", policy.action, policy.cause or "-"]


def test_the_page_names_no_reason_that_does_not_exist() -> None:
    """A reason that went away went away from the page."""
    kinds = {"judged", "state", "event", "note"}
    assert {row[0].strip("`") for row in ROWS if len(row) > 4 and row[4] in kinds} == set(REASONS)
