"""Client figures against hand-made requests."""

from __future__ import annotations

import numpy as np
import pytest

from pdbench.report.answers import Answers, Load, counts, good, in_flight, latencies, rates
from pdbench.report.thinking import behind_the_thinking, content_latency
from pdbench.run import RequestRow, request_record
from tests.report.answered import read_answers


def answers(*rows: RequestRow, **offsets: list[float]) -> Answers:
    return read_answers([request_record(r) for r in rows], {k: np.array(v) for k, v in offsets.items()})


def row(i: int, **changes: object) -> RequestRow:
    at = float(i)
    known = {
        "intended_s": at,
        "sent_s": at + 0.01,
        "first_token_s": at + 0.2,
        "last_token_s": at + 1.1,
        "done_s": at + 1.2,
    }
    known |= {
        "prompt_tokens": 100,
        "output_tokens": 10,
        "chunks": 10,
        "status": "ok",
        "prompt_len": 100,
        "output_len": 10,
    }
    return RequestRow(0, 0, "default", f"r{i}", "default", i, **{**known, **changes})  # type: ignore[arg-type]


def test_latency_counts_from_the_intended_send_and_tpot_from_the_first_token() -> None:
    found = latencies(answers(row(0), row(1, sent_s=1.15), r0=[0.19, 0.29, 1.09], r1=[0.05, 0.95]))
    assert found["mean_ttft_ms"] == pytest.approx(200) and found["mean_tpot_ms"] == pytest.approx(100)
    assert found["mean_e2el_ms"] == pytest.approx(1100) and found["mean_itl_ms"] == pytest.approx((100 + 800 + 900) / 3)
    assert found["std_ttft_ms"] == pytest.approx(0, abs=1e-9)
    assert found["needs"]["p99_ttft_ms"] == 299 and found["ttft_ms_interval"]["p99"][1] is None


def test_the_answer_behind_the_thinking_has_its_own_time() -> None:
    thinking = [row(i, first_reasoning_s=i + 0.2, first_content_s=i + 0.5 + 0.01 * i) for i in range(10)]
    found = content_latency(answers(*thinking))
    assert found == {"mean_content_ttft_ms": pytest.approx(545), "median_content_ttft_ms": pytest.approx(545)}
    assert latencies(answers(*thinking))["mean_ttft_ms"] == pytest.approx(200)
    only = [row(10, first_reasoning_s=10.2), row(11, status="truncated", first_reasoning_s=11.2, first_content_s=11.3)]
    assert content_latency(answers(*thinking, *only)) == found, "who was cut before the answer has no such time"
    assert content_latency(answers(*[row(i, first_content_s=i + 0.2) for i in range(10)])) == {}


def test_what_is_said_of_the_thinking_names_those_who_think_and_those_who_answer() -> None:
    thought = [row(i, first_reasoning_s=i + 0.2) for i in range(3)]
    reached = [row(i, first_reasoning_s=i + 0.2, first_content_s=i + 0.5) for i in range(3, 7)]
    plain = [row(i, first_content_s=i + 0.2) for i in range(7, 10)]
    (none,) = behind_the_thinking(answers(*thought, *plain))
    assert none.startswith("3 of 6 answers think first") and "in none of them" in none
    (some,) = behind_the_thinking(answers(*thought, *reached, *plain))
    assert some.startswith("7 of 10 answers") and "after 500 ms (mean of the 4 that came to it)" in some
    (every,) = behind_the_thinking(answers(*reached, *plain))
    assert every.startswith("4 of 7 answers") and every.endswith("after 500 ms (mean).")
    assert not list(behind_the_thinking(answers(*plain)))


def test_a_request_with_one_token_has_no_tpot() -> None:
    found = latencies(answers(row(0, output_tokens=1, last_token_s=0.2)))
    assert "mean_tpot_ms" not in found and "mean_itl_ms" not in found and found["mean_ttft_ms"] == pytest.approx(200)


def test_timed_out_requests_rank_above_all_others() -> None:
    hung = [row(i, status="timeout", first_token_s=None, last_token_s=None, done_s=i + 60.0) for i in range(8, 10)]
    found = latencies(answers(*[row(i) for i in range(8)], *hung))
    assert found["p50_ttft_ms"] == pytest.approx(200) and "p90_ttft_ms" not in found and "p99_e2el_ms" not in found
    assert found["mean_ttft_ms"] == pytest.approx(200)
    assert counts(answers(*hung))["failed"] == 2 and counts(answers(*hung))["timed_out"] == 2


def test_rejected_requests_are_neither_failed_nor_in_percentiles() -> None:
    seen = answers(row(0), row(1, status="rejected", first_token_s=None, last_token_s=None))
    assert counts(seen) | {"x": 0} == counts(seen) | {"x": 0}
    assert counts(seen)["rejected"] == 1 and counts(seen)["failed"] == 0 and counts(seen)["completed"] == 1
    assert latencies(seen)["p50_ttft_ms"] == pytest.approx(200)


def test_throughput_leaves_ramp_and_drain_out() -> None:
    """One request a second, each 9 s long: 20 s of sends see 11 answers, yet the system keeps up."""
    seen = answers(*[row(i, last_token_s=i + 9.0, done_s=i + 9.0) for i in range(20)])
    found = rates([Load(seen, -0.5, 19.5)], {})
    assert found["request_throughput"] == pytest.approx(1.0) and found["output_throughput"] == pytest.approx(10.0)
    assert found["total_token_throughput"] == pytest.approx(110.0) and "request_goodput" not in found


def test_goodput_wants_every_slo() -> None:
    seen = answers(
        row(0), row(1, first_token_s=1.9), row(2, last_token_s=4.0), row(3, output_tokens=1, last_token_s=3.2)
    )
    assert list(good(seen, {"ttft": 500, "tpot": 150})) == [True, False, False, True]
    assert list(good(seen, {"e2el": 1500})) == [True, True, False, True]
    assert rates([Load(seen, -0.5, 3.5)], {"ttft": 500})["request_goodput"] <= 4 / 4.0


def test_in_flight_peaks() -> None:
    _, flying = in_flight(answers(row(0, done_s=5.0), row(1, done_s=1.5), row(2, done_s=2.2)))
    assert flying.max() == 2 and flying[-1] == 0
