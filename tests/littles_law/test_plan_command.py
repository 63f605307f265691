"""`pdbench plan` as it is typed: the answer first, 80 columns, JSON without NaN, one page, and errors that help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdbench.cli import main

KV = ["kv", "--model", "Qwen3-32B", "--tp", "8"]
TRANSFER = ["transfer", "--model", "Qwen3-32B", "--tp", "8", "--link-gb-s", "50", "--prefill-ms", "500"]
CROSSOVER = ["crossover", "--model", "Qwen3-8B", "--tp", "8", "--prefill", "qwen3-8b-h800", "--t0-ms", "0.39"]
RATIO = ["ratio", "--prefill", "50000", "--qps", "11", "--prompt-len", "16000", "--tpot", "8", "--max-num-seqs", "32"]
TURN = [*RATIO, "--turn-to", "1000:1000@20", "--phase", "2m", "--routing", "shared"]
COMPARE = ["compare", "--prefill", "12200", "--prompt-len", "8192", "--qps", "0.4", "--tpot", "27"]
VERBS = [KV, TRANSFER, [*CROSSOVER, "--qps", "2"], TURN, COMPARE]
DRAWN = [CROSSOVER, TURN, COMPARE]


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in JSON")

    found: dict[str, Any] = json.loads(plan(capsys, *words, "--json"), parse_constant=refuse)
    return found


@pytest.mark.parametrize("words", VERBS, ids=lambda words: " ".join(words[:1] + words[-2:]))
def test_answer_first_and_eighty_columns(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    text = plan(capsys, *words)
    said = document(capsys, *words)["answer"]
    assert re.sub(r"\s+", " ", text).startswith(said)
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())


def test_reference_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, *KV)["bytes_per_token"] == 256 * 1024
    text = plan(capsys, "transfer", "--model", "Qwen3-32B", "--tp", "8", "--link-gb-s", "50")
    assert text.startswith("4.19 GB take 10.5 ms at 50 GB/s a GPU")
    found = document(capsys, *TRANSFER)
    assert [way["way"] for way in found["ways"]] == ["pull", "push", "push per layer"]
    assert found["ways"][2]["hidden_fraction"] == pytest.approx(63 / 64)
    # Blocks of 16 tokens, 64 layers: 64,000 descriptors, 154 ms to post where none are merged.
    assert (found["descriptors"], found["post_ms"]) == (64_000, None)
    assert found["post_ms_scattered"] == pytest.approx(153.6)


def test_ttft_alone_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert "TTFT alone does not improve with one prefill and one decode instance" in re.sub(
        r"\s+", " ", plan(capsys, *CROSSOVER)
    )
    found = document(capsys, *CROSSOVER, "--qps", "4", "--prompt-lens", "512,100000")
    assert found["ttft_improves"] is False
    assert [row["overload"] for row in found["load"]] == [False, True]
    loss = found["load"][0]["break_even_ttft_ms"]
    assert loss < 0
    text = plan(capsys, *CROSSOVER, "--qps", "4", "--prompt-lens", "512,100000")
    assert f"{-loss:.1f} ms worse" in text


def test_the_crossover_of_a_load_carries_it(capsys: pytest.CaptureFixture[str]) -> None:
    """5 req/s of 8,192 tokens of 147,456 bytes are 6.04 GB/s, 8.63 at 70 % of a link; latency alone asks for less."""
    found = document(capsys, *CROSSOVER, "--qps", "5", "--prompt-lens", "8192")
    (row,) = found["load"]
    assert row["load_gb_s"] == pytest.approx(5 * 8192 * 147_456 / 0.7e9)
    assert row["binds"] == "load"
    assert row["gb_s"] == row["load_gb_s"] > row["latency_gb_s"]
    assert "needs 8.63 GB/s (69.0 Gbit/s): carrying the prompts binds" in found["answer"]
    few = document(capsys, *CROSSOVER, "--qps", "4", "--prompt-lens", "512")
    assert few["load"][0]["binds"] == "latency"
    assert "lower total latency binds" in few["answer"]
    # The rule has neither a batch nor a queue, and two instances of eight GPUs are not two GPUs.
    said = " ".join(plan(capsys, *CROSSOVER, "--qps", "2").split())
    assert "2 req/s on two instances of 8 GPUs" in said and "two GPUs" not in said and "goodput" not in said
    assert "The second table is the rule alone" in said and "highest rate" in said
    alone = " ".join(plan(capsys, "crossover", "--model", "Qwen3-8B", "--prefill", "12200", "--qps", "900").split())
    assert "Two GPUs do not carry 900 req/s" in alone
    assert "The second table" not in " ".join(plan(capsys, *CROSSOVER).split())
    # Without a load the rate up to which the crossover is enough is named: 1.9 GB/s / 0.6 at 1.73 a req/s.
    answer = document(capsys, *CROSSOVER)["answer"]
    assert "above 3.18 GB/s" in answer and "up to 1.84 req/s" in answer and "the rule alone says 1.9" in answer


def test_a_transfer_that_is_hidden_asks_for_no_bandwidth_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    hidden = document(capsys, *CROSSOVER[:-2], "--hidden", "1")["answer"]
    assert "carrying the prompts is what binds, 1.73 GB/s for each req/s" in hidden and " 0 " not in hidden


@pytest.mark.parametrize(
    ("load", "full", "said"),
    [
        # Two instances at half of 26 req/s x 39 ms each, or one prefill at all of it.
        (["--qps", "26", "--prompt-lens", "2048"], ["prefill"], "when co-located, and not as P/D: prefill"),
        # A step of 1 + 0.9 ms a stream: 1.15 of decode's time with all streams in one batch, 0.58 with half of them.
        (["--qps", "10", "--prompt-lens", "1", "--tpot", "1", "--tpot-slope", "0.9"], ["decode"], "P/D: decode"),
        (["--qps", "60", "--prompt-lens", "2048"], ["prefill", "co-located"], "do not carry"),
    ],
)
def test_a_load_that_is_too_much_says_for_whom(
    capsys: pytest.CaptureFixture[str], load: list[str], full: list[str], said: str
) -> None:
    found = document(capsys, *CROSSOVER, *load)
    assert found["load"][0]["full"] == full and said in found["answer"]


def test_region_and_controller(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *TURN)
    assert len(found["ratios"]) == 7
    assert {state for row in found["region"]["states"] for state in row} >= {"both", "overload"}
    steered = found["controller"]
    assert steered["best_fixed"]["share"] <= steered["controller"]["share"] <= steered["oracle"]["share"]
    assert steered["controller"]["moves_s"]


def test_a_load_that_does_not_turn_has_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """5:3 is 70% busy with a queue for each instance: tables and simulation both say how often it misses 1 s."""
    found = document(capsys, *RATIO, "--goodput", "ttft:1000", "--turn-to", "16000:128@11", "--phase", "8m")
    ratio, simulated = found["ratios"][4], found["controller"]["fixed"][4]
    assert (ratio["prefills"], ratio["state"], simulated["name"]) == (5, "ttft", "5:3 fixed")
    assert simulated["share"] == pytest.approx(ratio["share"], abs=0.04)
    assert found["turned"][0]["ratios"] == found["ratios"]


def test_what_was_not_given_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = re.sub(r"\s+", " ", plan(capsys, *RATIO))
    assert "taken as: --out-tokens 128, --out-cv 0, --instances 8, --tpot-slope 0, --goodput ttft:2000,tpot:50" in text
    assert "--max-num-seqs 32" not in text
    assert "taken as" in plan(capsys, *COMPARE)


@pytest.mark.parametrize("verb", ["ratio", "compare"])
def test_an_answer_for_one_tpot_at_any_batch_says_so(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """With a slope decode costs something, and another ratio serves most: the answer is not to hide which it took."""
    words = ["plan", verb, "--prefill", "20000", "--qps", "8", "--tpot", "10"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"].endswith("TPOT for 10 ms at any batch (--tpot-slope).")
    assert main([*words, "--tpot-slope", "0.5", "--json"]) == 0
    assert "any batch" not in json.loads(capsys.readouterr().out)["answer"]


def test_charts_are_drawn_for_a_narrow_page_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Text of 12 units is to be text of 12 pixels, nearly, on a page of 400."""
    page = tmp_path / "page.html"
    words = ["plan", "crossover", "--prefill", "12200", "--model", "Qwen3-8B", "--link", "ndr", "--html", str(page)]
    assert main(words) == 0
    written = page.read_text()
    boxes = [int(width) for width in re.findall(r'viewBox="0 0 (\d+) 340"', written)]
    assert len(boxes) == 2 and min(boxes) <= 400 - 2 * 10 - 2 * 12
    narrow = written[written.index('class="chart narrow"') :]
    ends = [float(x) for x in re.findall(r'<line x1="\d+" x2="(\d+)"', narrow)]
    assert max(ends) <= min(boxes) and "ndr" in narrow
    assert "linear-gradient" in written.partition(".scroll {")[2].partition("}")[0], "a shade where a table goes on"


def test_what_is_unexplained_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *RATIO, "--measured-ttft-ms", "5000")["measured"]
    assert found["unexplained_ms"] == pytest.approx(5000 - found["expected_ms"])
    assert "unexplained" in plan(capsys, *RATIO, "--measured-ttft-ms", "5000")


def test_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trace that turns from long prompts to long outputs: the best ratio moves with it."""
    rows = [(index * 0.15, 12_000, 40) for index in range(1000)]
    rows += [(150 + index * 0.15, 500, 1500) for index in range(1000)]
    path = tmp_path / "trace.jsonl"
    keys = ("timestamp", "input_length", "output_length")
    path.write_text("\n".join(json.dumps(dict(zip(keys, (at * 1000, *rest), strict=True))) for at, *rest in rows))
    words = ["ratio", "--prefill", "40000", "--trace", str(path), "--window", "1m", "--max-num-seqs", "32"]
    found = document(capsys, *words, "--controller", "--html", str(tmp_path / "page.html"))
    best = [int(window["best"].split(":")[0]) for window in found["windows"]]
    assert best[0] > best[-1]
    assert "moves between" in found["answer"]
    best_fixed = found["controller"]["best_fixed"]["name"].split()[0]
    assert f"{best_fixed} (prefill:decode) keeps most" in found["answer"]
    assert "How it moves over the trace" in (tmp_path / "page.html").read_text()


def test_two_overloads_are_not_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--prefill", "50", "--qps", "5"]
    rows = [line.split() for line in plan(capsys, *words).splitlines()]
    assert ["TPOT", "-", "-", "-"] in rows
    assert ["highest", "rate", "0", "req/s", "0", "req/s", "-"] in rows
    assert document(capsys, *words)["same"] == []


@pytest.mark.parametrize("words", DRAWN, ids=lambda words: words[0])
def test_pages_stand_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "page.html"
    plan(capsys, *words, "--html", str(path))
    page = path.read_text()
    assert page.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in page
    assert not re.search(r"(src|href)=|https?://|<script|NaN|url\(", page)
    assert "<svg" in page or 'class="map"' in page


def test_a_map_tells_its_states_without_colour(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    plan(capsys, *RATIO, "--html", str(path))
    cells = re.findall(r'<td class="state (\w+)"[^>]*><b>(.)</b>', path.read_text())
    marks = {state: mark for state, mark in cells}
    assert len(set(marks.values())) == len(marks) >= 2
    assert all(marks[state] == mark for state, mark in cells)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kv"], "--model"),
        (["kv", "--model", "nope"], "Qwen3-32B"),
        (["kv", "--model", "Qwen3-32B", "--tp", "3"], "--tp 3"),
        (["kv", "--model", "Qwen3-32B", "--layout", "spiral"], "per-layer"),
        (["kv", "--model", "Qwen3-32B", "--kv-dtype", "int3"], "fp8"),
        (["kv", "--model", "Qwen3-32B", "--prompt-lens", "0"], "--prompt-lens"),
        (["kv", "--model-config", "absent.json"], "absent.json"),
        (["transfer", "--model", "Qwen3-32B", "--link", "carrier-pigeon"], "ndr"),
        (["transfer", "--model", "Qwen3-32B", "--link-gb-s", "0"], "--link-gb-s"),
        (["transfer", "--model", "Qwen3-32B", "--link-gb-s", "nan"], "--link-gb-s"),
        (["transfer", "--model", "Qwen3-32B", "--link-gb-s", "5", "--link", "ndr"], "not both"),
        (["crossover", "--model", "Qwen3-8B", "--prefill", "fast"], "--prefill"),
        (["ratio", "--prefill", "10000"], "--qps"),
        (["ratio", "--prefill", "10000", "--qps", "-1"], "--qps"),
        (["ratio", "--prefill", "10000", "--qps", "1", "--turn-to", "much"], "--turn-to"),
        (["ratio", "--prefill", "10000", "--qps", "1", "--goodput", "speed:9"], "--goodput"),
        (["compare", "--prefill", "10000", "--qps", "1", "--ratio", "3:2"], "--ratio"),
        (["compare", "--prefill", "10000", "--qps", "1", "--ratio", "3"], "--ratio"),
        ([*COMPARE, "--routing", "magic"], "split"),
        (["compare", "--prefill", "0.003662", "--qps", "5"], "0.003662 tokens/s"),
        (["ratio", "--prefill", "0.003662", "--qps", "5"], "(0.003662,0)"),
        (["ratio", "--prefill", "50000,0", "--qps", "5"], "50000 ms a token"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["plan", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_config_that_lacks_a_field(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"num_attention_heads": 8}')
    assert main(["plan", "kv", "--model-config", str(path)]) == 2
    assert "num_hidden_layers" in capsys.readouterr().err
    path.write_text('{"num_attention_heads": 8, "num_hidden_layers": 4, "hidden_size": 512}')
    assert document(capsys, "kv", "--model-config", str(path))["bytes_per_token"] == 4 * 2 * 512 * 2


def test_a_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan", *COMPARE, "--html", str(tmp_path / "none" / "page.html")]) == 74
    assert "--html" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["plan", "--help"], ["plan", "kv", "--help"], ["--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    script = "import sys\nfrom pdbench.cli import main\ncode = main(sys.argv[1:])\n"
    script += "heavy = [m for m in ('numpy', 'pandas', 'plotly', 'aiohttp') if m in sys.modules]\n"
    script += "sys.exit(code or len(heavy))"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Usage: pdbench" in done.stdout
