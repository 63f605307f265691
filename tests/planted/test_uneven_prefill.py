"""One prefill server of three is slow a prompt: over all of them prefill has time to spare, and its requests wait."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.summary import summarise
from pdbench.sweep.classes import TrafficClass
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

BED = Settings(prefills=3, decodes=2, lease_s=900)


def measured(path: Path, bed: Settings, rate: float, plant: Callable[[Any], None]) -> tuple[dict[str, Any], Any]:
    """The cell with what was planted, and the truth log."""
    load: dict[str, Any] = {"rates": [rate], "prompt_lens": [1024], "output_len": 16, "duration_s": 24.0}
    done = sweep(path / "run", {"bed": bed}, before_cell=lambda net, cell: plant(net), **load)
    (cell,) = summarise(done.run)["cells"]
    return cell, done.truth["bed"]


def at(ms_per_token: float, *names: str) -> Callable[[Any], None]:
    def slower(net: Any) -> None:
        for server in net.servers.values():
            if server.place.name in names:
                server.engine.settings = replace(server.engine.settings, prefill_ms_per_token=ms_per_token)

    return slower


def void(cell: dict[str, Any]) -> dict[str, str]:
    return {flag["code"]: flag["evidence"] for flag in cell["validity"] if flag["severity"] == "void"}


@pytest.mark.parametrize(("mode", "slow"), [("pull", "prefill-0"), ("push", "prefill-2")])
def test_one_that_is_overloaded_voids_the_mean_and_is_named_before_instances_are_added(
    tmp_path: Path, mode: str, slow: str
) -> None:
    """At 0.6 s a prompt it computes 1.6 of the 2.7 req/s that it is sent; the others, at 4 ms, have nothing to do."""
    cell, truth = measured(tmp_path, replace(BED, mode=mode), 8.0, at(0.6, slow))
    (cause,) = (cause for cause in cell["diagnosis"] if cause["cause"] == "prefill-queue")
    assert f"{slow} alone is overloaded" in void(cell)["not-steady-state"]
    assert f"Find out why {slow} is slow" in void(cell)["not-steady-state"]
    assert cause["advice"].startswith(f"Find out why {slow} is slow before adding instances")
    spans = [row["prefill_end"] - row["prefill_start"] for row in truth if row["server"] == slow]
    said = cause["evidence"].partition(f"{slow} is slow: ")[2]
    assert float(said.split(" ms")[0]) == pytest.approx(1000 * np.mean(spans), rel=0.05)
    assert "prefill instances instead" not in str(cell["diagnosis"]) + cell["verdict"]


def test_one_that_is_slow_and_keeps_up_is_named(tmp_path: Path) -> None:
    cell, _ = measured(tmp_path, BED, 5.0, at(0.25, "prefill-1"))
    (cause,) = cell["diagnosis"]
    assert cause["cause"] == "prefill-compute" and cause["advice"].startswith("Find out why prefill-1 is slow")
    assert "not-steady-state" not in void(cell)


def test_one_that_is_sent_most_is_overloaded_and_not_slow(tmp_path: Path) -> None:
    """Three of five requests, 3.6 req/s, go to one that computes 2.4; the others compute as many and are sent 1.2."""

    def uneven(net: Any) -> None:
        at(0.4, "prefill-0", "prefill-1", "prefill-2")(net)
        first, second, third = (server.place for server in net.servers.values() if server.place.role == "prefill")
        net._proxy._prefills = itertools.cycle([first, second, second, third, second])

    cell, _ = measured(tmp_path, BED, 6.0, uneven)
    (cause,) = (cause for cause in cell["diagnosis"] if cause["cause"] == "prefill-queue")
    assert "prefill-1 alone is overloaded" in void(cell)["not-steady-state"]
    assert cause["advice"].startswith("Spread the requests evenly") and "slow" not in str(cell["diagnosis"])


@pytest.mark.parametrize(("ms_per_token", "rate", "named"), [(0.4, 10.0, True), (0.3, 5.0, False)])
def test_three_that_are_equal_are_overloaded_together_or_not_at_all(
    tmp_path: Path, ms_per_token: float, rate: float, named: bool
) -> None:
    cell, _ = measured(tmp_path, BED, rate, at(ms_per_token, "prefill-0", "prefill-1", "prefill-2"))
    words = str(cell["diagnosis"]) + str(cell["validity"])
    assert "alone is overloaded" not in words and "slow" not in words
    assert ("prefill instances instead of 3" in words) == named


@pytest.mark.parametrize("seed", [5, 17])
def test_chance_that_sends_one_more_is_no_overload(tmp_path: Path, seed: int) -> None:
    """Three at 45 % of their time, one prompt of seven is 16 times as long, and a router draws lots: in some 15
    requests one of the three is sent more than it computes meanwhile, and in 400 none."""
    draw = random.Random(seed)

    def lots(net: Any) -> None:
        prefills = [server.place for server in net.servers.values() if server.place.role == "prefill"]
        net._proxy._prefills = iter(lambda: draw.choice(prefills), None)

    load: dict[str, Any] = {"prompt_lens": [512], "output_len": 16, "duration_s": 8.0, "rates": [1.662]}
    classes = (TrafficClass("short", 0.85, "16", 128), TrafficClass("long", 0.15, "16", 2048))
    bed = replace(
        BED, decodes=1, prefill_ms_per_token=1000 / 512, max_num_seqs=64, post_fixed_ms=0.3, post_ms_per_token=0.0
    )
    seeds = {"seed": seed, "prompt_seed": seed}
    done = sweep(
        tmp_path / "run", {"bed": bed}, before_cell=lambda net, cell: lots(net), classes=classes, **seeds, **load
    )
    assert "alone is overloaded" not in void(summarise(done.run)["cells"][0]).get("not-steady-state", "")
