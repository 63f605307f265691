"""Crossover bandwidth against the derivation's own table, and break-even transfers against simulated ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.costs import PREFILL_FITS
from pdbench.littles_law.crossover import (
    MAX_LINK_USE,
    Need,
    break_even,
    colocated_tpot_ms,
    crossover_gb_s,
    link_load_gb_s,
)
from pdbench.littles_law.models import known_model
from pdbench.littles_law.plan_crossover import Handoff

LENS = (512, 2048, 8192, 32768)
# GB/s at which the handoff costs what it removes: stalled decodes -> prompt lengths.
QWEN3_8B = {
    1: (8.1, 7.8, 7.6, 7.2),
    4: (2.0, 1.9, 1.9, 1.8),
    16: (0.49, 0.48, 0.48, 0.45),
    64: (0.12, 0.12, 0.12, 0.11),
}
QWEN3_235B = {
    1: (13.0, 10.9, 7.9, 3.8),
    4: (3.0, 2.7, 2.0, 1.0),
    16: (0.73, 0.66, 0.49, 0.24),
    64: (0.18, 0.17, 0.12, 0.06),
}


@pytest.mark.parametrize(
    ("model", "fit", "fixed_ms", "table"),
    [("Qwen3-8B", "qwen3-8b-h800", 0.39, QWEN3_8B), ("Qwen3-235B-A22B", "qwen3-235b-h20", 1.84, QWEN3_235B)],
)
def test_crossover_table(model: str, fit: str, fixed_ms: float, table: dict[int, tuple[float, ...]]) -> None:
    handoff = Handoff(known_model(model), 8, PREFILL_FITS[fit], fixed_ms, 0.0)
    for stalled, row in table.items():
        for tokens, expected in zip(LENS, row, strict=True):
            found = handoff.by_rule(tokens, stalled)
            assert found is not None
            # The table has two digits.
            assert abs(found - expected) <= max(0.02 * expected, 0.5 * 10 ** (math.floor(math.log10(expected)) - 1))


# req/s, forward ms, output tokens, step a, slope d; then break-even transfer ms: simulated, and b x T_p.
SIMULATED = [
    (2, 100, 128, 10, 0.05, 90, 143),
    (4, 100, 128, 10, 0.05, 255, 325),
    (6, 100, 128, 10, 0.05, 467, 564),
    (8, 100, 128, 10, 0.05, 696, 891),
    (2, 300, 256, 10, 0.05, 882, 1118),
    (1, 300, 1000, 15, 0.1, 1920, 2813),
    (2, 300, 1000, 15, 0.1, 6009, 7500),
    (10, 50, 256, 10, 0.05, 748, 933),
    (1, 40, 32, 10, 0.05, -10, 6),
]


@pytest.mark.parametrize(("qps", "forward", "out", "a", "d", "simulated", "rule"), SIMULATED)
def test_break_even(qps: float, forward: float, out: float, a: float, d: float, simulated: float, rule: float) -> None:
    even = break_even(qps, forward, out, Tpot(a, d))
    assert even is not None
    assert even.total_latency_ms == pytest.approx(simulated, abs=25, rel=0.055)
    assert even.stalled_decodes * forward == pytest.approx(rule, abs=1, rel=0.002)
    # TTFT alone never pays: simulated break-even transfers lie between -12 and -223 ms.
    assert -240 < even.ttft_ms < -10


@given(st.floats(0.01, 20), st.floats(1, 1000), st.floats(1, 2000), st.floats(1, 50), st.floats(0, 0.5))
def test_ttft_alone_never_improves_on_two_gpus(qps: float, forward: float, out: float, a: float, d: float) -> None:
    even = break_even(qps, forward, out, Tpot(a, d))
    assert even is None or even.ttft_ms < 0


@given(st.floats(1, 1e12), st.floats(0.1, 1e5), st.floats(0, 10), st.floats(0, 1), st.floats(0, 1))
def test_what_is_hidden_needs_less_bandwidth(nbytes: float, budget: float, t0: float, a: float, b: float) -> None:
    less, more = (crossover_gb_s(nbytes, budget, t0, hidden) for hidden in sorted((a, b)))
    assert (less is None) == (more is None) == (budget <= t0)
    if less is not None and more is not None:
        assert more <= less


@given(st.floats(0.1, 5), st.floats(1, 100), st.floats(1, 500))
def test_prefills_never_speed_up_decodes(qps: float, forward: float, out: float) -> None:
    tpot = Tpot(8, 0.02)
    together, apart = colocated_tpot_ms(qps, forward, out, tpot), colocated_tpot_ms(qps, 0, out, tpot)
    assert together is None or apart is None or together >= apart


@given(st.floats(0.01, 20), st.floats(1, 1e11), st.floats(0.1, 1e5))
def test_the_bandwidth_named_holds_both_conditions(qps: float, nbytes: float, budget_ms: float) -> None:
    need = Need(crossover_gb_s(nbytes, budget_ms), link_load_gb_s(qps, nbytes))
    assert need.gb_s is not None
    takes_ms, used = nbytes / (need.gb_s * 1e9) * 1000, qps * nbytes / (need.gb_s * 1e9)
    assert takes_ms <= budget_ms * (1 + 1e-9)
    assert used <= MAX_LINK_USE * (1 + 1e-9)
    # And no lower one does: the condition that is said to bind is just met.
    assert (takes_ms / budget_ms if need.binds == "latency" else used / MAX_LINK_USE) == pytest.approx(1)


def test_limits() -> None:
    assert colocated_tpot_ms(10, 100, 100, Tpot(10)) is None
    assert break_even(20, 100, 100, Tpot(10)) is None
    assert crossover_gb_s(1e9, -5) is None
    # 8 prompts/s of 4.19 GB keep 33.5 GB/s of links busy: at 70% they must carry 48.
    assert link_load_gb_s(8, 4.19e9) == pytest.approx(47.9, rel=0.01)
