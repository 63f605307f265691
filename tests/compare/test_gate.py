"""What the gate says of changes that are known, and that it never decides what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.errors import UsageError
from pdbench.report.compare.between import between_targets, leading
from pdbench.report.compare.comparison import Comparison, compare
from pdbench.report.compare.gate import Rules, fisher, gates_named
from pdbench.report.compare.said import method, remarks, verdict
from pdbench.report.compare.sides import Side
from pdbench.report.verdict import run_verdict
from tests.compare.made import cell, exact, noisy, repeat, summary


def compared(base: dict[str, Any], new: dict[str, Any], rules: Rules | None = None) -> Comparison:
    sides = [Side(role, Path(role), document, {}) for role, document in (("BASE", base), ("NEW", new))]
    return compare(*sides, rules or Rules())


def ttft(comparison: Comparison) -> tuple[str, str | None]:
    change = next(change for _, change in comparison.gates if change.metric == "mean_ttft_ms")
    return change.evidence, change.gate


@pytest.mark.parametrize(
    ("change", "said", "status"),
    [
        (0.10, ("worse", "failed"), "failed"),
        (0.02, ("small", "passed"), "passed"),  # sure, but below the effect of interest
        (0.0, ("none", "passed"), "passed"),
        (-0.02, ("small", "passed"), "passed"),
        (-0.10, ("improved", "passed"), "passed"),
    ],
)
@pytest.mark.parametrize("repeats", [5, 8])
def test_sure_changes(change: float, said: tuple[str, str], status: str, repeats: int) -> None:
    found = compared(summary([cell(exact(repeats))]), summary([cell(exact(repeats, change))]))
    assert ttft(found) == said
    assert found.status == status


def test_a_pair_without_the_figure_is_said() -> None:
    base, new = exact(6), exact(6)
    for one in (*base, *new):
        one["p99_itl_ms"] = 12.0
    new[2] |= {"needs": {"p99_itl_ms": 310}}
    del base[4]["p99_itl_ms"]
    found = compared(summary([cell(base)]), summary([cell(new)]), Rules(gates=("p99_itl_ms", "mean_ttft_ms")))
    assert [change.pairs for _, change in found.gates] == [4, 6]
    (told,) = [one for one in remarks(found) if "p99 ITL is of 4 of 6 pairs" in one]
    assert "repeat 2 has none in NEW (takes 310 requests, 200 answered)" in told
    assert "repeat 4 has none in BASE (not measured)" in told


def test_repeats_with_a_busy_tail_count_as_the_calm_ones_do() -> None:
    """Gaps that are held up come together, so that a busy repeat is unsure of its own p99: the repeats tell of it."""
    rng = np.random.default_rng(4)
    base, new = ([{**one, "total_output_tokens": 25_600} for one in exact(8)] for _ in range(2))
    busy = rng.random(8) < 0.5
    for side, factor in ((base, 1.0), (new, 1.5)):
        for one, held_up in zip(side, busy, strict=True):
            one["p99_itl_ms"] = (30.0 if held_up else 12.0) * factor * rng.lognormal(0, 0.02)
            one |= {"needs": {"p99_itl_ms": 900}} if held_up else {}
    found = compared(summary([cell(base)]), summary([cell(new)]), Rules(gates=("p99_itl_ms",)))
    ((_, change),) = found.gates
    assert 0 < busy.sum() < 8 and (change.pairs, change.gate) == (8, "failed")
    for one in (*base, *new):
        one["total_output_tokens"] = 400  # one gap a request: fewer than a p99 takes at all
    ((_, few),) = compared(summary([cell(base)]), summary([cell(new)]), Rules(gates=("p99_itl_ms",))).gates
    assert few.pairs == 8 - busy.sum()


@pytest.mark.parametrize("change", [0.03, 0.4])
@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_fewer_than_five_repeats_are_never_a_verdict(repeats: int, change: float) -> None:
    found = compared(summary([cell(exact(repeats))]), summary([cell(exact(repeats, change))]))
    assert found.status == "undecided"
    for _, gate in found.gates:
        assert (gate.evidence, gate.gate, gate.low, gate.more_repeats) == ("too few", "undecided", None, 5 - repeats)
    assert ttft(found) == ("too few", "undecided")


def test_noise_as_wide_as_the_effect_is_undecided_and_says_what_it_takes() -> None:
    rng = np.random.default_rng(2)
    found = compared(summary([cell(noisy(rng, 8, noise=0.06))]), summary([cell(noisy(rng, 8, noise=0.06))]))
    open_gates = [change for _, change in found.gates if change.gate == "undecided"]
    assert found.status == "undecided" and open_gates
    assert all(change.evidence == "none" for change in open_gates)
    assert any(change.more_repeats and change.more_repeats > 4 for change in open_gates)


def test_the_repeats_that_it_asks_for_do_decide() -> None:
    """Undecided at eight, decided with as many more as were asked for, in at least three of four campaigns."""
    decided, asked = 0, 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        base, new = noisy(rng, 60, noise=0.05), noisy(rng, 60, noise=0.05)
        rules = Rules(gates=("mean_ttft_ms",))
        first = compared(summary([cell(base[:8])]), summary([cell(new[:8])]), rules)
        more = first.gates[0][1].more_repeats
        if first.status == "undecided" and more is not None and 8 + more <= 60:
            asked += 1
            second = compared(summary([cell(base[: 8 + more])]), summary([cell(new[: 8 + more])]), rules)
            decided += second.status != "undecided"
    assert asked > 20 and decided >= 0.75 * asked


def test_less_throughput_is_worse_and_more_is_better() -> None:
    base = [repeat(i, {"request_throughput": 1 + 0.001 * (i % 2)}) for i in range(8)]
    for factor, said in ((0.9, ("worse", "failed")), (1.1, ("improved", "passed"))):
        new = [repeat(i, {"request_throughput": factor}) for i in range(8)]
        found = compared(summary([cell(base)]), summary([cell(new)]))
        change = next(change for _, change in found.gates if change.metric == "request_throughput")
        assert (change.evidence, change.gate) == said


def test_the_effect_of_interest_is_the_readers_choice() -> None:
    base, new = summary([cell(exact(8))]), summary([cell(exact(8, 0.08))])
    assert compared(base, new).status == "failed"
    assert compared(base, new, Rules(effect=0.1)).status == "passed"


def test_a_change_in_one_cell_of_many_fails_and_is_the_one_that_is_named() -> None:
    rng = np.random.default_rng(5)
    rates = [1.0, 2.0, 3.0, 4.0]
    base = summary([cell(noisy(rng, 8), request_rate=rate) for rate in rates])
    slower = {"mean_ttft_ms": 0.2}
    new = summary([cell(noisy(rng, 8, slower if rate == 3.0 else None), request_rate=rate) for rate in rates])
    found = compared(base, new)
    assert [c.cell.name for c, change in found.gates if change.gate == "failed"] == ["3 req/s x 1,024 tokens"]


def test_repeats_are_paired_by_seed_not_by_order() -> None:
    """The arrivals of a repeat move TTFT by half; pairs of the same arrivals differ by 10 %."""
    load = [0.5, 0.8, 1.0, 1.3, 1.6, 2.0, 2.4, 3.0]
    base = [repeat(i, {"mean_ttft_ms": factor}) for i, factor in enumerate(load)]
    new = [repeat(i, {"mean_ttft_ms": factor * (1.1 + 0.002 * (i % 2))}) for i, factor in enumerate(load)]
    assert ttft(compared(summary([cell(base)]), summary([cell(new[::-1])]))) == ("worse", "failed")


def test_only_common_seeds_count() -> None:
    found = compared(summary([cell(exact(10))]), summary([cell(exact(6, 0.2))]))
    assert {change.pairs for _, change in found.gates} == {6}
    assert found.status == "failed"


@pytest.mark.parametrize(
    ("base_void", "new_void", "code", "status", "evidence"),
    [
        (0, 8, "not-steady-state", "meaningless", "worse"),  # the only cell: nothing is left to compare
        (0, 5, "not-steady-state", "failed", "worse"),
        (0, 1, "not-steady-state", "undecided", "none"),
        (5, 0, "not-steady-state", "passed", "improved"),
        (0, 5, "client-saturated", "passed", None),  # doubt about the measurement is no verdict on the servers
    ],
)
def test_void_repeats(base_void: int, new_void: int, code: str, status: str, evidence: str | None) -> None:
    base, new = (
        [repeat(i, {}, void=code if i < void else "") for i in range(10 if void < 8 else 8)]
        for void in (base_void, new_void)
    )
    found = compared(summary([cell(base)]), summary([cell(new)]))
    validity = [change for _, change in found.gates if change.metric == "validity"]
    assert [change.evidence for change in validity] == ([evidence] if evidence else [])
    assert found.status == status
    judged = {change.gate for change in validity}
    assert judged <= ({"void"} if status == "meaningless" else {"failed", "passed", "undecided"})


def test_a_cell_that_only_new_has_void_leaves_the_gate_open() -> None:
    base = [cell(exact(8)), cell(exact(8), request_rate=8.0)]
    new = [cell(exact(8)), cell([repeat(i, {}, void="client-saturated") for i in range(8)], request_rate=8.0)]
    assert compared(summary(base), summary(new)).status == "undecided"
    assert compared(summary(new), summary(base)).status == "passed", "what BASE could not measure is no gate"


def test_a_percentile_without_requests_enough_gates_nothing() -> None:
    rules = Rules(gates=("mean_ttft_ms", "p99_ttft_ms"))
    found = compared(summary([cell(exact(8))]), summary([cell(exact(8))]), rules)
    change = next(change for _, change in found.gates if change.metric == "p99_ttft_ms")
    assert (change.evidence, change.gate) == ("not measured", "undecided")
    assert "299" in change.note


def losing(repeats: int, lost: Sequence[int]) -> dict[str, Any]:
    """A summary whose repeats have 200 requests each, so many of which failed or were turned away."""
    ended = zip(exact(repeats), lost, strict=True)
    return summary([cell([{**r, "completed": 200 - n, "failed": n - n // 2, "rejected": n // 2} for r, n in ended])])


@pytest.mark.parametrize(
    ("lost", "gate", "evidence"),
    [
        ([8] * 5, "failed", "worse"),
        ([1, 0, 0, 0, 0], None, "none"),  # one of a thousand is a word, and no gate
        ([40, 0, 0, 0, 0], "undecided", "none"),  # a burst in one repeat of five
        ([8], "undecided", "too few"),
        ([0] * 5, "", ""),
    ],
)
def test_requests_that_are_left_unanswered(lost: list[int], gate: str | None, evidence: str) -> None:
    """Latencies are of the answered ones: who answers fewer may be as fast."""
    found = compared(losing(len(lost), [0] * len(lost)), losing(len(lost), lost))
    seen = [change for cell in found.cells for change in (*cell.gates, *cell.watched) if change.metric == "unanswered"]
    assert [(change.gate, change.evidence) for change in seen] == ([(gate, evidence)] if evidence else [])
    if gate == "failed":
        assert found.status == "failed" and "NEW left 40 of 1,000 requests unanswered, BASE 0 of 1,000" in verdict(
            found
        )
    better = compared(losing(len(lost), lost), losing(len(lost), [0] * len(lost)))
    assert not [change for _, change in better.gates if change.metric == "unanswered"]


def test_fisher_is_the_tea_tasting() -> None:
    assert fisher(0, 4, 4) == pytest.approx(1 / comb(8, 4))
    assert fisher(1, 3, 4) == pytest.approx(17 / 70)
    assert fisher(3, 3, 8) == pytest.approx(1 - sum(comb(6, k) * comb(10, 8 - k) for k in range(3)) / comb(16, 8))


def test_names_of_gates() -> None:
    assert gates_named(["ttft", "post", "p99_itl_ms"]) == (
        "mean_ttft_ms", "median_ttft_ms", "ttft_split_ms.post", "p99_itl_ms",
    )  # fmt: skip
    with pytest.raises(UsageError, match="speed"):
        gates_named(["speed"])


def test_what_explains_a_change_sums_to_it() -> None:
    base = [repeat(i, {}) for i in range(8)]
    new = [
        repeat(
            i,
            {"mean_ttft_ms": 1.3},
            ttft_split_ms={"prefill": 30.0, "slot_wait": 70.0 + 0.1 * (i % 2), "post": 20.0, "unexplained": 10.0},
        )
        for i in range(8)
    ]
    (found,) = compared(summary([cell(base)]), summary([cell(new)])).cells
    assert sum(part.change_ms for part in found.parts) == pytest.approx(30.0, abs=0.2)
    assert [part.name for part in found.parts if part.sure] == ["slot_wait"]


@pytest.mark.parametrize(
    ("swing_ms", "told"),
    [
        (0.0, "Of +30.0 ms of TTFT: prefill +20.0, post +10.0."),
        (60.0, "Of +30.0 ms of TTFT: post +10.0; without evidence: prefill +20.0."),
    ],
)
def test_parts_without_evidence_are_told_as_such(swing_ms: float, told: str) -> None:
    new = []
    for i in range(8):
        parts = {"prefill": 50.0 + swing_ms * (-1) ** i, "slot_wait": 40.0, "post": 30.0, "unexplained": 10.0}
        new.append(repeat(i, {"mean_ttft_ms": 1.3}, ttft_split_ms=parts))
    assert told in verdict(compared(summary([cell([repeat(i, {}) for i in range(8)])]), summary([cell(new)])))


def test_the_parts_total_is_the_difference_of_the_means_that_it_names() -> None:
    """Repeats of 50 and 200 ms: 100 as a geometric mean, 125 as a plain one; only plain means of parts add up."""
    base = [repeat(i, {"mean_ttft_ms": 0.5 if i % 2 else 2.0}) for i in range(8)]
    new = [repeat(i, {"mean_ttft_ms": 1.0 if i % 2 else 4.0}) for i in range(8)]
    found = compared(summary([cell(base)]), summary([cell(new)]))
    said = verdict(found)
    assert "mean TTFT 100 -> 200 ms, +100%" in said
    assert "Of +125 ms of TTFT (plain means of the repeats, 125 -> 250)" in said
    assert "each side is the geometric mean of its repeats here" in method(found)


def test_void_repeats_beside_a_verdict_between_targets() -> None:
    """What the valid repeats say stands; that their cells are void says so of the cells' own figures."""
    void = repeat(5, {}, void="not-steady-state")
    cells = [cell([*exact(5, change), void], target=name, verdict="x") for name, change in (("a", 0.0), ("b", 0.3))]
    both = summary(cells)
    both["verdict"] = run_verdict(cells, False)
    between = between_targets(both)
    assert between is not None
    said = leading(both, between)["verdict"]
    assert said.startswith("b is worse than a: ")
    assert "That rests on the 5 of 6 pairs of repeats that are valid. No cell is valid as a whole" in said
    assert "since 2 of 12 repeats are void; " in said
    nothing = [cell([void], target=name, verdict="x") for name in ("a", "b")]
    assert run_verdict(nothing, False).startswith("No cell is valid; ")


def test_a_change_that_no_part_explains_says_so() -> None:
    parts = [{"prefill": 45.0 + 60.0 * (-1) ** i, "post": 85.0 - 60.0 * (-1) ** i} for i in range(8)]
    new = [repeat(i, {"mean_ttft_ms": 1.3}, ttft_split_ms=each) for i, each in enumerate(parts)]
    base = [repeat(i, {}, ttft_split_ms={"prefill": 35.0, "post": 65.0}) for i in range(8)]
    said = verdict(compared(summary([cell(base)]), summary([cell(new)])))
    assert "Of +30.0 ms of TTFT no part has evidence of its own; the largest: post +20.0, prefill +10.0." in said
