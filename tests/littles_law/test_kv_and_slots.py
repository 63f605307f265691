"""Formulas against published figures and against values worked out elsewhere."""

from __future__ import annotations

import math

import pytest

from pdbench.littles_law.kv import effective_gb_s, kv_bytes, transfer_ms
from pdbench.littles_law.slots import (
    erlang_b,
    erlang_c,
    growth_s_per_request,
    implied_stall_s,
    max_qps,
    mean_wait_s,
    overload_mean_wait_s,
    slots_held,
    wait_quantile_s,
)


def test_kv_of_qwen3_32b_is_256_kib_a_token_and_crosses_eight_links_in_10_ms() -> None:
    assert kv_bytes(1, layers=64, kv_heads=8, head_dim=128) == 256 * 1024
    nbytes = kv_bytes(16_000, 64, 8, 128)
    assert nbytes == pytest.approx(4.19e9, rel=2e-3)
    assert transfer_ms(nbytes, 50, tp=8) == pytest.approx(10.5, abs=0.05)


@pytest.mark.parametrize(("layers", "heads", "kib"), [(80, 8, 320), (28, 4, 56)])
def test_kv_of_llama_70b_and_qwen_7b(layers: int, heads: int, kib: int) -> None:
    assert kv_bytes(1, layers, heads, 128) == kib * 1024


def test_what_makes_no_sense_is_refused() -> None:
    for call in (lambda: kv_bytes(-1, 1, 1, 1), lambda: transfer_ms(1, 0), lambda: slots_held(-1, 1, 1)):
        with pytest.raises(ValueError, match=r"wants|negative"):
            call()
    assert effective_gb_s(1e9, 0.0) is None and effective_gb_s(2e9, 4.0) == 0.5


def test_slots_of_the_reference_case() -> None:
    assert slots_held(8, 128, 10.4) == pytest.approx(10.65, abs=0.01)
    assert slots_held(8, 128, 7.0) == pytest.approx(7.17, abs=0.01)
    assert slots_held(1, 2000, 10.4) / slots_held(1, 128, 10.4) == pytest.approx(15.6, abs=0.1)
    assert max_qps(8, 128, 10.4) == pytest.approx(6.01, abs=0.005)
    assert max_qps(8, 0, 10.4) is None


# Waiting probability and mean wait in units of the holding time, from tables of M/M/c.
@pytest.mark.parametrize(
    ("c", "rho", "waits", "mean"),
    [
        (4, 0.5, 0.17391, 0.086957),
        (4, 0.9, 0.78775, 1.969383),
        (8, 0.8, 0.45764, 0.286028),
        (8, 0.95, 0.84417, 2.110422),
        (64, 0.9, 0.31066, 0.048541),
        (256, 0.95, 0.31293, 0.024447),
    ],
)
def test_erlang_c(c: int, rho: float, waits: float, mean: float) -> None:
    assert erlang_c(rho * c, c) == pytest.approx(waits, abs=6e-6)
    assert mean_wait_s(rho * c, c, 1.0) == pytest.approx(mean, rel=2e-4)


def test_erlang_by_brute_force() -> None:
    load, c = 5.3, 7
    terms = [load**k / math.factorial(k) for k in range(c + 1)]
    assert erlang_b(load, c) == pytest.approx(terms[c] / sum(terms), rel=1e-12)
    assert erlang_c(8, 8) == 1.0 and mean_wait_s(8, 8, 1.0) is None and wait_quantile_s(9, 8, 1.0, 0.99) is None
    assert wait_quantile_s(0.1, 8, 1.0, 0.5) == 0.0


def test_tail_of_the_wait_has_the_right_mass() -> None:
    """P(W > q) must come back as 1 - p: W > t has probability C exp(-(c - load) t)."""
    t = wait_quantile_s(7.2, 8, 1.0, 0.99)
    assert t is not None
    assert erlang_c(7.2, 8) * math.exp(-0.8 * t) == pytest.approx(0.01, rel=1e-9)


def test_overload_grows_41_ms_a_request_in_the_reference_case() -> None:
    assert growth_s_per_request(8, 8, 0.0104 * 128) == pytest.approx(0.0414, abs=2e-4)
    assert overload_mean_wait_s(8, 8, 0.0104 * 128, 400) == pytest.approx(8.11, abs=0.03)
    assert growth_s_per_request(5, 8, 0.0104 * 128) == 0.0


def test_a_tpot_risen_from_7_to_10_4_ms_fits_a_stall_of_61_ms() -> None:
    assert implied_stall_s(10.4, 7.0, 128, 8) == pytest.approx(0.0617, abs=1e-3)
    assert implied_stall_s(10.4, 7.0, 128, 1.0) is None
