"""The topics of Isotach: names, partitions, cleanup and retention, in one table.

To add a topic: one constant, one line in `specs`, one line in docs/topics.md.
"""

from streams import TopicSpec

TELEMETRY = "isotach.telemetry"
EVENTS = "isotach.events"
INVENTORY = "isotach.inventory"
MEASUREMENTS = "isotach.measurements"
JOBS = "isotach.jobs"
WINDOWS = "isotach.windows"
SCORES = "isotach.scores"
TRANSITIONS = "isotach.transitions"
DEADLETTER = "isotach.deadletter"

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def specs(*, telemetry_partitions: int = 16) -> tuple[TopicSpec, ...]:
    """Every topic. Only telemetry is spread; windows and scores have one partition so that one scorer is active."""

    def topic(name: str, cleanup: str, retention_ms: int | None, key: str, text: str, partitions: int = 1) -> TopicSpec:
        return TopicSpec(
            name=name, partitions=partitions, cleanup=cleanup, retention_ms=retention_ms, key=key, help=text
        )

    return (
        topic(TELEMETRY, "delete", 6 * HOUR_MS, "node", "Samples of one node, ~10 s a message.", telemetry_partitions),
        topic(EVENTS, "delete", 30 * DAY_MS, "gpu_uuid", "XIDs, lost GPUs, resets, driver reloads, collector trouble."),
        topic(INVENTORY, "compact", None, "node", "A node's GPUs, place and expected GPU count."),
        topic(MEASUREMENTS, "delete", 30 * DAY_MS, "subject", "Results of benchmarks, probes and jobs."),
        topic(
            JOBS,
            "delete",
            30 * DAY_MS,
            "node",
            "Jobs on a node's GPUs: all that run there, and those that have just ended.",
        ),
        topic(WINDOWS, "delete", 7 * DAY_MS, "none", "Window features of the GPUs of one telemetry partition."),
        topic(SCORES, "compact", None, "gpu_uuid", "The newest score of each GPU, with the scorer's state."),
        topic(TRANSITIONS, "delete", 90 * DAY_MS, "gpu_uuid", "Tier changes: the source of alerts."),
        topic(DEADLETTER, "delete", 7 * DAY_MS, "none", "Rejected messages with the rule that refused them."),
    )
