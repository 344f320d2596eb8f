"""The expected slowdown of a synchronous job: that of the slowest of its GPUs, each known to an interval only.

To use another distribution of one GPU's slowdown: replace `ndtr` here; nothing else knows that it is log-normal.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

MIN_SD = 1e-4
"""Least standard deviation of a log slowdown, 0.01 %: an interval may have no width, but must not divide by zero."""

_COARSE = 17
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
_EDGE = 1e-7  # probability left outside the range of integration, at each end

Floats = NDArray[np.float64]


def expected_slowdown(mean: Floats, sd: Floats, starts: NDArray[np.intp]) -> Floats:
    """E[max of exp(X_i)] of each block, X_i independent normals with these means and standard deviations.

    `starts` holds the first index of each block's run in `mean` and `sd`, ascending from 0; no run may be empty.
    E[exp(M)] = exp(a) + integral over m > a of exp(m) (1 - prod of CDFs at m), a being where the product leaves 0;
    by Gauss-Legendre over the range that 17 coarse points narrow down. Error below 1e-4 for intervals of any mix.
    """
    if not len(starts):
        return np.empty(0)
    sd = np.maximum(sd, MIN_SD)
    sizes = np.diff(np.append(starts, len(mean)))
    low = np.maximum.reduceat(mean - 6 * sd, starts)
    high = np.maximum.reduceat(mean + 7 * sd, starts)
    for _ in range(2):  # a block of ten thousand keeps a thin slice of the first range
        low, high = _narrowed(mean, 1 / sd, starts, sizes, low, high)
    half = (high - low) / 2
    total = np.exp(low)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        point = low + half * (node + 1)
        total += half * weight * np.exp(point) * (1 - _below(mean, 1 / sd, starts, sizes, point))
    return np.asarray(total)


def _below(mean: Floats, precision: Floats, starts: NDArray[np.intp], sizes: NDArray[np.intp], point: Floats) -> Floats:
    """P(every GPU of the block is below the block's point)."""
    return np.asarray(np.multiply.reduceat(ndtr((np.repeat(point, sizes) - mean) * precision), starts))


def _narrowed(
    mean: Floats, precision: Floats, starts: NDArray[np.intp], sizes: NDArray[np.intp], low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """The part of each range in which the product of CDFs is neither 0 nor 1."""
    new_low, new_high = low.copy(), high.copy()
    for step in range(1, _COARSE):
        point = low + (high - low) * (step / _COARSE)
        below = _below(mean, precision, starts, sizes, point)
        new_low = np.where(below < _EDGE, point, new_low)
        new_high = np.where((below > 1 - _EDGE) & (new_high == high), point, new_high)
    return new_low, new_high
