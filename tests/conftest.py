"""Fixtures that every test may use. Real parts (brokers, servers) are started by the modules in `tests/support`."""

from pathlib import Path

import pytest

pytest_plugins = ["support.kafka", "support.secure_kafka", "support.nvml", "support.helm"]

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real measurements beside the checkout; skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real measurements are not on this machine: {SHARED_DATA} is absent")
    return SHARED_DATA
