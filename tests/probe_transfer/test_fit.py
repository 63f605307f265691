"""The fit: exact where the world is a straight line, honest about its misses where it is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.report.transfer.fit import Shape, fit
from pdbench.report.transfer.predict import fit_document, predictions

SIZES = [(64 << 20) // divisor for divisor in (1, 4, 16, 64)]


def shapes(t0: float, per_byte: float, per_descriptor: float, noise: float = 0.0, seed: int = 0) -> list[Shape]:
    rng = np.random.default_rng(seed)
    found = []
    for nbytes in SIZES:
        for descriptors in (nbytes // 8192, 1):
            whole = t0 + nbytes * per_byte + descriptors * per_descriptor
            found.append(Shape(nbytes, descriptors, whole * rng.lognormal(0, noise, 20)))
    return found


costs = st.floats(0, 1e-3), st.floats(1e-12, 1e-8), st.floats(0, 1e-4)


@settings(max_examples=15)
@given(*costs)
def test_a_straight_line_is_found_exactly(t0: float, per_byte: float, per_descriptor: float) -> None:
    made = fit(shapes(t0, per_byte, per_descriptor))
    assert made is not None and made.worst < 1e-6
    nbytes, descriptors = 512 << 20, 65_536
    seconds, low, high = made.predict(nbytes, descriptors)
    assert seconds == pytest.approx(t0 + nbytes * per_byte + descriptors * per_descriptor, rel=1e-4)
    assert low <= seconds * 1.001 and high >= seconds * 0.999


def test_noise_widens_the_intervals_and_they_hold_the_truth() -> None:
    truth = (60e-6, 1 / 12e9, 1.6e-6)
    inside = 0
    for seed in range(12):
        made = fit(shapes(*truth, noise=0.1, seed=seed))
        assert made is not None
        inside += sum(
            low <= true <= high for true, (low, high) in zip(truth, map(made.interval, range(3)), strict=True)
        )
    assert inside >= 0.8 * 36


def test_a_cache_is_a_miss_that_is_told() -> None:
    bent = [Shape(s.nbytes, s.descriptors, s.seconds / (8 if s.nbytes < SIZES[1] else 1)) for s in shapes(0, 1e-10, 0)]
    straight, made = fit(shapes(0, 1e-10, 0)), fit(bent)
    assert straight is not None and made is not None
    assert straight.worst < 1e-6 and made.worst > 0.3
    _, low, high = made.predict(64 << 20, 1)
    assert high / low > 1.5


@pytest.mark.parametrize(
    "few",
    [
        shapes(0, 1e-9, 0)[:3],
        [Shape(n, 1, np.array([1.0])) for n in range(1, 20)],
        [Shape(n, n, np.array([1.0])) for n in range(1, 9)],
    ],
    ids=["three shapes", "no descriptors", "descriptors that are bytes"],
)
def test_what_cannot_be_told_apart_is_not_fitted(few: list[Shape]) -> None:
    assert fit(few) is None


def test_predictions_say_what_lies_beyond() -> None:
    key = ("READ", "UCX", "DRAM")
    made = fit(shapes(1e-4, 1e-10, 1e-6))
    assert made is not None
    prompts = [
        {"tokens": n, "block_tokens": 16, "nbytes": n << 15, "descriptors": n * 4, "regions": 64}
        for n in (1024, 65_536)
    ]
    near, far = predictions({key: (made, 64 << 20)}, prompts, 50.0)
    assert [way["extrapolated"] for way in near["ways"]] == [False, False]
    assert [way["extrapolated"] for way in far["ways"]] == [True, True]
    assert near["at_theory_ms"] == pytest.approx((1024 << 15) / 50e9 * 1000)
    scattered, contiguous = (way["ms"] for way in near["ways"])
    assert scattered - contiguous == pytest.approx((4096 - 64) * 1e-3, rel=1e-3)
    told = fit_document(key, made)
    assert told["gb_s"] == pytest.approx(10, rel=1e-4) and told["us_per_descriptor"] == pytest.approx(1, rel=1e-4)
