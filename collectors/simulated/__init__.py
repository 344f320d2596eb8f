"""A simulated fleet with known faults: physics simple but right, the truth written beside. See docs/simulation.md.

To add a GPU model: one line in `models.py`; a fault: one line in `faults.py`; a built-in fleet: one YAML file here.
"""

from collectors.simulated.collector import Simulated

__all__ = ["Simulated"]
