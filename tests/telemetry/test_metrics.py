"""The catalogue of metrics: what every reader of it relies on."""

import re

import pytest

from telemetry.metrics import BY_DCGM_ID, BY_DCGM_NAME, METRICS, SAMPLED, Kind, Metric

FIRST_COLUMNS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "memory_temperature_c", "temperature_margin_c")
UNITS = {
    "_mhz": "MHz",
    "_c": "C",
    "_w": "W",
    "_ns": "ns",
    "_mj": "mJ",
    "_ratio": "ratio",
    "_bytes": "bytes",
    "_bytes_per_s": "bytes/s",
}


def test_names_and_ids_are_unique() -> None:
    """No two metrics share a name, a DCGM id or a DCGM name."""
    names = [metric.name for metric in METRICS.values()]
    ids = [metric.dcgm_id for metric in METRICS.values() if metric.dcgm_id is not None]
    dialects = [name for metric in METRICS.values() for name in metric.dcgm_names]
    assert len(set(names)) == len(names)
    assert len(set(ids)) == len(ids) == len(BY_DCGM_ID)
    assert len(set(dialects)) == len(dialects) == len(BY_DCGM_NAME)


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_says_what_it_is(metric: Metric) -> None:
    """Every metric has help, a plausible range, and the unit that its name promises."""
    assert metric.help.endswith(".")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    if metric.low is not None and metric.high is not None:
        assert metric.low < metric.high
    for suffix, unit in sorted(UNITS.items(), key=lambda pair: -len(pair[0])):
        if metric.name.endswith(suffix):
            assert metric.unit == unit
            break


def test_samples_hold_only_what_can_be_sampled() -> None:
    """Static values and events never travel in each sample."""
    assert {metric.kind for metric in SAMPLED} == {Kind.GAUGE, Kind.COUNTER, Kind.BITMASK}


def test_the_order_of_the_wire_is_only_appended_to() -> None:
    """The first columns stay where they are: an old agent's mask must mean the same for ever."""
    assert tuple(metric.name for metric in SAMPLED[:5]) == FIRST_COLUMNS
    assert SAMPLED[49].name == "nvlink_bandwidth_bytes_per_s"


def test_both_dialects_of_dcgm_lead_to_one_metric() -> None:
    """DCGM 4.6 renamed fields; ids stayed, and both names are understood."""
    for old, new, number in (
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 150),
        ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", 155),
        ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", 1002),
        ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", 230),
    ):
        assert BY_DCGM_NAME[old] is BY_DCGM_NAME[new] is BY_DCGM_ID[number]


def test_an_energy_counter_passes_the_int32_sentinel() -> None:
    """0.6 kWh of energy equals DCGM's int32 blank: the range must not cut a 64-bit counter there."""
    energy = METRICS["energy_mj"]
    assert energy.type == "uint64"
    assert energy.high is None
