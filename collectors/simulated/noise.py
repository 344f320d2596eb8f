"""Counter-based random numbers: a number depends on its GPU, tick and stream alone, never on what was drawn before.

To use more numbers: another stream. This is what makes a fleet the same whatever the step size and the sharding.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

STREAMS = 16  #: at most; a stream above it would meet the next tick's
_GOLDEN = np.array(0x9E37_79B9_7F4A_7C15, dtype=np.uint64)
_M1 = np.array(0xBF58_476D_1CE4_E5B9, dtype=np.uint64)
_M2 = np.array(0x94D0_49BB_1331_11EB, dtype=np.uint64)


def digest(*parts: object) -> bytes:
    """16 bytes that stand for these parts."""
    return hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=16).digest()


def key(*parts: object) -> int:
    """A 64-bit key that stands for these parts."""
    return int.from_bytes(digest(*parts)[:8], "little")


def hashes(keys: NDArray[np.uint64], ticks: NDArray[np.uint64], stream: int) -> NDArray[np.uint64]:
    """64 random bits for each key (rows) and tick (columns): SplitMix64 (Steele, Lea, Flood 2014) used as a counter."""
    places = (ticks * np.uint64(STREAMS) + np.uint64(stream + 1)) * _GOLDEN
    bits: NDArray[np.uint64] = keys[:, None] + places[None, :]
    bits ^= bits >> np.uint64(30)
    bits *= _M1
    bits ^= bits >> np.uint64(27)
    bits *= _M2
    bits ^= bits >> np.uint64(31)
    return bits


def lane(bits: NDArray[np.uint64], index: int) -> NDArray[np.float32]:
    """Uniform numbers in (0, 1) from 16 of the 64 bits: four independent ones a hash, index 0 to 3."""
    parts = bits.view(np.uint16).reshape(*bits.shape, 4)[..., index].astype(np.float32)
    parts += np.float32(0.5)
    parts *= np.float32(1 / 65_536)
    return parts


def uniform(keys: NDArray[np.uint64], ticks: NDArray[np.uint64], stream: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 bits, for rare events."""
    return (hashes(keys, ticks, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(keys: NDArray[np.uint64], name: str) -> NDArray[np.float64]:
    """One standard normal number a key (twelve uniforms summed: additions only, equal on every processor)."""
    salted = keys ^ np.uint64(key("normals", name))
    total = np.zeros(len(keys))
    ticks = np.arange(3, dtype=np.uint64)
    for step in range(3):
        bits = hashes(salted, ticks[step : step + 1], 0)
        for index in range(4):
            total += lane(bits, index)[:, 0].astype(np.float64)
    return total - 6.0
