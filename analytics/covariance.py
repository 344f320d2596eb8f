"""A covariance model of how a group's readings go together: fitted robustly on some rows, cheap to hold others against.

To use another estimate of scatter: `_scatter`; it must need no chance, so that a replay says the same.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtri

CLIP = 3.0  #: robust deviations: what is further out pulls at the first estimate no harder
RIDGE = 1e-3  #: squared robust deviations: loads that never change explain nothing
KEPT = 0.025  #: share of a normal group that the second estimate leaves out
BODY, SHOULDER = 0.80, 0.90  #: quantiles of the distances: below them nothing is said about tails
TAIL = 0.975  #: and the one that tells, with those, how heavy the tails are: the bad rows beyond it have no say
FEW = 100  #: rows below which it would be one or two of them
TAIL_OF_FEW = 0.95
DEGREES = np.geomspace(3.0, 1000.0, 60)  #: of freedom: from tails heavier than those of any fleet to a normal's
MAD = 1.4826  #: makes a median absolute deviation a standard deviation of the normal

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Responses given loads: what a reading should be at the load there is, and how readings deviate together.

    All in robust deviations (`scale`) from `centre`; loads come first in both. `slope` predicts responses from loads,
    `precision` is the inverse of what is left. Squared distances of healthy rows are
    spread as those of Student's t of `degrees`, with `shoulder` as their 0.9 quantile.
    """

    centre: Floats
    scale: Floats
    slope: Floats
    precision: Floats
    shoulder: float
    degrees: float

    @property
    def gain(self) -> Floats:
        """What turns a row of readings into residuals, but for a constant: one column a response."""
        loads = self.slope.shape[0]
        return np.concatenate([-self.slope / self.scale[:loads, None], np.diag(1 / self.scale[loads:])])

    def residuals(self, rows: Floats) -> Floats:
        """Responses less what the loads lead to, one row each, in robust deviations."""
        gain = self.gain
        # Column by column: with a million rows of seven readings, ten times sooner than row by row.
        found = np.empty((len(rows), gain.shape[1]), order="F")
        for response, usual in enumerate(self.centre @ gain):
            found[:, response] = rows @ gain[:, response] - usual
        return found

    def distances(self, residuals: Floats) -> Floats:
        """Squared Mahalanobis distance of each row."""
        total = np.zeros(len(residuals))
        for direction in np.linalg.cholesky(self.precision).T:
            total += (residuals @ direction) ** 2
        return total

    def limit(self, chance: float) -> float:
        """The squared distance that a healthy row passes with this chance."""
        q = self.precision.shape[0]
        return float(self.shoulder * fdtri(q, self.degrees, 1 - chance) / fdtri(q, self.degrees, SHOULDER))

    def alone(self, residuals: Floats) -> tuple[Floats, Floats]:
        """Each response against what all the others lead to: in its own unit, and in standard deviations."""
        pull = residuals @ self.precision
        own = np.diag(self.precision)
        return pull / own * self.scale[self.slope.shape[0] :], pull / np.sqrt(own)


def fit(rows: Floats, *, loads: int, floors: Floats) -> Model:
    """The model of these rows; the first `loads` columns are loads, the others responses.

    Median and MAD for each column (at least its floor, the step of its sensor), a shrunk covariance (OAS: Chen, Wiesel,
    Eldar and Hero 2010) of the clipped rows, then another of the rows that this one finds ordinary. Readings are never
    taken to be surer than their floors. How heavy the tails are is read from quantiles that a few bad rows do not move;
    few rows have heavy ones in any case (Hotelling 1931). Depends on nothing but the rows, in any order.
    """
    centre = np.median(rows, axis=0)
    scale = np.maximum(np.median(np.abs(rows - centre), axis=0) * MAD, floors)
    z = (rows - centre) / scale
    noise = np.diag((floors / scale)[loads:] ** 2)
    q = len(noise)
    slope, left = _split(_scatter(np.clip(z, -CLIP, CLIP)), loads)
    distance = _squares(z[:, loads:] - z[:, :loads] @ slope, left + noise)
    kept = z[distance <= np.median(distance) * chdtri(q, KEPT) / chdtri(q, 0.5)]
    slope, left = _split(_scatter(kept), loads)
    left = left + noise
    residual = z[:, loads:] - z[:, :loads] @ slope
    left = left * max(float(np.median(_squares(residual, left)) / chdtri(q, 0.5)), 1.0)
    distance = _squares(residual, left)
    return Model(
        centre=centre,
        scale=scale,
        slope=slope,
        precision=np.asarray(np.linalg.inv(left), dtype=np.float64),
        shoulder=max(float(np.quantile(distance, SHOULDER)), float(chdtri(q, 1 - SHOULDER))),
        degrees=min(_degrees(distance, q), float(len(rows) - rows.shape[1])),
    )


def _scatter(z: Floats) -> Floats:
    """Covariance about zero of rows in robust deviations."""
    from sklearn.covariance import OAS  # a second to load, and only scorers of larger fleets need it

    return np.asarray(OAS(store_precision=False, assume_centered=True).fit(z).covariance_, dtype=np.float64)


def _split(scatter: Floats, loads: int) -> tuple[Floats, Floats]:
    """How responses follow loads, and the scatter that is left of them."""
    inner = scatter[:loads, :loads]
    cross = scatter[:loads, loads:]
    slope: Floats = np.zeros((0, scatter.shape[0]))
    if loads:
        slope = np.asarray(np.linalg.solve(inner + RIDGE * np.eye(loads), cross), dtype=np.float64)
    return slope, scatter[loads:, loads:] - cross.T @ slope


def _squares(residual: Floats, scatter: Floats) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", residual @ np.linalg.inv(scatter), residual))


def _degrees(distance: Floats, q: int) -> float:
    """Degrees of freedom whose distances spread as these do: squares of Student's t over q are those of F (q, nu)."""
    tail = TAIL if len(distance) >= FEW else TAIL_OF_FEW
    body, far = np.quantile(distance, (BODY, tail))
    spread = fdtri(q, DEGREES, tail) / fdtri(q, DEGREES, BODY)
    return float(np.interp(-far / max(body, 1e-9), -spread, DEGREES))
