"""Co-located against P/D on equal GPUs: limits, and what can never come out."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.colocated import (
    ITL_QUANTILE,
    chunks_of,
    colocated,
    colocated_highest_qps,
    disaggregated,
    prompts_of,
    slot_wait,
    steps_of,
)
from pdbench.littles_law.costs import PrefillCost
from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.ratio import Site, Slo, Workload
from pdbench.littles_law.simulate import steady_waits
from pdbench.littles_law.waits import Waits

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


def simulated_gaps(
    qps: float, out: int, chunks: int, chunk_ms: float, tpot: Tpot, requests: int
) -> tuple[float, list[float]]:
    """One engine with chunked prefill, step by step: mean gap of the streams, and all their gaps in order.

    A step takes the longer of a chunk (if a prompt is due) and the weights, and the slope of each stream beside it.
    """
    rng = random.Random(7)
    arrivals, at = [], 0.0
    for _ in range(requests):
        at += rng.expovariate(qps) * 1000
        arrivals.append(at)
    now, taken, left, step = 0.0, 0, 0, 0
    gaps: list[float] = []
    ends: list[int] = []
    while taken < requests or left or ends:
        due = taken < requests and arrivals[taken] <= now
        if not left and due:
            left, taken = chunks, taken + 1
        if not left and not ends:
            now = arrivals[taken]
            continue
        took = (max(chunk_ms, tpot.alone_ms) if left else tpot.alone_ms) + tpot.slope_ms * len(ends)
        now, step = now + took, step + 1
        gaps += [took] * len(ends)
        while ends and ends[0] == step:
            heapq.heappop(ends)
        if left:
            left -= 1
            if not left:
                heapq.heappush(ends, step + out - 1)
    return sum(gaps) / len(gaps), sorted(gaps)


@pytest.mark.parametrize(
    ("qps", "tokens", "out", "chunk", "rate", "tpot"),
    [
        (4.5, 8192, 128, 512, 50.0, Tpot(10)),  # chunks as long as a step
        (4.0, 16384, 128, 2048, 273.0, Tpot(5.7, 0.2)),
        (3.0, 8192, 256, 2048, 40.0, Tpot(8, 0.05)),  # chunks of six steps, 61 % of the time
        (4.0, 4096, 128, 512, 273.0, Tpot(5.7, 0.2)),  # chunks that fit within a step
    ],
)
def test_gaps_are_those_of_an_engine_simulated_step_by_step(
    qps: float, tokens: float, out: int, chunk: int, rate: float, tpot: Tpot
) -> None:
    of, workload = Site(PrefillCost(1 / rate), tpot, 64), Workload(2 * qps, (tokens,), out)
    found = colocated(workload, of, SLO, 2, chunk)
    chunks = chunks_of(tokens, chunk)
    mean_ms, gaps = simulated_gaps(qps, out, chunks, tokens / rate / chunks, tpot, 2000)
    # The model has the mean share of chunks and the mean batch at every moment: prompts in clusters cost more.
    assert found.tpot_ms == pytest.approx(mean_ms, rel=0.05 if qps > 3 else 0.1)
    assert found.itl_p99_ms == pytest.approx(
        gaps[int(ITL_QUANTILE * len(gaps))], rel=0.05 if not tpot.slope_ms else 0.3
    )


@given(
    st.floats(0.01, 30),
    st.lists(st.floats(1, 30_000), min_size=1, max_size=3),
    st.floats(1, 1500),
    st.integers(64, 16_384),
    st.floats(0, 0.5),
)
@settings(deadline=None, max_examples=100)
def test_tpot_is_the_mean_of_the_gaps(qps: float, lens: list[float], out: float, chunk: int, slope: float) -> None:
    of, workload = site(slope), Workload(qps, tuple(lens), out)
    prompts = prompts_of(workload, of, chunk)
    steps = steps_of(qps, prompts, out, of.tpot)
    if steps is None:
        return
    with_chunk = sum(share for _, share in steps.chunked)
    mean_ms = sum(ms * share for ms, share in steps.chunked) + (1 - with_chunk) * steps.plain_ms
    assert mean_ms == pytest.approx(steps.tpot_ms)
    per_s = qps * sum(one.chunks for one in prompts) / len(prompts)
    assert with_chunk == pytest.approx(per_s * steps.tpot_ms / 1000)
    longest = max(steps.plain_ms, *(ms for ms, _ in steps.chunked))
    assert steps.plain_ms <= steps.itl_p99_ms <= longest
    if with_chunk <= 1:  # beyond, prompts alone are more than the engine has time for
        assert steps.plain_ms - 1e-9 <= steps.tpot_ms <= longest + 1e-9
    assert steps.streams == pytest.approx(qps * out * steps.tpot_ms / 1000)


def test_without_prompts_tpot_is_a_decode_steps() -> None:
    one = colocated(Workload(4, (1e-6,), 256), site(), SLO, 1, 2048)
    assert one.tpot_ms == one.itl_p99_ms == pytest.approx(8 / (1 - 4 * 0.256 * 0.05))


def test_overload_and_slots() -> None:
    assert colocated(Workload(100, (8192.0,), 128), site(), SLO, 2, 2048).ttft_ms is None
    full = colocated(Workload(2, (100.0,), 4000), site(0.0, slots=8), SLO, 2, 2048)
    assert full.ttft_ms is None
    assert full.load > 1


@pytest.mark.parametrize(("slots", "prompt", "out"), [(1, 8192.0, 16), (4, 8192.0, 100), (8, 4096.0, 500)])
def test_the_wait_for_a_slot_is_that_of_slots_held_through_the_prefill(slots: int, prompt: float, out: int) -> None:
    """`simulate` knows nothing of prompts: c slots, each held so long, all equally."""
    span_ms, tpot = prompt / 40, Tpot(8)
    held_s = (span_ms + out * 8) / 1000
    qps = 0.8 * slots / held_s
    found = slot_wait(qps, Workload(qps, (prompt,), out), tpot, slots, span_ms, 8.0)
    assert found is not None
    guess = Waits(found.p, found.mean_ms / 1000 / held_s, 0.0, 0.0, 0.0)
    truth = steady_waits(0.8 * slots, slots, 1.0, Lengths(), guess, effort=0.2).waits
    assert found.mean_ms == pytest.approx(truth.mean_s * held_s * 1000, rel=0.1)
    # With the time of the prefill left out the slots would seem to be less busy.
    blind = slot_wait(qps, Workload(qps, (prompt,), out), tpot, slots, 0.0, 8.0)
    assert blind is not None and blind.mean_ms < 0.85 * found.mean_ms


@pytest.mark.parametrize(
    ("qps", "tokens", "out", "rate", "tpot", "slots"),
    [
        (2.0, 8192, 128, 40.0, Tpot(8, 0.05), 8),
        (4.0, 4096, 128, 273.0, Tpot(5.7, 0.2), 6),
        (0.4, 16384, 100, 20.0, Tpot(10), 2),
    ],
)
def test_slots_held_and_ttft_are_those_of_an_engine_with_few_slots(
    qps: float, tokens: int, out: int, rate: float, tpot: Tpot, slots: int
) -> None:
    of, workload = Site(PrefillCost(1 / rate), tpot, slots), Workload(2 * qps, (float(tokens),), out)
    found = colocated(workload, of, SLO, 2, 2048)
    assert found.slots_held is not None and found.streams is not None and found.ttft_ms is not None
    chunks = chunks_of(tokens, 2048)
    ttft_ms, held = simulated_slots(qps, out, chunks, tokens / rate / chunks, tpot, slots, 8000)
    assert found.slots_held == pytest.approx(held, rel=0.07)
    assert abs(found.slots_held - held) < abs(found.streams - held), "prompts hold slots too"
    assert 0.6 * ttft_ms < found.ttft_ms < 1.1 * ttft_ms


def simulated_slots(
    qps: float, out: int, chunks: int, chunk_ms: float, tpot: Tpot, slots: int, requests: int
) -> tuple[float, float]:
    """The same engine with so many slots, for prompts and streams together: the mean TTFT and the slots held."""
    rng = random.Random(1)
    now, due_ms, left, sent_ms, step, asked = 0.0, rng.expovariate(qps) * 1000, 0, 0.0, 0, 0
    ends: list[int] = []
    first_ms, held_ms = 0.0, 0.0
    while asked < requests or left or ends:
        if not left and asked < requests and due_ms <= now and len(ends) < slots:
            left, sent_ms, asked = chunks, due_ms, asked + 1
            due_ms += rng.expovariate(qps) * 1000
        if not left and not ends:
            now = due_ms
            continue
        took = (max(chunk_ms, tpot.alone_ms) if left else tpot.alone_ms) + tpot.slope_ms * len(ends)
        now, step = now + took, step + 1
        held_ms += took * (len(ends) + bool(left))
        while ends and ends[0] == step:
            heapq.heappop(ends)
        if left:
            left -= 1
            if not left:
                heapq.heappush(ends, step + out - 1)
                first_ms += now - sent_ms
    return first_ms / requests, held_ms / now


def test_highest_rate_holds_and_a_little_more_does_not() -> None:
    workload = Workload(1, (4096.0,), 128)
    top = colocated_highest_qps(workload, site(), SLO, 2, 2048)
    assert colocated(workload.at(top * 0.999), site(), SLO, 2, 2048).holds(SLO)
    assert not colocated(workload.at(top * 1.01), site(), SLO, 2, 2048).holds(SLO)
    # An SLO on the gaps is what co-location breaks first.
    smooth = Slo(2000, 30, itl_ms=20)
    assert colocated_highest_qps(workload, site(), smooth, 2, 2048) < top / 2
