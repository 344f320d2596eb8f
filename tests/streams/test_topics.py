"""The table of topics, and the page that describes it."""

from pathlib import Path

from streams.topics import DAY_MS, HOUR_MS, specs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "topics.md"


def test_the_page_says_what_the_table_says() -> None:
    """Every topic is on docs/topics.md with its partitions, cleanup, retention, key and contents, and no other."""
    kept = {None: "newest of each key"} | {h * HOUR_MS: f"{h} h" for h in range(1, 24)}
    kept |= {d * DAY_MS: f"{d} d" for d in range(1, 400)}
    rows = [
        f"| `{s.name}` | {s.partitions} | {s.cleanup} | {kept[s.retention_ms]} | {s.key} | {s.help} |" for s in specs()
    ]
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `isotach.")] == rows


def test_a_compacted_topic_has_no_age_and_only_telemetry_is_spread() -> None:
    """State is kept by key, and the election of one scorer rests on one partition."""
    table = specs(telemetry_partitions=40)
    assert {s.name for s in table if s.partitions != 1} == {"isotach.telemetry"}
    assert all((s.cleanup == "compact") == (s.retention_ms is None) for s in table)
