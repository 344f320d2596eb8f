"""Every limit that scoring uses: name, default, and where the default comes from.

To add a limit: one field here with its reason beside it, one line in docs/scoring.md.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Keyword arguments of `scoring.apply`; a test holds docs/scoring.md to this list."""

    # Evidence
    min_busy_samples: float = 10  #: a mean clock of fewer samples moves by a clock step (15 MHz) from chance alone
    min_busy_ratio: float = 0.5  #: mostly busy, so that idle clocks do not colour the window
    min_peers: float = 4  #: with four, the median stays between two honest values whatever one does
    half_life_s: float = 6 * 3600.0  #: of telemetry evidence, counted in busy time: a shift's work
    result_half_life_s: float = 30 * 86_400.0  #: of measurements: a burn-in a month ago says half as much
    result_fresh_s: float = 30 * 86_400.0  #: a GPU without telemetry is known as long as this by its results
    keep_results: float = 64  #: newest results kept for each GPU and name
    correlated_windows: float = 10  #: windows of one job share job, room and boost: ten count as one independent
    # Speed
    slow_high: float = 0.98  #: an effect of 2 %, twice what a clock step is worth
    clear_high: float = 0.985  #: hysteresis on the way back
    slow_z: float = 2.0  #: and this many robust deviations of the peers: one in 44 of a normal fleet
    widest_spread: float = 0.02  #: taken of peers at most: 1.6 % on Longhorn; wider ones hide their own slow half
    very_slow_high: float = 0.75  #: a synchronous job would take a third longer; the worst of Longhorn reach 0.87
    premium_low: float = 0.99  #: the interval rules out being more than 1 % slower than typical
    premium_exit_low: float = 0.98  #: hysteresis on the way out
    min_evidence: float = 10  #: windows before premium; a result counts as two
    # Judgements
    need: float = 3  #: N: windows with the finding before it counts
    of: float = 5  #: M: of the last so many that could be judged; all of them clean on the way back
    # Changes
    drift_effect: float = (
        0.02  #: log speed lost against the GPU's own first windows: the effect that matters elsewhere too
    )
    drift_limit: float = 0.10  #: cumulative sum: ten windows at 2 % lost, since half of the effect is forgiven
    baseline_windows: float = 60  #: an hour of work, six independent windows: known to about 0.1 %
    # Safety
    breaker_ratio: float = (
        0.15  #: of the fleet, at least one GPU: 12 % of 153 real nodes were bad at once in burn-in, and must pass
    )
    breaker_s: float = 3600.0  #: demotions by soft evidence are counted within an hour
    observe_only: float = 0  #: 1: tiers stay, what they would be is said
    # Limits
    throttle_ratio: float = 0.1  #: thermal slowdown, brake, hardware slowdown: share of samples, beyond chance readings
    overheated_ratio: float = 0.2  #: of a hot block's GPUs slowed for heat: it is its cooling, not a few bad coolers
    rate_per_minute: float = 10.0  #: ECC, replay and NVLink errors: below it no rate matters, whatever the peers do
    rate_factor: float = 10.0  #: times the peers' median rate: "far above"
    min_completeness: float = 0.5  #: a GB200 with an ECC storm lost 18-82 % of its samples under load
    late_s: float = 15.0  #: later than the fleet's median: messages come every 10 s, a hung agent retries after as much
    frozen_samples: float = 20  #: equal readings of clock, power, temperature and activity; power alone never rests
    hot_c: float = 10.0  #: above the same slot on other nodes; slots of a healthy node differ by 14 C, nodes by a few
    odd_chance: float = 0.01  #: that a window of a healthy fleet has one odd GPU; 3 such of 5 are needed
    stale_windows: float = 3  #: windows without evidence
    hold_s: float = 86_400.0  #: an event's finding lasts a day unless a reset lifts it
    trouble_s: float = 900.0  #: collector trouble lasts a quarter of an hour after its last event
    burst_s: float = 60.0  #: all GPUs of a node lost within it: the node lost access, not eight GPUs
