"""Repeats: more of them can be added to a run, and each target of a sweep has prompts of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pdbench.sweep.plan import Plan, grid
from pdbench.testbed.launch import Running
from tests.cli.conftest import Ended, roles


def test_a_run_gets_more_repeats(pdbench: Callable[..., Ended], testbed: Callable[..., Running]) -> None:
    words = ["--rates", "20", "--prompt-lens", "256", "--output-len", "4", "--num-prompts", "8"]
    first = pdbench("sweep", *roles(testbed(mode="pull")), *words, "--out", "run", "--json").summary
    refused = pdbench("sweep", "--resume", "run", "--repeats", "3", "--rates", "4")
    assert (refused.code, "--repeats" in refused.err) == (2, True)
    (cell,) = pdbench("sweep", "--resume", "run", "--repeats", "3", "--json").summary["cells"]
    assert [repeat["repeat"] for repeat in cell["repeats"]] == [0, 1, 2]
    assert len({repeat["seed"] for repeat in cell["repeats"]}) == 3
    assert cell["repeats"][0]["mean_ttft_ms"] == first["cells"][0]["repeats"][0]["mean_ttft_ms"]
    fewer = pdbench("sweep", "--resume", "run", "--repeats", "2")
    assert (fewer.code, "3 repeats already" in fewer.err) == (2, True)


def test_targets_have_equal_arrivals_and_prompts_of_their_own() -> None:
    """Two targets may be two proxies of the same servers, whose caches must not help the second."""
    plan = Plan(cells=grid(["a", "b"], [4.0], [], [1024], [64]), repeats=2, prompt_seed=9)
    a, b = plan.cells
    assert plan.cell_seed(a, 0) == plan.cell_seed(b, 0)
    assert plan.prompt_seed_of(a, 0, 0) != plan.prompt_seed_of(b, 0, 0)
    real_ends = replace(plan, ignore_eos=False)  # what a prompt says decides how long its answer is
    assert real_ends.prompt_seed_of(a, 0, 0) == real_ends.prompt_seed_of(b, 0, 0)
