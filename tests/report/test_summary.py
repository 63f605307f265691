"""The document: keys of the contract, repeats, what is absent, and runs that a crash cut short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.summary import exit_code_of, summarise
from pdbench.run import Run
from tests.report.queue_simulation import World, make_run, simulate


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, float) else []


def test_the_contract(tmp_path: Path) -> None:
    world = World(n=320, rate=4, prefill_s=0.04, plan={"goodput_ms": {"ttft": 150, "tpot": 20}})
    found = summarise(make_run(tmp_path / "run", [[world]]))
    json.dumps(found, allow_nan=False)
    cell = found["cells"][0]
    assert found["schema"] == 1 and found["simulated"] is False and exit_code_of(found) == 0
    assert (cell["request_rate"], cell["prompt_len"], cell["output_len"], cell["target"]) == (4, 1024, 64, "default")
    assert cell["completed"] == 320 and cell["failed"] == 0 and cell["request_throughput"] == pytest.approx(4, rel=0.15)
    assert cell["request_goodput"] <= cell["request_throughput"]
    ttft = np.array([(r.first - r.arrive) * 1000 for r in simulate(world)])
    assert cell["mean_ttft_ms"] == pytest.approx(ttft.mean()) and cell["p99_ttft_ms"] == pytest.approx(
        np.quantile(ttft, 0.99)
    )
    assert cell["median_ttft_ms"] == cell["p50_ttft_ms"] and cell["std_ttft_ms"] == pytest.approx(ttft.std())
    assert cell["mean_tpot_ms"] == pytest.approx(10.0) and cell["mean_itl_ms"] == pytest.approx(10.0)
    assert cell["slots"]["needed"] == pytest.approx(4 * 64 * 0.010) and cell["slots"]["source"] == "given"
    assert cell["validity"] == [] and cell["diagnosis"] == [] and "4 req/s x 1,024 tokens" in cell["verdict"]
    assert cell["waiting_mean"] >= 0 and cell["servers"]["decode"]["running_max"] >= 2
    assert cell["nixl"]["mb_per_request"] == pytest.approx(1024 * 131072 / 1e6)
    assert {n for n in cell if n.startswith("p99_")} == {f"p99_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el")}
    assert all(np.isfinite(numbers(found)))


def test_repeats_are_pooled_and_one_void_voids_the_cell(tmp_path: Path) -> None:
    worlds = [World(seed=1), World(seed=2), World(seed=3, recompute=True)]
    found = summarise(make_run(tmp_path / "run", [worlds]))
    cell = found["cells"][0]
    assert [r["valid"] for r in cell["repeats"]] == [True, True, False] and exit_code_of(found) == 3
    assert cell["completed"] == 360 == sum(r["completed"] for r in cell["repeats"])
    means = [r["mean_ttft_ms"] for r in cell["repeats"]]
    assert cell["mean_ttft_ms"] == pytest.approx(np.mean(means))
    flag = next(v for v in cell["validity"] if v["code"] == "decode-recomputed")
    assert flag["severity"] == "void" and "repeat 3" in flag["evidence"]
    assert "void" in cell["verdict"]


def test_pooled_repeats_have_requests_enough_together(tmp_path: Path) -> None:
    found = summarise(make_run(tmp_path / "run", [[World(seed=s) for s in range(3)]]))
    assert "too-few-requests" not in [v["code"] for v in found["cells"][0]["validity"]]


def test_closed_loop_says_so(tmp_path: Path) -> None:
    cell = summarise(make_run(tmp_path / "run", [[World(rate=None, streams=4)]]))["cells"][0]
    assert cell["loop"] == "closed" and cell["max_concurrency"] == 4 and "request_rate" not in cell
    assert "closed loop" in cell["verdict"] and cell["slots"]["needed"] == cell["slots"]["held"]


def test_unknown_slots_are_absent_unless_a_plateau_shows_them(tmp_path: Path) -> None:
    healthy = summarise(make_run(tmp_path / "a", [[World(known_slots=False)]]))["cells"][0]["slots"]
    assert "available" not in healthy and "utilisation" not in healthy and "source" not in healthy
    full = summarise(make_run(tmp_path / "b", [[World(known_slots=False, rate=8, slots=4, n=150)]]))["cells"][0][
        "slots"
    ]
    assert (full["available"], full["source"]) == (4, "inferred") and full["utilisation"] > 1


def test_simulated_is_said(tmp_path: Path) -> None:
    found = summarise(make_run(tmp_path / "run", [[World()]], simulated=True))
    assert found["simulated"] is True and found["verdict"].startswith("SIMULATED")


def test_a_run_that_a_crash_cut_short(tmp_path: Path) -> None:
    """The entry has no end yet: what the rows say stands in for it."""
    run = make_run(tmp_path / "run", [[World()]])
    for name in ("send_end_s", "end_s", "client"):
        del run.document["cell_runs"][0][name]
    run.document["cell_runs"][0]["state"] = "running"
    run.save()
    cell = summarise(Run.open(tmp_path / "run"))["cells"][0]
    assert cell["completed"] == 120 and cell["ttft_split_ms"]["prefill"] == pytest.approx(80.0)


def test_a_run_without_a_cell(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"deployments": [], "plan": {"cells": []}})
    found = summarise(run)
    assert found["cells"] == [] and exit_code_of(found) == 3 and found["verdict"] == "No cell was measured."


def test_no_answer_at_all(tmp_path: Path) -> None:
    nothing = {
        "status": "failed",
        "first_token_s": None,
        "last_token_s": None,
        "output_tokens": None,
        "prompt_tokens": None,
    }
    world = World(n=12, spoil=[lambda r: r.row.update(nothing)], pages=())
    found = summarise(make_run(tmp_path / "run", [[world]]))
    cell = found["cells"][0]
    assert cell["completed"] == 0 and "mean_ttft_ms" not in cell and exit_code_of(found) == 3
    assert "no request was answered" in cell["verdict"] and cell["diagnosis"] == []


def test_the_reference_case_in_one_sentence(tmp_path: Path) -> None:
    world = World(
        rate=8, n=480, prompt=16384, tokens=128, prefill_s=0.06, transfer_s=0.0712, post_s=0.0607, step_s=0.0104
    )
    cell = summarise(make_run(tmp_path / "run", [[world]]))["cells"][0]
    assert cell["slots"]["needed"] == pytest.approx(10.65, abs=0.05) and cell["slots"]["held"] == pytest.approx(
        8, abs=0.2
    )
    assert 36 <= cell["ttft_growth_ms_per_request"] <= 52
    assert "decode needs 10.6 slots and has 8" in cell["verdict"] and "a figure of this run's length" in cell["verdict"]
    assert (
        "Raise --max-num-seqs on decode to 15 or lower the rate to 3.5 req/s (limit: slots): mean wait for a slot about"
        in cell["verdict"]
    )


def test_the_reference_case_served_from_the_prefix_cache(tmp_path: Path) -> None:
    """Three quarters of 131k prompt tokens/s were cached: said beside the overload, and first."""

    def hit(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        queries = next((r[5] for r in rows if r[1] == "prefix_cache_queries"), 0.0)
        cached = role == "prefill"
        return [[*r[:5], 0.75 * queries] if cached and r[1] == "prefix_cache_hits" else r for r in rows]

    world = World(
        rate=8, n=240, prompt=16384, tokens=128, prefill_s=0.06, transfer_s=0.07, post_s=0.06, slots=16, tamper=hit
    )
    found = summarise(make_run(tmp_path / "run", [[world]]))
    evidence = next(v["evidence"] for v in found["cells"][0]["validity"] if v["code"] == "prefix-cache-hits")
    assert "had 75.0% of its prompt tokens" in evidence and "prompt tokens/s served it computed at most 3" in evidence
    assert "void (prefix-cache-hits" in found["verdict"]


def test_the_verdict_of_a_run_names_the_lowest_load_that_breaks_in_two_sentences(tmp_path: Path) -> None:
    def world(rate: float, prompt: int, step_s: float) -> World:
        return World(rate=rate, n=160, prompt=prompt, tokens=128, step_s=step_s, prefill_s=0.04)

    worlds = [world(12, 1024, 0.010), world(2, 1024, 0.007), world(8, 1024, 0.009), world(8, 4096, 0.0104)]
    verdict = summarise(make_run(tmp_path / "run", [[w] for w in worlds]))["verdict"]
    assert verdict.startswith("1 of 4 cells is valid; 8 req/s x 4,096 tokens: not steady state: decode needs 10.6")
    assert verdict.count(". ") == 1


def test_slots_held_never_exceed_those_there_are(tmp_path: Path) -> None:
    """Prefill slows decode while the load lasts, so the drain is faster than the load ever was."""

    def faster(r: Any) -> None:
        if r.first > 20:
            r.offsets = [r.offsets[0] + k * 0.005 for k in range(len(r.offsets))]
            r.row["last_token_s"] = r.arrive + r.offsets[-1]

    for seed in range(4):
        world = World(rate=12, n=120, tokens=128, slots=8, seed=seed, prefill_s=0.02, spoil=[faster])
        assert summarise(make_run(tmp_path / str(seed), [[world]]))["cells"][0]["slots"]["held"] <= 8.1


def test_events_with_several_tokens_are_a_note_and_no_flag(tmp_path: Path) -> None:
    world = World(n=320, rate=4, prefill_s=0.04, spoil=[lambda r: r.row.update(chunks=58)])
    cell = summarise(make_run(tmp_path / "run", [[world]]))["cells"][0]
    assert cell["validity"] == [] and "events carry 1.1 tokens" in cell["notes"][0]


def test_a_colocated_server_has_one_number_for_what_it_needs(tmp_path: Path) -> None:
    world = World(mode="colocated", rate=5, n=200, tokens=128, slots=4, prefill_s=0.06)
    cell = summarise(make_run(tmp_path / "run", [[world]]))["cells"][0]
    evidence = cell["diagnosis"][0]["evidence"]
    assert f"{cell['slots']['needed']:.1f} slots plus 0.3 held during prefill, of 4" in evidence
    assert f"the server needs {cell['slots']['needed']:.1f} slots and has 4" in cell["verdict"]


def test_slots_that_a_server_contradicts_are_said_in_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [[World()]])
    decode = next(server for server in run.document["deployments"][0]["servers"] if server["role"] == "decode")
    decode["facts"] = {"max_num_seqs": 3, "notes": ["max_num_seqs 8 was given and is used, though it says 3"]}
    (cell,) = summarise(run)["cells"]
    assert cell["notes"][0] == "decode-0: max_num_seqs 8 was given and is used, though it says 3."
    decode["facts"]["notes"] = []
    assert not any("max_num_seqs" in note for note in summarise(run)["cells"][0]["notes"])
