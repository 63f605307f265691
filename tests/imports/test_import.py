"""Files that other tools wrote: recognised by content, and what comes out agrees with what the tools said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.cli import main
from pdbench.report.imports.formats import FORMATS, read_one
from pdbench.run import Run

FILES = Path(__file__).parent / "files"
OF = {
    "vllm": ["vllm-plain.json", "vllm-detailed-1.json", "vllm-detailed-4.json"],
    "sglang": ["sglang.jsonl"],
    "guidellm": ["guidellm.json"],
    "aiperf": ["aiperf", "aiperf/profile_export.jsonl", "aiperf/profile_export_aiperf.json"],
    "inference-perf": ["inference-perf", "inference-perf/stage_0_lifecycle_metrics.json"],
}
ALL = [(name, file) for name, files in OF.items() for file in files]


def imported(path: Path, *files: str | Path, code: tuple[int, ...] = (0, 3)) -> dict[str, Any]:
    out = path / "run"
    assert main(["import", *(str(FILES / file) for file in files), "--out", str(out)]) in code
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


def codes(cell: dict[str, Any], severity: str) -> set[str]:
    return {flag["code"] for flag in cell["validity"] if flag["severity"] == severity}


@pytest.mark.parametrize(("name", "file"), ALL)
def test_a_file_is_recognised_by_what_it_holds(name, file, tmp_path):
    source = tmp_path / "x"
    if (FILES / file).is_dir():
        shutil.copytree(FILES / file, source)
    else:
        source = tmp_path / "renamed.txt"
        shutil.copy(FILES / file, source)
    recognised = [FORMATS[other][1] for other in FORMATS if FORMATS[other][0](_source(source))]
    assert recognised == [FORMATS[name][1]]
    assert read_one(source).cells


def _source(path: Path):
    from pdbench.report.imports.source import read_source

    return read_source(path)


@pytest.mark.parametrize(("name", "file"), ALL)
def test_every_cell_is_marked_and_the_report_opens(name, file, tmp_path):
    summary = imported(tmp_path, file)
    tool = summary["imported_from"]
    assert summary["cells"]
    for cell in summary["cells"]:
        evidence = next(flag["evidence"] for flag in cell["validity"] if flag["code"] == "imported")
        assert evidence.startswith(f"measured by {tool}") and "latencies count from" in evidence
        assert "request_throughput" not in cell or cell["sent"]  # never another tool's throughput under our name
        assert "metrics-missing" not in codes(cell, "warn")
    assert f"IMPORTED</b> from {tool}" in (tmp_path / "run" / "report.html").read_text()
    before = (tmp_path / "run" / "summary.json").read_text()
    assert main(["report", str(tmp_path / "run")]) in (0, 3)
    assert (tmp_path / "run" / "summary.json").read_text() == before


@pytest.mark.parametrize("rate", [1, 4])
def test_vllm_with_details_gives_vllms_own_figures(rate, tmp_path):
    said = json.loads((FILES / f"vllm-detailed-{rate}.json").read_text())
    (cell,) = imported(tmp_path, f"vllm-detailed-{rate}.json")["cells"]
    queue_ms = np.mean(said["queue_times"]) * 1000
    assert cell["mean_ttft_ms"] == pytest.approx(said["mean_ttft_ms"] + queue_ms, rel=1e-4)
    for name in ("mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "p99_itl_ms"):
        assert cell[name] == pytest.approx(said[name], rel=1e-3)
    assert cell["completed"] == said["completed"] and cell["total_output_tokens"] == said["total_output_tokens"]
    assert cell["foreign"]["request_throughput"] == pytest.approx(said["request_throughput"])
    assert (cell["request_rate"], cell["prompt_len"], cell["output_len"]) == (rate, 512, 64)


def test_an_old_overload_is_called_one_and_its_healthy_twin_is_not(tmp_path):
    summary = imported(tmp_path, "vllm-detailed-1.json", "vllm-detailed-4.json")
    healthy, overloaded = summary["cells"]
    assert "not-steady-state" in codes(overloaded, "void")
    assert overloaded["ttft_growth_ms_per_request"] > 100
    assert not codes(healthy, "void")
    assert not summary["simulated"]


def test_files_of_one_load_are_repeats_of_one_cell(tmp_path):
    (cell,) = imported(tmp_path, "vllm-detailed-1.json", "vllm-detailed-1.json")["cells"]
    assert [repeat["repeat"] for repeat in cell["repeats"]] == [0, 1]
    assert cell["completed"] == 80 and cell["repeats"][0]["mean_ttft_ms"] == cell["mean_ttft_ms"]


@pytest.mark.parametrize("file", ["vllm-plain.json", "sglang.jsonl"])
def test_figures_keep_their_names_where_they_mean_the_same(file, tmp_path):
    said = json.loads((FILES / file).read_text())
    summary = imported(tmp_path, file)
    (cell,) = summary["cells"]
    for name in ("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "completed"):
        assert cell[name] == said[name]
    assert cell["needs"]["p99_ttft_ms"] == 299  # twelve requests carry no p99
    assert "request_throughput" not in cell and cell["foreign"]["request_throughput"] == said["request_throughput"]
    if file == "sglang.jsonl":
        assert cell["mean_e2el_ms"] == said["mean_e2e_latency_ms"]
        assert summary["plan"]["goodput_ms"] == {"ttft": 200.0, "tpot": 30.0}
    assert summary["simulated"]
    assert Run.open(tmp_path / "run").table("requests").empty


def test_guidellm_counts_from_when_a_request_should_have_left(tmp_path):
    said = json.loads((FILES / "guidellm.json").read_text())["benchmarks"]
    cells = imported(tmp_path, "guidellm.json")["cells"]
    assert [cell["request_rate"] for cell in cells] == [4.0, 8.0]
    for benchmark, cell in zip(said, cells, strict=True):
        metrics = {name: record["successful"] for name, record in benchmark["metrics"].items() if record}
        late = metrics["request_dispatch_delay"]["mean"] * 1000
        assert cell["mean_ttft_ms"] == pytest.approx(metrics["time_to_first_token_ms"]["mean"] + late, rel=1e-3)
        assert cell["mean_tpot_ms"] == pytest.approx(metrics["inter_token_latency_ms"]["mean"], rel=1e-3)
        assert not any(name.endswith("itl_ms") for name in cell)  # the file has no gaps
        assert cell["foreign"]["time_per_output_token_ms"]["mean"] > cell["mean_tpot_ms"]
        assert "client-saturated" in codes(cell, "void")  # 10 to 20 ms late, of 18 to 27 ms


def test_aiperf_requests_carry_the_servers_tokens(tmp_path):
    said = json.loads((FILES / "aiperf/profile_export_aiperf.json").read_text())
    (cell,) = imported(tmp_path, "aiperf")["cells"]
    released = said["credit_to_start_latency"]["avg"]
    assert cell["mean_ttft_ms"] == pytest.approx(said["time_to_first_token"]["avg"] + released, rel=1e-3)
    assert cell["mean_itl_ms"] == pytest.approx(said["inter_chunk_latency"]["avg"], rel=1e-3)
    assert cell["total_output_tokens"] == said["total_usage_completion_tokens"]["avg"] == 12 * 8
    assert cell["mean_tpot_ms"] == pytest.approx(cell["mean_itl_ms"], rel=0.02)  # an event is a token there


def test_aiperf_figures_alone_have_no_tpot_where_its_tokens_are_others(tmp_path):
    """Its client counted 28 tokens in answers of 8, so what it calls inter-token latency is no time a token."""
    (cell,) = imported(tmp_path, "aiperf/profile_export_aiperf.json")["cells"]
    assert "mean_tpot_ms" not in cell and cell["foreign"]["inter_token_latency"] == pytest.approx(1.47, abs=0.01)
    assert cell["mean_itl_ms"] == pytest.approx(5.67, abs=0.01)


def test_inference_perf_stages_are_cells(tmp_path):
    said = [json.loads((FILES / f"inference-perf/stage_{i}_lifecycle_metrics.json").read_text()) for i in (0, 1)]
    cells = imported(tmp_path, "inference-perf")["cells"]
    assert [cell["completed"] for cell in cells] == [12, 16]
    for stage, cell in zip(said, cells, strict=True):
        latency = stage["successes"]["latency"]
        assert cell["request_rate"] == stage["load_summary"]["requested_rate"]
        assert cell["mean_ttft_ms"] == pytest.approx(latency["time_to_first_token"]["mean"] * 1000, rel=1e-4)
        assert cell["foreign"]["schedule_delay"]["mean"] == pytest.approx(
            stage["load_summary"]["schedule_delay"]["mean"]
        )
        # Eight tokens by the server, 28 by its tokenizer: its own time per token is a quarter of the truth.
        assert cell["mean_tpot_ms"] == pytest.approx(3.5 * latency["inter_token_latency"]["mean"] * 1000, rel=0.35)


def test_secrets_of_a_file_reach_no_file(tmp_path):
    imported(tmp_path, "sglang.jsonl")
    for file in (tmp_path / "run").iterdir():
        assert b"sk-planted-secret" not in file.read_bytes(), file.name


def changed(tmp_path: Path, file: str, **changes: Any) -> Path:
    document = json.loads((FILES / file).read_text())
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({**document, **changes}))
    return path


def test_failures_have_no_latency_and_their_words_are_cleaned(tmp_path):
    said = json.loads((FILES / "vllm-detailed-1.json").read_text())
    failed = "Traceback\nHTTP 500: Authorization: Bearer abc.def \x1b[31m boom"
    errors = [failed if i % 2 else "" for i in range(len(said["errors"]))]
    ttfts = [0.0 if i % 2 else value for i, value in enumerate(said["ttfts"])]
    (cell,) = imported(tmp_path, changed(tmp_path, "vllm-detailed-1.json", errors=errors, ttfts=ttfts))["cells"]
    assert (cell["completed"], cell["failed"]) == (20, 20) and "failed-requests" in codes(cell, "void")
    assert cell["mean_ttft_ms"] == pytest.approx(np.mean(ttfts[::2]) * 1000, rel=0.02)
    words = set(Run.open(tmp_path / "run").table("requests")["error"].dropna())
    assert words == {"HTTP 500: *** boom"} or words == {"HTTP 500: *** abc.def boom"}


@pytest.mark.parametrize("failed", [0, 1, 3])
def test_figures_of_a_run_that_failed_are_void(failed, tmp_path):
    (cell,) = imported(tmp_path, changed(tmp_path, "vllm-plain.json", failed=failed))["cells"]
    found = [flag["severity"] for flag in cell["validity"] if flag["code"] == "failed-requests"]
    assert found == {0: [], 1: ["void"], 3: ["void"]}[failed]


def test_figures_of_a_run_that_fell_behind_say_so(tmp_path):
    (cell,) = imported(tmp_path, changed(tmp_path, "vllm-plain.json", duration=12.0))["cells"]
    assert "not-steady-state" in codes(cell, "warn")


def test_an_overload_is_flagged_without_end_to_end_latencies(tmp_path):
    # 12 answers of 8 tokens; 3 s of sends, 5 s to the mean first token and 7 gaps of 100 ms: 8.7 s of 12.
    told = {"duration": 12.0, "mean_ttft_ms": 5000.0, "mean_tpot_ms": 100.0, "latencies": None}
    summary = imported(tmp_path, changed(tmp_path, "vllm-plain.json", **told))
    (cell,) = summary["cells"]
    assert "not-steady-state" in codes(cell, "warn") and "mean_e2el_ms" not in cell
    assert "take 9 s" in summary["verdict"] and "1 req/s were answered to the last, 4 asked" in summary["verdict"]
    assert "flagged (not-steady-state)" in summary["verdict"]
    assert "The cell is flagged, and not shown to be valid; 4 req/s" in summary["verdict"]


def test_an_import_claims_nothing_that_its_file_does_not_say(tmp_path):
    summary = imported(tmp_path, "vllm-plain.json")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Causes could not be looked for" in summary["verdict"] and "flagged" not in summary["verdict"]
    assert "The cell is not void by what its file tells; " in summary["verdict"]
    for false in ("No cause stands out", "no request was answered.", "no answer had two tokens"):
        assert false not in summary["verdict"] + page
    assert page.count("the imported file does not hold the send time of every request") == 2


def test_a_burst_is_no_rate(tmp_path):
    (cell,) = imported(tmp_path, changed(tmp_path, "vllm-plain.json", request_rate="inf"))["cells"]
    assert cell["loop"] == "closed" and cell["max_concurrency"] == 12 and "request_rate" not in cell


BROKEN = {
    "no such file": None,
    "is not JSON": "{",
    "is empty": "",
    "is of no tool that pdbench reads": '{"a": 1}',
    "is of no tool": "[1, 2]",
    "no single load": '{"tokenizer_id": 1, "model_id": 1, "backend": 1, "request_throughput": 1, "ramp_up_strategy":1}',
    "cannot be read as aiperf writes it": '{"metadata": {"benchmark_phase": "profiling"}}',
    "cannot be read as inference-perf": '[{"start_time": {}, "end_time": 1, "info": {}}]',
    "this reads version 2": '{"metadata": {"guidellm_version": "0.5", "version": 1}, "benchmarks": []}',
    "holds no request": '{"tokenizer_id": 1, "model_id": "m", "backend": "b", "request_throughput": 1, "completed": 0}',
}


@pytest.mark.parametrize("said", BROKEN)
def test_what_cannot_be_imported_is_one_sentence(said, tmp_path, capsys):
    file = tmp_path / "file.json"
    if BROKEN[said] is not None:
        file.write_text(BROKEN[said] or "")
    assert main(["import", str(file), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error or (said == "no such file" and "does not exist" in error)
    assert "Traceback" not in error and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("vllm-plain.json", {"mean_ttft_ms": "fast"}, "mean_ttft_ms is no number: 'fast'"),
        ("vllm-plain.json", {"p99_itl_ms": [3]}, "p99_itl_ms is no number: [3]"),
        ("vllm-detailed-1.json", {"output_lens": [8, "many"] + [8] * 30}, "output_lens[1] is no number: 'many'"),
    ],
)
def test_what_is_no_number_is_named_with_its_field(file, change, said, tmp_path, capsys):
    assert main(["import", str(changed(tmp_path, file, **change)), "--out", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


def test_an_imported_run_cannot_be_gone_on_with(tmp_path, capsys):
    imported(tmp_path, "vllm-plain.json")
    assert main(["sweep", "--resume", str(tmp_path / "run")]) == 2
    assert "was measured by vllm bench serve and imported" in capsys.readouterr().err


def test_files_of_two_tools_are_not_joined(tmp_path, capsys):
    both = [str(FILES / "vllm-plain.json"), str(FILES / "sglang.jsonl")]
    assert main(["import", *both, "--out", str(tmp_path / "run")]) == 2
    assert "their definitions differ" in capsys.readouterr().err
