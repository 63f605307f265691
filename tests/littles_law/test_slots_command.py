"""`pdbench slots` as its users call it: the contract of --json, the reference case, limits, warnings, the page."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdbench.cli import main

PULL = ("--qps", "8", "--out-tokens", "128", "--tpot", "10.4")
PUSH = ("--qps", "8", "--out-tokens", "128", "--tpot", "7.0")
CONTRACT = {
    "slots_needed", "slots_available", "utilisation", "p_wait", "wait_ms", "method", "stable",
    "recommended_max_num_seqs", "max_qps", "overload",
}  # fmt: skip


@pytest.fixture
def slots(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str) -> dict[str, Any]:
        code = main(["slots", *words, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        document: dict[str, Any] = json.loads(printed.out, parse_constant=lambda name: pytest.fail(name))
        return document

    return run


def text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["slots", *words]) == 0
    return capsys.readouterr().out


def codes(document: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in document["warnings"]}


def test_reference_demand(slots: Any) -> None:
    assert slots(*PULL)["slots_needed"] == pytest.approx(10.6, abs=0.05)
    assert slots(*PUSH)["slots_needed"] == pytest.approx(7.2, abs=0.05)
    assert slots("--qps", "1", "--out-tokens", "128", "--tpot", "10.4")["slots_needed"] == pytest.approx(1.33, abs=0.01)


def test_pull_on_8_slots_is_an_overload(slots: Any) -> None:
    found = slots(*PULL, "--max-num-seqs", "8")
    assert set(found) >= CONTRACT
    assert found["stable"] is False and found["wait_ms"] is None and found["p_wait"] == 1
    assert found["overload"]["achieved_qps"] == pytest.approx(6.01, abs=0.01)
    assert found["overload"]["ttft_growth_ms_per_request"] == pytest.approx(41.4, abs=0.1)
    assert found["max_qps"] < found["overload"]["achieved_qps"] and found["recommended_max_num_seqs"] > 11


def test_push_on_8_slots_waits(slots: Any) -> None:
    """At R/c = 0.90 the steady-state mean wait is about 0.43 S = 0.38 s and p99 2.5 S = 2.3 s."""
    found = slots(*PUSH, "--max-num-seqs", "8")
    assert found["stable"] is True and found["overload"] is None
    assert found["utilisation"] == pytest.approx(0.896)
    assert found["wait_ms"]["mean"] == pytest.approx(385, rel=0.03)
    assert found["wait_ms"]["p99"] == pytest.approx(2240, rel=0.03)
    assert found["rule_80"]["verdict"] == "too loose"


def test_a_run_of_400_prompts(slots: Any) -> None:
    finite = slots(*PULL, "--max-num-seqs", "8", "--num-prompts", "400", "--vllm-arrivals")["finite"]
    assert finite["wait_ms"]["mean"] == pytest.approx(8200, rel=0.03)
    assert finite["achieved_qps"] == pytest.approx(5.92, rel=0.02)


def test_the_rule_is_too_strict_for_many_slots(slots: Any) -> None:
    found = slots(
        "--qps", "200", "--out-tokens", "128", "--tpot", "8", "--max-num-seqs", "256", "--slo-wait-p99", "256ms"
    )
    assert found["rule_80"]["verdict"] == "too strict"
    assert found["safe_utilisation"] == pytest.approx(0.97, abs=0.01)


def test_an_agent_holds_a_slot_16_times_as_long(slots: Any) -> None:
    found = slots("--class", "chat:128@6", "--class", "agent:2000@0.5", "--tpot", "8", "--max-num-seqs", "24")
    chat, agent = found["classes"]
    assert agent["held_ms"] / chat["held_ms"] == pytest.approx(16, abs=0.5)
    assert sum(one["share"] for one in found["classes"]) == pytest.approx(1)
    assert found["slots_needed"] == pytest.approx(6 * 1.024 + 0.5 * 16)
    assert found["method"].startswith("simulation") and "95 %" in found["method_error"]
    # The rate itself was just found to keep the SLO: shorter simulations near it do not say otherwise.
    assert found["keeps_slo"] and found["max_qps"] >= found["qps"] * (1 - 1e-9) and found["slots_for_slo"] <= 24


def test_recommendations_hold_and_are_the_least(slots: Any) -> None:
    for more in ((), ("--out-cv", "1"), ("--burstiness", "0.5"), ("--tpot-slope", "0.05", "--tpot-at-batch", "8")):
        found = slots(*PUSH, "--max-num-seqs", "8", *more)
        wanted = found["recommended_max_num_seqs"]
        kept = slots(*PUSH, "--max-num-seqs", str(wanted), *more)
        less = slots(*PUSH, "--max-num-seqs", str(wanted - 1), *more)
        assert kept["wait_ms"]["p99"] <= 100 and kept["keeps_slo"]
        assert less["wait_ms"] is None or less["wait_ms"]["p99"] > 100
        safe = str(found["max_qps"])
        assert slots("--qps", safe, *PUSH[2:], "--max-num-seqs", "8", *more)["wait_ms"]["p99"] <= 100


def test_tpot_at_full_batch_counts(slots: Any) -> None:
    """With TPOT at batch 1 the naive share is 0.59 where the pool is at 0.95."""
    qps = 0.95 * 64 / (200 * 16.4 / 1000)
    found = slots(
        "--qps", str(qps), "--out-tokens", "200", "--tpot", "10.1", "--tpot-slope", "0.1", "--tpot-at-batch", "1",
        "--max-num-seqs", "64", "--out-cv", "1",
    )  # fmt: skip
    assert found["utilisation"] == pytest.approx(0.95)
    assert found["slots_needed"] == pytest.approx(58.9, abs=0.1)
    assert found["p_wait"] == pytest.approx(0.512, abs=0.003)
    assert found["wait_ms"]["mean"] == pytest.approx(524, rel=0.02)


def test_warnings_name_what_to_doubt(slots: Any) -> None:
    assert "mean-length" in codes(slots(*PUSH, "--max-num-seqs", "8"))
    assert "mean-length" not in codes(slots(*PUSH, "--max-num-seqs", "8", "--out-cv", "1"))
    assert "tpot-batch" in codes(slots(*PUSH, "--max-num-seqs", "64", "--tpot-at-batch", "1"))
    assert "tpot-batch" not in codes(slots(*PUSH, "--max-num-seqs", "8", "--tpot-at-batch", "8"))
    two = slots(*PUSH, "--max-num-seqs", "8", "--decoders", "2")
    assert "separate-pools" in codes(two)
    assert two["pools"]["separate_wait_p99_ms"] > two["pools"]["one_pool_wait_p99_ms"]
    assert "batch-too-slow" in codes(slots("--qps", "30", "--out-tokens", "200", "--tpot", "10", "--tpot-slope", "0.3"))


def test_kv_pool_is_a_second_limit(slots: Any) -> None:
    """Qwen3-32B: 16,128 tokens are 0.49 GiB on each of 8 GPUs."""
    memory = ("--model", "Qwen3-32B", "--tp", "8", "--prompt-len", "16000")
    found = slots(*PULL, "--max-num-seqs", "32", *memory, "--hbm", "8")
    assert found["kv"]["gib_per_slot"] == pytest.approx(16128 * 32 / 2**20, rel=1e-6)
    assert found["slots_available"] == math.floor(8 / (16128 * 32 / 2**20)) - 1 == 15
    assert {"kv-pool", "kv-does-not-fit"} <= codes(found)
    assert found["recommended_max_num_seqs"] is None and found["slots_for_slo"] == 19
    tokens = slots(*PULL, "--max-num-seqs", "32", "--prompt-len", "16000", "--kv-tokens", "500000", "--staging", "2")
    assert tokens["slots_available"] == 500000 // 16128 - 2


def test_traces(slots: Any, tmp_path: Path) -> None:
    azure = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:{i // 60:02d}:{i % 60:02d}.0000000,100,{50 + 300 * (i % 10 == 0)}" for i in range(1200)]
    azure.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    found = slots("--trace", str(azure), "--tpot", "50", "--max-num-seqs", "5")
    assert found["qps"] == pytest.approx(1.0)
    assert found["slots_needed"] == pytest.approx(80 * 0.05, rel=0.01)
    assert "replay" in found["method"] and found["trace"]["peak_minute_qps"] == pytest.approx(1.0)
    mooncake = tmp_path / "mooncake.jsonl"
    lines = [{"timestamp": 500 * i, "input_length": 10, "output_length": 40 + i % 3} for i in range(300)]
    mooncake.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fast = slots("--trace", str(mooncake), "--tpot", "20", "--max-num-seqs", "4", "--qps", "20")
    assert fast["overload"]["achieved_qps"] < 20 and "short-trace" in codes(fast)
    drawn = slots("--trace", str(mooncake), "--tpot", "20", "--max-num-seqs", "4", "--burstiness", "1")
    assert "replay" not in drawn["method"]


def test_from_run(slots: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = {
        "target": "pull", "prompt_len": 16384, "output_len": 128, "completed": 400, "total_output_tokens": 51200,
        "mean_tpot_ms": 10.4, "slots": {"available": 8}, "ttft_split_ms": {"slot_wait": 700.0}, "validity": [],
    }  # fmt: skip
    cells = [{**cell, "request_rate": rate} for rate in (1.0, 8.0)] + [{**cell, "max_concurrency": 4}]
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "simulated": False, "cells": cells}))
    found = slots("--from-run", str(tmp_path))
    assert set(found) >= CONTRACT and found["request_rate"] == 8.0 and found["overload"] is not None
    assert [one["utilisation"] for one in found["cells"]] == pytest.approx([0.1664, 1.3312])
    assert found["finite"]["num_prompts"] == 400
    shown = text(capsys, "--from-run", str(tmp_path / "summary.json"))
    assert "no end" in shown and "700 ms" in shown
    assert max(map(len, shown.splitlines())) <= 80 and "ms\n" not in [line.strip() for line in shown.splitlines()]
    grows = ("--tpot-slope", "0.42", "--tpot-at-batch", "8")
    sloped = slots("--from-run", str(tmp_path), *grows)
    assert sloped["recommended_max_num_seqs"] == slots(*PULL, *grows)["recommended_max_num_seqs"] > 19
    unsaid = slots("--from-run", str(tmp_path), "--tpot-slope", "0.42")["cells"][0]  # 1.33 streams ran at 1 req/s
    assert unsaid["tpot_slope_ms"] == 0.42 and unsaid["tpot_ms"] == pytest.approx(10.4)
    capsys.readouterr()
    assert main(["slots", "--from-run", str(tmp_path), "--out-cv", "1", "--hbm", "80"]) == 2
    assert "does not use --out-cv, --hbm" in " ".join(capsys.readouterr().err.split())
    for words in (["--kv-dtype", "fp8"], ["--tp", "8"], ["--staging", "4"], ["--tpot-at-batch", "4"]):
        assert main(["slots", "--from-run", str(tmp_path), *words]) == 2
        assert f"does not use {words[0]}" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 99, "cells": []}))
    assert main(["slots", "--from-run", str(tmp_path)]) == 2


VOID = {"code": "failed-requests", "severity": "void", "evidence": "59 % failed."}
WARN = {"code": "foreign-traffic", "severity": "warn", "evidence": "Counters exceed ours."}


def test_validity_and_measured_waits_stand_beside_what_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = {
        "request_rate": 4.0, "prompt_len": 1024, "output_len": 128, "completed": 34, "mean_tpot_ms": 6.94,
        "slots": {"available": 8}, "ttft_split_ms": {"slot_wait": 13.9}, "request_throughput": 1.7,
    }  # fmt: skip
    cells = [{**cell, "validity": flags} for flags in ([VOID], [WARN], [])]
    for some in ([one] for one in cells):
        (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": some}))
        page = tmp_path / "slots.html"
        shown = text(capsys, "--from-run", str(tmp_path), "--html", str(page))
        (measured,) = [line for line in shown.splitlines() if line.startswith("measured")]
        assert "13.9 ms" in measured and "1.7 req/s" in measured
        codes = [flag["code"] for flag in some[0]["validity"]]
        assert shown.startswith(("VOID", "From a valid cell, flagged", "From a valid cell: 4")[cells.index(some[0])])
        assert all(code in shown.splitlines()[0] and code in page.read_text() for code in codes)
        assert ("measure again first" in " ".join(shown.split())) == (VOID in some[0]["validity"])
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": cells}))
    rows = [line.split()[0] for line in text(capsys, "--from-run", str(tmp_path)).splitlines() if "13.9 ms" in line]
    assert rows == ["VOID", "warn", "ok"]


@pytest.mark.parametrize("width", [80, 160])
def test_columns_are_obeyed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = text(capsys, *PUSH, "--max-num-seqs", "8", "--num-prompts", "400")
    assert 0.8 * width < max(map(len, shown.splitlines())) <= width


def test_a_number_of_slots_says_what_it_takes_of_tpot(slots: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each request posted for 54 ms on decode's loop adds 54 / 128 ms to the TPOT of all others: 19 slots do not do."""
    for words in (PULL, (*PULL, "--max-num-seqs", "8")):
        assert "tpot-constant" in codes(slots(*words))
        (line,) = [line for line in text(capsys, *words).splitlines() if line.startswith("max-num-seqs")]
        assert "19" in line and "if TPOT stays 10.4 ms" in line
    assert "at an unchanged TPOT of 10.4 ms" in " ".join(text(capsys, *PULL).split())
    known = (*PULL, "--max-num-seqs", "8", "--tpot-slope", "0.42", "--tpot-at-batch", "8")
    assert slots(*known)["recommended_max_num_seqs"] > 19 and "tpot-constant" not in codes(slots(*known))
    assert "if TPOT stays" not in text(capsys, *known)
    assert "tpot-constant" not in codes(slots(*PULL, "--max-num-seqs", "32")), "as many as were measured"


def test_a_run_without_slots_says_how_to_give_them(slots: Any, tmp_path: Path, capsys: Any) -> None:
    cell = {
        "request_rate": 8.0,
        "prompt_len": 1024,
        "output_len": 128,
        "mean_tpot_ms": 10.0,
        "slots": {"needed": 10.24},
    }
    (tmp_path / "summary.json").write_text(json.dumps({"schema": 1, "cells": [cell]}))
    said = text(capsys, "--from-run", str(tmp_path))
    assert "not known of this run: --max-num-seqs N" in said
    assert "for a p99 wait of 100 ms" in said and "the report's advice is for a mean wait" in said
    assert slots("--from-run", str(tmp_path), "--max-num-seqs", "16")["utilisation"] == pytest.approx(0.64)


def test_one_screen_with_the_answer_first(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (PULL, (*PULL, "--max-num-seqs", "8"), (*PUSH, "--max-num-seqs", "8", "--num-prompts", "400")):
        lines = text(capsys, *words).splitlines()
        assert len(lines) <= 32 and max(map(len, lines)) <= 80
    shown = text(capsys, *PUSH, "--max-num-seqs", "8")
    assert shown.startswith("The load holds 7.17 of 8 slots (90%)")
    assert "you are here" in shown and "Spitzer" in shown and "80 % rule" in shown and "half a step" in shown


def test_page_needs_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "slots.html"
    text(capsys, *PUSH, "--max-num-seqs", "8", "--num-prompts", "100", "--html", str(page))
    written = page.read_text()
    assert written.count("<polyline") >= 3 and "you are here" in written and "SLO 100 ms" in written
    assert "..." not in written  # no list of points was cut
    assert "http" not in written.replace("http-equiv", "") and "<script" not in written
    assert main(["slots", *PUSH, "--html", str(tmp_path / "no" / "such.html")]) == 74


@pytest.mark.parametrize(
    "words",
    [
        ("--qps", "nan", "--out-tokens", "1", "--tpot", "1"),
        ("--qps", "-1", "--out-tokens", "1", "--tpot", "1"),
        ("--qps", "1", "--out-tokens", "1"),
        ("--qps", "1", "--out-tokens", "0", "--tpot", "1"),
        (*PUSH, "--max-num-seqs", "0"),
        (*PUSH, "--burstiness", "0"),
        (*PUSH, "--out-cv", "-1"),
        (*PUSH, "--out-law", "pareto"),
        (*PUSH, "--class", "a:1@1"),
        ("--class", "a:b@c", "--tpot", "1"),
        ("--class", "a:8@1", "--class", "a:9@1", "--tpot", "1"),
        (*PUSH, "--model", "Qwen/Qwen3-32B", "--hbm", "40"),
        ("--trace", "/no/such/file", "--tpot", "1"),
        (*PUSH, "--tpot-slope", "100", "--tpot-at-batch", "8"),
        (*PUSH, "--kv-tokens", "100"),
        (*PUSH, "--kv-tokens", "100", "--prompt-len", "1000"),
        (*PUSH, "--hbm", "10", "--prompt-len", "1000"),
        (*PUSH, "--slo-wait-p99", "soon"),
        (*PUSH, "--num-prompts", "0"),
        (*PUSH, "--decoders", "0"),
    ],
)
def test_nonsense_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert main(["slots", *words]) == 2


@given(
    qps=st.floats(0, 1e12),
    out_tokens=st.floats(1e-9, 1e12),
    tpot=st.floats(1e-9, 1e12),
    count=st.integers(1, 1_000_000),
    burstiness=st.sampled_from([1.0, 0.3, 7.0, math.inf]),
    cv=st.sampled_from([0.0, 0.4, 1.0, 2.0]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_load_has_an_answer(
    qps: float, out_tokens: float, tpot: float, count: int, burstiness: float, cv: float
) -> None:
    from pdbench.littles_law.batch import Tpot
    from pdbench.littles_law.demand import Demand
    from pdbench.littles_law.lengths import Lengths
    from pdbench.littles_law.steady import steady

    demand = Demand(qps, out_tokens, Tpot(tpot), Lengths(cv), burstiness)
    found = steady(demand, count, simulate=False)
    if found.waits is None:
        assert demand.load(count) >= count
    else:
        waits = found.waits
        assert all(math.isfinite(x) and x >= 0 for x in (waits.mean_s, waits.p50_s, waits.p90_s, waits.p99_s))
        assert 0 <= waits.p_wait <= 1


def test_closed_forms_import_no_numpy() -> None:
    program = (
        "import sys\nfrom pdbench.cli import main\n"
        f"assert main(['slots', *{PUSH!r}, '--max-num-seqs', '8']) == 0\n"
        "heavy = {'numpy', 'pandas', 'plotly', 'aiohttp', 'scipy', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
