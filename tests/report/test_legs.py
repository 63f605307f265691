"""The two-hop legs of a cell and the proxy's cost, end to end on the practice deployment and on made figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.cli import main
from pdbench.report.leg_tables import leg_lines
from pdbench.report.legs import add_proxy_costs
from pdbench.report.summary import summarise
from pdbench.testbed.launch import running
from pdbench.testbed.settings import Settings
from tests.report.queue_simulation import World, make_run

PROXY_MS = 40.0


@pytest.mark.alone
def test_what_a_slow_proxy_costs_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted 40 ms; the prefill leg is prefill's compute, which the settings give."""
    settings = Settings(proxy_ms=PROXY_MS, prefill_ms_per_token=0.05, post_fixed_ms=0.0, post_ms_per_token=0.0)
    out = tmp_path / "run"
    with running(settings.on_free_ports()) as testbed:
        words = [
            "--proxy",
            str(testbed.proxy_url),
            "--prefill",
            *testbed.prefill_urls,
            "--decode",
            *testbed.decode_urls,
        ]
        load = ["--rates", "8", "--prompt-lens", "1024", "--output-len", "4", "--num-prompts", "24"]
        main(["sweep", *words, *load, "--drive", "proxy,two-hop", "--out", str(out)])
    printed = capsys.readouterr().out
    proxied, hopped = json.loads((out / "summary.json").read_text())["cells"]
    assert (proxied["drive"], hopped["drive"]) == ("proxy", "two-hop")
    assert hopped["legs_ms"]["prefill"]["mean"] == pytest.approx(51.2, rel=0.5)
    assert PROXY_MS / 2 < proxied["proxy_cost_ms"]["mean"] < 2 * PROXY_MS
    low, high = proxied["proxy_cost_ms"]["interval"]
    assert 0 < low < high < 2 * PROXY_MS, "one repeat has an interval from blocks of requests"
    assert "the proxy adds" in printed and "hand-over" in printed
    assert "8 req/s x 1,024 tokens, two-hop, ms: prefill leg" in printed
    total = sum(hopped["ttft_split_ms"].values())
    assert total == pytest.approx(hopped["mean_ttft_ms"])


def cells(differences: list[float], drives: tuple[str, str] = ("proxy", "two-hop")) -> list[dict[str, Any]]:
    base = {"target": "t", "loop": "open", "request_rate": 1.0, "prompt_len": 8, "output_len": 8}
    repeats = [[{"repeat": i, "mean_ttft_ms": 100.0 + d * on} for i, d in enumerate(differences)] for on in (1, 0)]
    return [
        {**base, "drive": drive, "repeats": each, "mean_ttft_ms": float(np.mean([r["mean_ttft_ms"] for r in each]))}
        for drive, each in zip(drives, repeats, strict=True)
    ]


def test_the_interval_is_students_over_paired_repeats() -> None:
    """By hand: mean 5, sd 1, n 4: half width 3.182 / 2."""
    found = cells([4.0, 4.0, 6.0, 6.0])
    add_proxy_costs(found)
    half = 3.182 * np.std([4, 4, 6, 6], ddof=1) / 2
    assert found[0]["proxy_cost_ms"]["interval"] == pytest.approx([5 - half, 5 + half])
    assert "proxy_cost_ms" not in found[1]


def both_ways(path: Path, n: int, added_s: float) -> dict[str, Any]:
    """The proxied cell of a made run that measured the same arrivals in both drives."""
    hopped = World(n=n, rate=4, prefill_s=0.04)
    run = make_run(path, [[replace(hopped, proxy_s=hopped.proxy_s + added_s)], [hopped]])
    for cell, drive in zip(run.document["plan"]["cells"], ("proxy", "two-hop"), strict=True):
        cell["drive"] = drive
    found: dict[str, Any] = summarise(run)["cells"][0]
    return found


@pytest.mark.parametrize(
    ("n", "added_s", "said"),
    [
        (120, 0.02, "the proxy adds 20"),
        (120, 0.0, "no evidence that the proxy costs anything: +0.0 ms"),
        (8, 0.02, "what the proxy costs is not known: +20"),
    ],
)
def test_a_cost_is_said_as_surely_as_it_is_known(tmp_path: Path, n: int, added_s: float, said: str) -> None:
    """By construction the proxy adds so much to every request; eight of them are too few for an interval."""
    cell = both_ways(tmp_path / "run", n, added_s)
    (line,) = [text.plain for text in leg_lines([cell], several=False) if "prox" in text.plain]
    assert said in line
    assert line.startswith("4 req/s x ")


def test_a_shorter_way_through_the_proxy_is_called_that() -> None:
    found = cells([-4.0, -4.1, -4.2, -4.1])
    add_proxy_costs(found)
    found[1] |= {"legs_ms": {"prefill": {"mean": 50.0, "p99": 60.0}, "between": {"mean": -49.0}}}
    said = [text.plain for text in leg_lines(found, several=False)]
    assert any("through the proxy the mean TTFT is 4.1 ms shorter" in line for line in said)
    assert "1 req/s x 8 tokens, two-hop, ms: prefill leg 50.0 (p99 60.0), hop 2 sent 49.0 before hop 1 ended" in said


def test_without_a_twin_there_is_no_cost() -> None:
    alone = cells([1.0], ("proxy", "proxy"))
    add_proxy_costs(alone)
    assert all("proxy_cost_ms" not in cell for cell in alone)
