"""Co-located against P/D on equal GPUs: limits, and what can never come out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.colocated import chunks_of, colocated, colocated_highest_qps, disaggregated
from pdbench.littles_law.costs import PrefillCost
from pdbench.littles_law.ratio import Site, Slo, Workload

SLO = Slo(2000, 30)


def site(slope: float = 0.05, slots: int = 64) -> Site:
    return Site(PrefillCost(1 / 40), Tpot(8, slope), slots)


@given(
    st.floats(0.05, 30),
    st.floats(100, 30_000),
    st.floats(1, 1500),
    st.integers(2, 8),
    st.integers(1, 7),
    st.integers(512, 16_384),
    st.sampled_from(["split", "shared"]),
)
@settings(deadline=None, max_examples=100)
def test_ttft_is_never_promised_to_improve(
    qps: float, tokens: float, out: float, instances: int, prefills: int, chunk: int, routing: str
) -> None:
    """On equal GPUs and the same routing; gains are in TPOT, ITL, total latency and goodput."""
    of = Site(PrefillCost(1 / 40), Tpot(8, 0.0), 4096, routing=routing)
    workload = Workload(qps, (tokens,), out)
    prefills = min(prefills, instances - 1)
    together = colocated(workload, of, SLO, instances, chunk)
    apart = disaggregated(workload, of, SLO, prefills, instances - prefills)
    if together.ttft_ms is not None and apart.ttft_ms is not None:
        assert apart.ttft_ms > together.ttft_ms - 1e-6
        assert apart.tpot_ms is not None and together.tpot_ms is not None
        assert apart.tpot_ms <= together.tpot_ms + 1e-9


def test_smaller_chunks_smooth_the_gaps() -> None:
    workload = Workload(4, (8192.0,), 256)
    gaps = [colocated(workload, site(), SLO, 2, chunk).itl_p99_ms for chunk in (512, 2048, 8192)]
    assert all(gap is not None for gap in gaps)
    assert gaps == sorted(gaps, key=lambda gap: gap or 0)
    assert chunks_of(8192, 2048) == 4
    assert chunks_of(1, 2048) == 1


def test_rare_prefills_do_not_reach_p99() -> None:
    rare = colocated(Workload(0.01, (8192.0,), 1000), site(), SLO, 2, 2048)
    assert rare.itl_p99_ms == pytest.approx(site().tpot.at(1), rel=0.01)


def test_overload_and_slots() -> None:
    assert colocated(Workload(100, (8192.0,), 128), site(), SLO, 2, 2048).ttft_ms is None
    full = colocated(Workload(2, (100.0,), 4000), site(0.0, slots=8), SLO, 2, 2048)
    assert full.ttft_ms is None
    assert full.load > 1


def test_highest_rate_holds_and_a_little_more_does_not() -> None:
    workload = Workload(1, (4096.0,), 128)
    top = colocated_highest_qps(workload, site(), SLO, 2, 2048)
    assert colocated(workload.at(top * 0.999), site(), SLO, 2, 2048).holds(SLO)
    assert not colocated(workload.at(top * 1.01), site(), SLO, 2, 2048).holds(SLO)
    # An SLO on the gaps is what co-location breaks first.
    smooth = Slo(2000, 30, itl_ms=20)
    assert colocated_highest_qps(workload, site(), smooth, 2, 2048) < top / 2
