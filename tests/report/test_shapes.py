"""Loads that move or mix: judged as what they are, and their parts against figures counted by hand."""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.arrivals_check import JITTER_S, departure
from pdbench.report.shapes import requests_due
from pdbench.report.steady_state import judge
from pdbench.report.summary import exit_code_of, summarise
from tests.report.queue_simulation import Req, World, make_run
from tests.report.test_steady_state import answers
from tests.report_views.test_exports import schema

LINEAR = [{"duration_s": 100.0, "start": 1.0, "end": 9.0}]
EXPONENTIAL = [{"duration_s": 100.0, "start": 1.0, "end": 16.0, "exponential": True}]
STEPS = [{"duration_s": 50.0, "start": r, "end": r} for r in (2.0, 8.0)]


def rate_at(stages: list[dict[str, Any]], t: float) -> float:
    for stage in stages:
        if t < stage["duration_s"]:
            share = t / stage["duration_s"]
            if stage.get("exponential"):
                return float(stage["start"] * (stage["end"] / stage["start"]) ** share)
            return float(stage["start"] + (stage["end"] - stage["start"]) * share)
        t -= stage["duration_s"]
    return 0.0


def thinned(stages: list[dict[str, Any]], seed: int) -> np.ndarray:
    """A Poisson process of this rate, by drawing at the highest one and keeping each with its chance."""
    rng = np.random.default_rng(seed)
    highest = max(max(stage["start"], stage["end"]) for stage in stages)
    long_s = sum(stage["duration_s"] for stage in stages)
    at = np.cumsum(rng.exponential(1 / highest, int(2 * highest * long_s)))
    kept = np.array([t for t in at[at < long_s] if rng.random() < rate_at(stages, t) / highest])
    return kept


def mean_rate(stages: list[dict[str, Any]]) -> float:
    long_s = sum(stage["duration_s"] for stage in stages)
    return float(np.mean([rate_at(stages, t) for t in (np.arange(10_000) + 0.5) / 10_000 * long_s]))


def summary(path: Path, world: World) -> dict[str, Any]:
    cell: dict[str, Any] = summarise(make_run(path / "run", [[world]]))["cells"][0]
    return cell


def flags(cell: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {v["code"]: (v["severity"], v["evidence"]) for v in cell["validity"]}


@pytest.mark.parametrize("stages", [LINEAR, EXPONENTIAL, STEPS])
def test_sends_along_a_moving_rate_are_known_from_those_at_its_mean(stages):
    def off(sent: np.ndarray) -> bool:
        highest = max(max(stage["start"], stage["end"]) for stage in stages)
        due = requests_due(stages, sent)
        return departure(due, 0.0, "poisson", 1.0, jitter=JITTER_S * highest, moving=True) is not None

    assert not any(off(thinned(stages, seed)) for seed in range(60))
    flat = [{"duration_s": 100.0, "start": mean_rate(stages), "end": mean_rate(stages)}]
    assert sum(off(thinned(flat, seed)) for seed in range(20)) >= 19


def moving(stages: list[dict[str, Any]], times: np.ndarray, **more: Any) -> World:
    settings: dict[str, Any] = {"prefill_s": 0.04, "tokens": 64, "step_s": 0.010, "transfer_s": 0.005, **more}
    return World(rate=mean_rate(stages), n=len(times), times=times, plan={"stages": stages}, **settings)


def test_a_ramp_is_no_steady_state_by_design_and_says_what_its_figures_are(tmp_path):
    times = thinned(LINEAR, 1)
    cell = summary(tmp_path, moving(LINEAR, times))
    severity, evidence = flags(cell)["not-steady-state"]
    assert severity == "warn" and "from 1 to 9 req/s by design" in evidence and "no longer kept up" not in evidence
    assert set(flags(cell)) <= {"not-steady-state"} and "ttft_growth_ms_per_request" not in cell
    assert [(s["rate_start"], s["rate_end"]) for s in cell["stages"]] == [(1, 3), (3, 5), (5, 7), (7, 9)]
    assert [s["request_rate"] for s in cell["stages"]] == pytest.approx([2, 4, 6, 8], rel=1e-3)
    assert [s["sent"] for s in cell["stages"]] == np.histogram(times, bins=4, range=(0, 100))[0].tolist()
    assert [s["slots"]["needed"] for s in cell["stages"]] == pytest.approx([2 * 0.64, 4 * 0.64, 6 * 0.64, 8 * 0.64])
    assert "warn" not in [s.get("steady") for s in cell["stages"]]


@pytest.mark.parametrize(("slots", "kept"), [(16, [True, True]), (3, [True, False])])
def test_the_step_at_which_servers_no_longer_keep_up_is_named(tmp_path, slots, kept):
    """Each request holds a slot for 0.64 s: 8 req/s need 5.1 slots, 2 req/s 1.3."""
    found = summarise(make_run(tmp_path / "run", [[moving(STEPS, thinned(STEPS, 3), slots=slots)]]))
    (cell,) = found["cells"]
    assert [s["steady"] for s in cell["stages"]] == kept
    assert "from 2 to 8 req/s by design" in flags(cell)["not-steady-state"][1]
    assert ("at 8 req/s the servers no longer kept up" in flags(cell)["not-steady-state"][1]) == (not kept[1])
    assert exit_code_of(found) == 0


def test_a_trace_is_compared_with_itself(tmp_path):
    """Bursts of ten at one moment, as Mooncake has them, are no Poisson process and right all the same."""
    times = np.repeat(np.arange(0, 90, 3.0), 10)
    plan = {"trace": "t.jsonl", "arrivals": "trace"}
    world = World(rate=10 / 3, n=300, times=times, slots=32, prefill_s=0.01, plan=plan)
    assert "arrivals-off" not in flags(summary(tmp_path / "a", world))
    assert "arrivals-off" in flags(summary(tmp_path / "b", World(**{**vars(world), "plan": {"arrivals": "poisson"}})))

    def late(r: Req) -> None:
        r.row["sent_s"] = r.arrive + (0.2 if r.i % 10 == 0 else 0.0)

    severity, evidence = flags(summary(tmp_path / "c", World(**{**vars(world), "spoil": [late]})))["arrivals-off"]
    assert severity == "void" and "10% of 300 sends" in evidence and "up to 200 ms" in evidence


def test_a_trace_beyond_capacity_is_void_and_a_busy_hour_of_it_is_not(tmp_path):
    """Three slots held for 0.64 s let 4.7 req/s through. A quiet trace with a busy part drains; a busy one does not."""
    quiet = np.sort(np.concatenate((np.linspace(0, 200, 300), np.linspace(80, 100, 80))))
    plan = {"trace": "t.jsonl", "arrivals": "trace"}
    made: dict[str, Any] = {"slots": 3, "tokens": 64, "prefill_s": 0.01, "transfer_s": 0.001, "plan": plan}
    cell = summary(tmp_path / "a", World(rate=380 / 200, n=380, times=quiet, **made))
    assert "not-steady-state" not in flags(cell)
    busy = World(rate=380 / 60, n=380, times=quiet * 0.3, **made)
    severity, evidence = flags(summary(tmp_path / "b", busy))["not-steady-state"]
    assert severity == "void" and "--speed" in evidence


CLASSES = {"classes": [{"name": "chat", "rate": 6.0}, {"name": "agent", "rate": 2.0}]}


def classed(seed: int = 1, rate: float = 4.0) -> World:
    """Three of four requests are chats; every 20th agent is slow."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, 400))
    agents = rng.random(400) < 0.25

    def spoil(r: Req) -> None:
        r.row["request_class"] = "agent" if agents[r.i] else "chat"
        if agents[r.i]:
            r.row["first_token_s"] = r.first + (0.5 if r.i % 20 == 0 else 0.05)

    return World(rate=rate, n=400, times=times, spoil=[spoil], plan={**CLASSES, "goodput_ms": {"ttft": 300}})


def test_each_class_has_its_own_figures(tmp_path):
    run = make_run(tmp_path / "run", [[classed(1), classed(2)]])
    found = summarise(run)
    (cell,) = found["cells"]
    rows = run.table("requests")
    rows["ttft"] = (rows["first_token_s"] - rows["intended_s"]) * 1000
    assert list(cell["classes"]) == ["chat", "agent"]
    for name, asked in (("chat", 3.0), ("agent", 1.0)):
        part, own = cell["classes"][name], rows[rows["class"] == name]
        assert (part["request_rate"], part["completed"]) == (asked, len(own))
        assert part["mean_ttft_ms"] == pytest.approx(own["ttft"].mean())
        assert part["p90_ttft_ms"] == pytest.approx(np.quantile(own["ttft"], 0.9), rel=0.02)
        good = (own["ttft"] <= 300).mean() * part["request_throughput"]
        assert part["request_goodput"] == pytest.approx(good, rel=0.03)
        tpot = ((own["last_token_s"] - own["first_token_s"]) / 63).mean()
        assert part["slots"]["needed"] == pytest.approx(asked * 64 * tpot)
        assert [r["classes"][name]["completed"] for r in cell["repeats"]] == [
            len(own[own["repeat"] == repeat]) for repeat in (0, 1)
        ]
    assert cell["slots"]["needed"] == pytest.approx(sum(p["slots"]["needed"] for p in cell["classes"].values()))
    assert sum(p["completed"] for p in cell["classes"].values()) == cell["completed"] == 800


def test_arrivals_of_a_class_that_is_off_are_named(tmp_path):
    """All agents in the second half: the whole is Poisson still, its parts are not."""
    world = classed()

    def late(r: Req) -> None:
        r.row["request_class"] = "agent" if r.i >= 300 else "chat"

    cell = summary(tmp_path, World(**{**vars(world), "spoil": [late]}))
    assert "class agent" in flags(cell)["arrivals-off"][1] or "class chat" in flags(cell)["arrivals-off"][1]
    assert "arrivals-off" not in flags(summary(tmp_path / "b", world))


@pytest.mark.parametrize(
    ("shared", "hits", "severity"),
    [
        (0.5, 0.5, None),
        (0.5, 0.2, None),
        (0.5, 0.505, None),
        (0.5, 0.53, "warn"),
        (0.5, 0.56, "void"),
        (0.0, 0.5, "void"),
    ],
)
def test_prefix_hits_count_against_what_the_load_shares(tmp_path, shared, hits, severity):
    def tamper(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        queries = next((r[5] for r in rows if r[1] == "prefix_cache_queries"), 0.0)
        return [[*r[:5], hits * queries] if r[1] == "prefix_cache_hits" and role == "prefill" else r for r in rows]

    def spoil(r: Req) -> None:
        r.row["shared_len"] = round(shared * 1024)

    cell = summary(tmp_path, World(n=320, rate=4, prefill_s=0.04, tamper=tamper, spoil=[spoil]))
    found = flags(cell).get("prefix-cache-hits")
    assert (found[0] if found else None) == severity
    if shared:
        assert cell["prefix_cache"] == {"expected_share": 0.5, "prefill_share": pytest.approx(hits), "decode_share": 0}
        assert found is None or "at most 50.0%" in found[1]
        assert any("20% came from a prefix cache" in note for note in cell["notes"]) == (hits == 0.2)
    else:
        assert "prefix_cache" not in cell


def spoken(growth: float) -> World:
    """Six sessions of five turns whose TTFT grows with the turn, and by `growth` from the first session to the last."""

    def spoil(r: Req) -> None:
        turn = r.i % 5 + 1
        r.row |= {"turn": turn, "session": r.i // 5, "prompt_tokens": 100 * turn, "prompt_len": 100 * turn}
        r.row["first_token_s"] = r.arrive + 0.1 * turn * (1 + growth * r.i / 300)
        r.row["last_token_s"] = r.row["first_token_s"] + 0.63

    return World(rate=None, streams=6, n=300, spoil=[spoil])


def test_turns_have_their_own_ttft_and_their_growth_is_no_unsteadiness(tmp_path):
    cell = summary(tmp_path / "a", spoken(0.0))
    assert [t["turn"] for t in cell["turns"]] == [1, 2, 3, 4, 5]
    assert [t["mean_ttft_ms"] for t in cell["turns"]] == pytest.approx([100, 200, 300, 400, 500])
    assert [(t["completed"], t["prompt_tokens"]) for t in cell["turns"]] == [(60, 100 * n) for n in range(1, 6)]
    assert "not-steady-state" not in flags(cell)
    assert flags(summary(tmp_path / "b", spoken(1.0)))["not-steady-state"][0] == "void"


def test_turns_that_were_never_asked_are_counted(tmp_path):
    """A session ends with the turn that failed; of 300 turns that were planned 280 were sent."""
    run = make_run(tmp_path / "run", [[replace(spoken(0.0), plan={"session_turns": 5})]])
    (entry,) = run.document["cell_runs"]
    said = "20 of 300 turns were never asked"
    assert not any("never asked" in note for note in summarise(run)["cells"][0]["notes"])
    entry |= {"planned": 300, "sent": 280}
    assert any(said in note for note in summarise(run)["cells"][0]["notes"])
    run.document["plan"]["duration_s"] = 60.0
    assert not any("never asked" in note for note in summarise(run)["cells"][0]["notes"]), "its time was over"


def test_up_and_down_again_is_told_as_it_was(tmp_path):
    up_and_down = [{"duration_s": 50.0, "start": rate, "end": rate, "exponential": False} for rate in (2.0, 6.0, 2.0)]
    cell = summary(tmp_path, moving(up_and_down, thinned(up_and_down, 1)))
    assert "from 2 to 6 to 2 req/s by design" in flags(cell)["not-steady-state"][1]


def test_the_arrivals_are_told_in_figures(tmp_path):
    rng = np.random.default_rng(5)
    poisson = np.cumsum(rng.exponential(1 / 4, 400))
    told = summary(tmp_path / "a", World(rate=4, n=400, times=poisson))["arrivals"]
    gaps = np.diff(poisson)
    assert (told["process"], told["sent_rate"]) == ("poisson", pytest.approx(400 / poisson[-1]))
    assert told["gap_cv"] == pytest.approx(gaps.std(ddof=1) / gaps.mean()) and 0.7 < told["dispersion"] < 1.4
    assert told["p_value"] > 0.01 and told["ks_distance"] < 0.08
    even = World(rate=4, n=400, times=np.arange(1, 401) / 4, arrivals="constant")
    told = summary(tmp_path / "b", even)["arrivals"]
    assert told["gap_cv"] == pytest.approx(0, abs=1e-6) and told["dispersion"] < 0.05 and "p_value" not in told
    ramped = summary(tmp_path / "c", moving(LINEAR, thinned(LINEAR, 1)))["arrivals"]
    assert 0.85 < ramped["gap_cv"] < 1.15 and ramped["p_value"] > 0.01, "on the clock of the ramp it is Poisson"


def mixture(seed: int, load: float, n: int = 200, slots: int = 8) -> bool:
    """Whether a cell of short chats and every fifth request a long one is called steady: 8 slots, FCFS."""
    rng = np.random.default_rng(seed)
    long = rng.random(n) < 0.2
    held, prompt = np.where(long, 2.0, 0.3), np.where(long, 0.4, 0.02)
    sent = np.cumsum(rng.exponential(0.64 / (load * slots), n))
    free, first = [0.0] * slots, np.empty(n)
    for i in np.argsort(sent + prompt):
        begin = max(sent[i] + prompt[i], heapq.heappop(free))
        heapq.heappush(free, begin + held[i])
        first[i] = begin + 0.01
    return judge(answers(sent, first, first + held), 0.0, float(sent[-1]), load * slots / 0.64).steady


def test_classes_of_unlike_length_are_not_taken_for_an_overload():
    assert sum(mixture(seed, 0.7) for seed in range(40)) >= 39
    assert sum(mixture(seed, 1.33) for seed in range(40)) <= 4


@pytest.mark.parametrize("world", [moving(STEPS, thinned(STEPS, 3)), classed(), spoken(0.0)])
def test_summaries_with_parts_follow_the_published_schema(tmp_path, world):
    schema().validate(summarise(make_run(tmp_path / "run", [[world]])))
