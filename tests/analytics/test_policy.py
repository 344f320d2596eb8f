"""The XID policy as a file, and what it does to a verdict.

To add a field: a good and a bad value here.
"""

from pathlib import Path

import pytest
from support.scorer import Scorer, busy_rows, fleet

from analytics.policy import DEFAULT, parse_policy, read_policy, to_yaml
from analytics.xid import UNLISTED, XIDS
from telemetry.errors import SettingsError


def test_the_default_as_a_document_reads_back_as_itself() -> None:
    """What ships is what the code does."""
    assert parse_policy(to_yaml()) == DEFAULT


def test_codes_that_a_file_does_not_name_keep_their_default() -> None:
    """A site writes down only what it changes."""
    policy = parse_policy("xids:\n  31: {tier: degraded, action: watch, count: 3, window_s: 600}\n")
    assert (policy.of(31).tier, policy.of(31).count, policy.of(31).window_s) == ("degraded", 3, 600)
    assert policy.of(31).text == XIDS[31].text
    assert policy.of(79) == XIDS[79]
    assert policy.of(999) == UNLISTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xids: {79: {tier: bad}}", r"xids\.79\.tier: 'bad' is none of none, standard"),
        ("xids: {79: {action: explode}}", r"xids\.79\.action"),
        ("xids: {79: {cause: moon}}", r"xids\.79\.cause"),
        ("xids: {79: {count: 0}}", r"xids\.79\.count: expected a number from 1"),
        ("xids: {79: {count: 1.5}}", r"xids\.79\.count: expected a whole number"),
        ("xids: {79: {count: true}}", r"xids\.79\.count"),
        ("xids: {79: {window_s: yesterday}}", r"xids\.79\.window_s"),
        ("xids: {79: {teir: degraded}}", r"xids\.79: no field 'teir'; there are tier"),
        ("xids: {79: {text: ''}}", r"xids\.79\.text"),
        ("xids: {79: 5}", r"xids\.79: expected a mapping"),
        ("xids: {seventy: {}}", r"xids\.seventy: expected a code"),
        ("xids: {-1: {}}", r"xids\.-1: expected a code"),
        ("xids: [79]", "xids: expected a mapping"),
        ("xid: {}", "no field 'xid'"),
        ("unlisted: {tier: 7}", r"unlisted\.tier"),
        ("[]", "expected a mapping"),
        ("", "expected a mapping"),
        ("xids: {79: {", "no YAML"),
    ],
)
def test_a_wrong_policy_is_refused_by_code_and_field(text: str, message: str) -> None:
    """Whoever edits it is told where."""
    with pytest.raises(SettingsError, match=message):
        parse_policy(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The file's name is in every message."""
    with pytest.raises(SettingsError, match=r"--xid-policy .*absent\.yaml"):
        read_policy(tmp_path / "absent.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("xids: {79: {tier: bad}}")
    with pytest.raises(SettingsError, match=r"bad\.yaml: xids\.79\.tier"):
        read_policy(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not UTF-8"):
        read_policy(bad)


def test_a_code_that_counts_three_times_in_ten_minutes_acts_on_the_third_and_not_on_stragglers() -> None:
    """Two, then one an hour later, are not three; three within ten minutes are; a restart forgets none."""
    policy = parse_policy("xids:\n  31: {tier: degraded, action: watch, cause: memory, count: 3, window_s: 600}\n")
    scorer = Scorer(fleet(4), xid_policy=policy)
    for at in range(3):
        scorer.window(busy_rows(scorer.gpus), at=at)
    tiers = []
    for at in (3.1, 3.2, 60.0, 63.0, 64.0):
        scorer.events({"kind": "xid", "gpu_uuid": "g0-0", "code": 31}, at=at)
        scorer.restart()
        tiers.append(scorer.tier("g0-0"))
    assert tiers == ["standard"] * 4 + ["degraded"]
    assert (scorer.codes("g0-0"), scorer.row("g0-0")["cause"]) == (["xid"], "memory")


def test_a_code_that_a_site_silences_says_nothing() -> None:
    """Tier none: neither a reason nor a transition."""
    scorer = Scorer(fleet(4), xid_policy=parse_policy("xids: {74: {tier: none}}"))
    scorer.window(busy_rows(scorer.gpus), at=0)
    scorer.events({"kind": "xid", "gpu_uuid": "g0-0", "code": 74}, at=1)
    assert (scorer.tier("g0-0"), scorer.codes("g0-0")) == ("standard", [])
