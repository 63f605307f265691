"""Pages that do not tell of the whole cell: no figure and no cause rests on them, and the reason is said."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdbench.report.material import material
from pdbench.report.summary import exit_code_of, summarise
from pdbench.report.window import Sampled, Source
from pdbench.run import Run
from pdbench.testbed.settings import Settings
from tests.planted import in_memory
from tests.planted.virtual import sweep

FULL: dict[str, Any] = {"rates": [8], "prompt_lens": [16384], "output_len": 128, "duration_s": 10.0}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two decode servers whose load one alone could not carry."""
    return sweep(tmp_path_factory.mktemp("two") / "run", {"default": Settings(decodes=2)}, **FULL).run


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A decode server with too few slots for the load."""
    return sweep(tmp_path_factory.mktemp("one") / "run", {"default": Settings()}, **FULL).run


def judged(run: Run, seen: Callable[[dict[str, Source]], dict[str, Source]], *unnamed: str) -> dict[str, Any]:
    """The summary as if the pages had read like this and these servers had not been named."""
    told, read = copy(run), material(run)
    told.document = deepcopy(run.document)
    (deployment,) = told.document["deployments"]
    deployment["servers"] = [one for one in deployment["servers"] if one["name"] not in unnamed]
    pages = copy(read.metrics)
    sources = seen({source.server: source for source in pages.sources})
    pages.sources = [source for name, source in sources.items() if name not in unnamed]
    return summarise(told, replace(read, metrics=pages))


def flags(cell: dict[str, Any]) -> dict[str, str]:
    return {flag["code"]: flag["evidence"] for flag in cell["validity"]}


def frozen(server: str, from_s: float, until_s: float = np.inf) -> Callable[[dict[str, Source]], dict[str, Source]]:
    """The page of a server shows what it showed at `from_s` after the first scrape."""

    def stopped(one: Sampled, begun: float) -> Sampled:
        old = (one.t > begun + from_s) & (one.t < begun + until_s)
        kept = one.value[~old & (one.t <= begun + from_s)]
        return replace(one, value=np.where(old, kept[-1] if len(kept) else 0.0, one.value))

    def seen(sources: dict[str, Source]) -> dict[str, Source]:
        source = sources[server]
        old = tuple(stopped(one, source.times[0]) for one in source.sampled if one.key.canonical != "up")
        return {**sources, server: replace(source, sampled=old)}

    return seen


def test_pages_of_all_servers_are_in_no_doubt(two: Run) -> None:
    summary = judged(two, lambda sources: sources)
    (cell,) = summary["cells"]
    in_doubt = {"metrics-missing", "server-restarted", "littles-law", "foreign-traffic"}
    assert in_doubt.isdisjoint(flags(cell)) and cell["slots"]["available"] == 16, flags(cell)
    assert "poll" in cell["ttft_split_ms"]


def test_a_decode_server_that_was_not_named_is_missed_and_no_slots_are_short(two: Run) -> None:
    summary = judged(two, lambda sources: sources, "decode-1")
    (cell,) = summary["cells"]
    assert exit_code_of(summary) == 0 and "not-steady-state" not in flags(cell)
    half, requests = (cell["completed"] + 1) // 2, cell["completed"]  # the proxy takes turns
    said = flags(cell)["metrics-missing"]
    assert f"decode's pages ended {half} requests of the {requests}" in said and "not named" in said
    assert "available" not in cell["slots"] and "slot_wait" not in cell["ttft_split_ms"]
    assert not cell["diagnosis"]


@pytest.mark.parametrize("from_s", [0.0, 3.0])
def test_a_page_that_stood_still_makes_no_proxy_slow(one: Run, from_s: float) -> None:
    (cell,) = judged(one, frozen("decode-0", from_s))["cells"]
    assert "decode's page stood still" in flags(cell)["metrics-missing"]
    assert {"proxy", "slot_wait"}.isdisjoint(cell["ttft_split_ms"])
    (cause,) = cell["diagnosis"]
    assert cause["cause"] == "not-distinguishable" and "slots of 8" in cause["evidence"]
    assert "from the server itself" in cause["advice"]


def test_prefills_page_that_stood_still_is_seen_too(one: Run) -> None:
    (cell,) = judged(one, frozen("prefill-0", 2.0))["cells"]
    assert "prefill's page stood still from second 2" in flags(cell)["metrics-missing"]
    assert {"proxy", "prefill"}.isdisjoint(cell["ttft_split_ms"])


def test_two_servers_behind_one_url_are_told_from_a_restart(two: Run) -> None:
    def in_turn(sources: dict[str, Source]) -> dict[str, Source]:
        a, b = sources["decode-0"], sources["decode-1"]
        lived = {one.key: 1000.0 * (one.key.kind != "gauge") for one in b.sampled}  # this one has served before
        others = {one.key: one.value + lived[one.key] for one in b.sampled}
        mixed = tuple(
            replace(one, value=np.where(np.arange(len(one.t)) % 2, others[one.key], one.value)) for one in a.sampled
        )
        return {**sources, "decode-0": replace(a, sampled=mixed)}

    (cell,) = judged(two, in_turn, "decode-1")["cells"]
    said = flags(cell)["server-restarted"]
    assert "two servers" in said and "load balancer" in said and "why it ended" not in said
    assert "foreign-traffic" not in flags(cell)
    assert not cell["diagnosis"] and all(ms >= -1 for ms in cell["ttft_split_ms"].values())


def test_a_restart_leaves_no_figure_that_rests_on_its_counters(one: Run) -> None:
    def again(sources: dict[str, Source]) -> dict[str, Source]:
        source = sources["decode-0"]
        middle = source.times[len(source.times) // 2]

        def fresh(one: Sampled) -> Sampled:
            if one.key.kind not in ("counter", "sum", "count") or one.t[0] > middle:
                return one
            return replace(one, value=one.value - np.where(one.t > middle, one.value[one.t <= middle][-1], 0.0))

        return {**sources, "decode-0": replace(source, sampled=tuple(map(fresh, source.sampled)))}

    (cell,) = judged(one, again)["cells"]
    assert "counters went back" in flags(cell)["server-restarted"]
    assert {"proxy", "slot_wait"}.isdisjoint(cell["ttft_split_ms"])
    assert {cause["cause"] for cause in cell["diagnosis"]} <= {"not-distinguishable"}


def test_prefill_that_has_nothing_to_do_is_no_old_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy may have decode compute short prompts itself: prefill's page then stands still, and rightly."""

    async def decode_alone(self: Any, request: Any, headers: Any, raw: Any, row: dict[str, Any]) -> Any:
        decode = next(self._decodes)
        row |= {"prefill": "", "decode": decode.name}
        return await self._decode(decode, request, headers, raw, {}, row, None)

    monkeypatch.setattr(in_memory._MemoryProxy, "_both_legs", decode_alone)
    load: dict[str, Any] = {"rates": [4], "prompt_lens": [256], "output_len": 32, "duration_s": 15.0}
    (cell,) = summarise(sweep(tmp_path / "run", {"bed": Settings()}, **load).run)["cells"]
    assert cell["completed"] > 40 and not [f for f in cell["validity"] if "stood still" in f["evidence"]]
