"""Window features from samples of one and several GPUs.

To add a feature's test: one function with the smallest samples that show it.
"""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.samples import START_NS, WINDOW_NS, fleet_samples, one_gpu, windows

from analytics.features import merge_parts, window_features
from analytics.frames import sample_schema, schema
from telemetry.tables import WINDOWS


def features(samples: pl.DataFrame) -> dict[str, object]:
    return window_features(samples, window_ns=WINDOW_NS).row(0, named=True)


def test_rows_have_exactly_the_published_columns_and_types() -> None:
    """A window row can be published as it is, whatever its samples lack."""
    for samples in (fleet_samples(gpus=3), one_gpu(), one_gpu().clear()):
        assert window_features(samples, window_ns=WINDOW_NS).schema == pl.Schema(schema(WINDOWS))


def test_a_gpu_with_only_a_carry_row_gives_no_window() -> None:
    """What belongs to the window before is a counter's base and nothing else."""
    samples = pl.concat([one_gpu(seconds=0, carry=True, gpu="GPU-a", energy_mj=5), one_gpu(gpu="GPU-b", carry=True)])
    window = window_features(samples, window_ns=WINDOW_NS)
    assert window["gpu_uuid"].to_list() == ["GPU-b"]
    assert window["samples"].to_list() == [60]


def test_the_effective_clock_is_the_mean_over_busy_samples_so_that_throttle_time_counts() -> None:
    """Fifteen throttled seconds of sixty show, and idle seconds do not."""
    clocks = [1400] * 30 + [700] * 15 + [200] * 15
    row = features(one_gpu(sm_clock_mhz=clocks, utilization_ratio=[1.0] * 45 + [0.0] * 15))
    assert row["effective_clock_mhz"] == pytest.approx((30 * 1400 + 15 * 700) / 45)
    assert row["clock_min_mhz"] == 700
    assert row["busy_samples"] == 45
    assert row["busy_ratio"] == pytest.approx(0.75)


def test_cycle_counters_replace_the_sampled_clock_and_absurd_ones_do_not() -> None:
    """A dip between two samples is seen by the cycles; the cycles of all SMs together are no clock."""
    true = one_gpu(
        carry=True,
        sm_clock_mhz=1980,
        utilization_ratio=1.0,
        sm_cycles_elapsed_total=[i * 1_500_000_000 for i in range(61)],
    )
    assert features(true)["effective_clock_mhz"] == pytest.approx(1500)
    summed = one_gpu(
        carry=True,
        sm_clock_mhz=1980,
        utilization_ratio=1.0,
        sm_cycles_elapsed_total=[i * 132 * 1_980_000_000 for i in range(61)],
    )
    assert features(summed)["effective_clock_mhz"] == pytest.approx(1980)


def test_a_mig_node_without_utilisation_is_busy_by_its_engine_and_never_idle() -> None:
    """Activity that is not reported is unknown, not zero."""
    engine = features(one_gpu(graphics_engine_active_ratio=0.93))
    assert (engine["busy_samples"], engine["utilization_ratio"]) == (60, pytest.approx(0.93))
    silent = features(one_gpu(sm_clock_mhz=1980))
    assert (silent["busy_ratio"], silent["utilization_ratio"], silent["workload_class"]) == (None, None, None)


def test_the_sample_of_the_best_source_decides_whether_the_gpu_was_busy() -> None:
    """Coarse utilisation says busy where the engine says idle: the engine is believed."""
    assert features(one_gpu(graphics_engine_active_ratio=0.1, utilization_ratio=1.0))["busy_samples"] == 0


def test_throttle_bits_are_read_one_by_one() -> None:
    """0x84 is a power cap and a brake; 0x1 together with others is not idleness."""
    row = features(one_gpu(utilization_ratio=1.0, clock_event_reasons=[0x84] * 30 + [0x21] * 15 + [0x48] * 15))
    shares = {
        name: row[name] for name in row if name.endswith("_ratio") and name.split("_")[0] in ("sw", "hw", "power")
    }
    assert shares == {
        "sw_power_cap_ratio": 0.5, "power_brake_ratio": 0.5, "sw_thermal_ratio": 0.25, "hw_thermal_ratio": 0.25,
        "hw_slowdown_ratio": 0.25,
    }  # fmt: skip


def test_counters_grow_from_the_carry_row_and_a_fall_is_a_reset() -> None:
    """What happens between two windows counts once; after a reset what the counter reads has grown since."""
    row = features(one_gpu(carry=True, ecc_corrected_total=[100, *[107] * 30, *[3] * 30]))
    assert (row["ecc_corrected"], row["counter_resets"]) == (7 + 3, 1)
    first = features(one_gpu(ecc_corrected_total=[100] * 60))
    assert (first["ecc_corrected"], first["counter_resets"]) == (0, 0)


def test_an_unsupported_counter_is_null_and_a_single_reading_says_nothing() -> None:
    """Null is not zero: nobody looked."""
    row = features(one_gpu(ecc_corrected_total=[5] + [None] * 59))
    assert (row["ecc_corrected"], row["energy_j"], row["nvlink_errors"]) == (None, None, None)


def test_throttle_seconds_prefer_clock_event_counters_to_violation_counters() -> None:
    """Violation counters stand in only where the better ones are absent."""
    grows = [i * 10**9 for i in range(61)]
    both = features(one_gpu(carry=True, sw_power_cap_ns=[0] * 61, power_violation_ns=grows))
    assert both["power_throttle_s"] == 0
    one = features(one_gpu(carry=True, power_violation_ns=grows, thermal_violation_ns=grows))
    assert (one["power_throttle_s"], one["thermal_throttle_s"]) == (60, 60)


def test_power_falls_back_to_the_instant_value_row_by_row() -> None:
    """A driver upgrade in the middle of a window makes no step."""
    row = features(one_gpu(power_w=[400.0] * 30 + [None] * 30, power_instant_w=[None] * 30 + [410.0] * 30))
    assert row["power_w"] == pytest.approx(405)


def test_completeness_counts_what_the_interval_promises_and_frozen_values_show() -> None:
    """Half of the samples is 0.5; sixty equal readings are one reading."""
    half = one_gpu(sm_clock_mhz=1980, power_w=300.0, temperature_c=50).filter(pl.int_range(60) % 2 == 0)
    assert features(half)["completeness_ratio"] == pytest.approx(0.5)
    assert features(half)["distinct_readings"] == 1
    alive = one_gpu(sm_clock_mhz=1980, power_w=[300.0 + i for i in range(60)])
    assert features(alive)["distinct_readings"] == 60
    assert features(one_gpu())["distinct_readings"] == 0


def test_the_shortest_delay_of_the_window_counts_and_unknown_is_null() -> None:
    """One message that came at once shows that the way is free; the window before has no say."""
    delays = [0.1, *[40.0] * 30, *[2.5] * 30]
    assert features(one_gpu(carry=True, delivery_delay_s=delays))["delivery_delay_s"] == pytest.approx(2.5)
    assert features(one_gpu())["delivery_delay_s"] is None


def test_classes_follow_what_was_busy() -> None:
    """Pipes, memory, traffic name their class; coarse activity is mixed, or compute at the cap."""
    fine = {"graphics_engine_active_ratio": 1.0, "dram_active_ratio": 0.1, "tensor_active_ratio": 0.02}
    coarse = {"utilization_ratio": 1.0}
    cases = [
        (fine | {"tensor_active_ratio": 0.6}, "compute"),
        (fine | {"fp64_active_ratio": 0.5}, "compute"),
        (fine | {"dram_active_ratio": 0.8}, "memory"),
        (fine | {"nvlink_tx_bytes_per_s": 1e11, "nvlink_rx_bytes_per_s": 1e11}, "communication"),
        (fine | {"nvlink_bandwidth_bytes_per_s": 1e11}, "communication"),
        (fine, "mixed"),
        (coarse, "mixed"),
        (coarse | {"clock_event_reasons": 0x4}, "compute"),
        ({"utilization_ratio": 0.0}, None),
    ]
    assert [features(one_gpu(**columns))["workload_class"] for columns, _ in cases] == [name for _, name in cases]


def test_rows_out_of_order_and_missing_columns_are_refused() -> None:
    """Wrong aggregates would look right: the frame is refused instead."""
    samples = pl.concat([one_gpu(gpu="GPU-a"), one_gpu(gpu="GPU-b")])
    with pytest.raises(ValueError, match="sorted"):
        window_features(samples.reverse(), window_ns=WINDOW_NS)
    with pytest.raises(ValueError, match="sorted"):
        window_features(pl.concat([samples, one_gpu(gpu="GPU-a")]), window_ns=WINDOW_NS)
    with pytest.raises(ValueError, match="power_w"):
        window_features(samples.drop("power_w"), window_ns=WINDOW_NS)
    with pytest.raises(ValueError, match="more than one window"):
        window_features(one_gpu(seconds=120), window_ns=WINDOW_NS)


def test_working_in_chunks_changes_nothing() -> None:
    """The size of the pieces is a matter of memory only."""
    samples = fleet_samples(gpus=20, seconds=10)
    whole = window_features(samples, window_ns=WINDOW_NS)
    assert window_features(samples, window_ns=WINDOW_NS, chunk_rows=25).equals(whole)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.integers(0, 2**63)), min_size=1, max_size=8), min_size=1, max_size=4))
def test_counter_growth_equals_a_plain_loop(readings: list[list[int | None]]) -> None:
    """Nulls are bridged, falls are resets, GPUs do not leak into each other: as slow Python would do it."""
    frames, expected = [], []
    for index, values in enumerate(readings):
        frames.append(one_gpu(gpu=f"GPU-{index}", seconds=len(values), energy_mj=values))
        known = [value for value in values if value is not None]
        grown = [(b - a if b >= a else b) for a, b in pairwise(known)]
        falls = sum(b < a for a, b in pairwise(known))
        expected.append((sum(grown) / 1e3 if len(known) > 1 else None, falls))
    window = window_features(pl.concat(frames), window_ns=WINDOW_NS)
    for row, (energy, falls) in zip(window.iter_rows(named=True), expected, strict=True):
        assert row["energy_j"] == (None if energy is None else pytest.approx(energy, rel=1e-6))
        assert row["counter_resets"] == falls


def test_parts_of_one_window_merge_into_the_window_of_all_samples() -> None:
    """A GPU whose samples came through two partitions has one window, as if through one."""
    rng = np.random.default_rng(3)
    samples = one_gpu(
        sm_clock_mhz=rng.integers(1000, 1900, 60), power_w=rng.uniform(300, 700, 60),
        temperature_c=rng.integers(50, 80, 60), utilization_ratio=[0.0] * 20 + [1.0] * 40,
        clock_event_reasons=[0x4] * 50 + [0x40] * 10, pcie_link_width=[16] * 59 + [8],
    )  # fmt: skip
    whole = window_features(samples, window_ns=WINDOW_NS)
    parts = [window_features(samples.filter(pl.int_range(60) % 2 == odd), window_ns=WINDOW_NS) for odd in (0, 1)]
    other = windows([{"gpu_uuid": "GPU-other"}])
    merged = merge_parts(pl.concat([*parts, other]))
    assert merged.filter(pl.col("gpu_uuid") == "GPU-other").equals(other)
    mine = merged.filter(pl.col("gpu_uuid") == "GPU-a").row(0, named=True)
    for name, value in whole.row(0, named=True).items():
        assert mine[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name


def test_merging_leaves_rows_without_a_twin_as_they_are() -> None:
    """Nothing is computed again where nothing is to merge."""
    rows = windows([{"gpu_uuid": "b"}, {"gpu_uuid": "a"}])
    assert merge_parts(rows).equals(rows)
    assert window_features(one_gpu().clear(), window_ns=WINDOW_NS).is_empty()
    assert START_NS % WINDOW_NS == 0
    assert list(one_gpu().columns) == list(sample_schema())
