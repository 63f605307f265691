"""A link that is asked for nearly all it carries, or for more: what is said of it holds on the testbed, whose link
takes transfers one after another at a rate that is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.connector_tables import COLUMNS, TOGETHER
from pdbench.report.summary import summarise
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep
from tests.report.queue_simulation import World, make_run

NBYTES = 8192 * 262144
GB_S = 4.0
CARRIES = GB_S * 1e9 / NBYTES  # 1.86 req/s
MOVE_MS = 1000 / CARRIES


def measured(
    path: Path,
    rate: float,
    mode: str = "pull",
    link: float | None = None,
    bed: dict[str, Any] | None = None,
    **load: Any,
) -> dict[str, Any]:
    settings = Settings(
        mode=mode, max_num_seqs=32, link_gb_s=GB_S, prefill_ms_per_token=0.01, kv_bytes_per_token=262144
    )
    settings = replace(settings, **(bed or {}))
    load = {"duration_s": 40.0, "seed": 3, "output_len": 32} | load
    done = sweep(path, {"bed": settings}, rates=[rate], prompt_lens=[8192], link_gb_s=link, **load)
    summary = summarise(done.run)
    cell: dict[str, Any] = summary["cells"][0]
    return cell


def not_steady(cell: dict[str, Any]) -> dict[str, str]:
    found = [v for v in cell["validity"] if v["code"] == "not-steady-state"]
    return found[0] if found else {}


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_more_than_the_link_carries_is_no_steady_state(tmp_path: Path, mode: str) -> None:
    cell = measured(tmp_path, 2.0, mode, link=400.0)
    assert not_steady(cell)["severity"] == "void" and "of a link that carries" in not_steady(cell)["evidence"]
    link = cell["link"]
    assert link["gb_s"] == pytest.approx(GB_S, rel=0.03) and link["used"] == pytest.approx(2.0 / CARRIES, rel=0.03)
    assert link["alone_ms"] == pytest.approx(MOVE_MS, rel=0.03)
    (entry,) = (one for one in cell["connectors"] if one["direction"] == "handoff")
    assert entry["together_gb_s"] == pytest.approx(GB_S, rel=0.03) and entry["transfer_gb_s"] < GB_S / 2
    assert not entry["together_is_least"] and not COLUMNS[TOGETHER](entry).startswith(">")
    (cause,) = (one for one in cell["diagnosis"] if one["cause"] == "transfer-bandwidth")
    assert "1% of the declared 400 GB/s" in cause["evidence"]
    said = re.search(r"The link carries ([\d.]+) req/s", cause["advice"])
    assert said is not None and float(said[1]) == pytest.approx(CARRIES, rel=0.03)
    alone = re.search(r"takes about ([\d,]+) ms", cause["confirm"])
    assert alone is not None and float(alone[1]) == pytest.approx(MOVE_MS, rel=0.03)
    texts = [one["text"] for one in cell.get("counsel", [])]
    assert all(text.startswith("Once transfer-bandwidth is mended") for text in texts)


def test_a_short_run_near_what_the_link_carries_is_said_to_be_one(tmp_path: Path) -> None:
    cell = measured(tmp_path, 0.93 * CARRIES)
    assert not_steady(cell)["severity"] == "warn" and "short run at" in not_steady(cell)["evidence"]
    wait_ms = 0.93 * MOVE_MS / 2 / (1 - 0.93)  # M/D/1
    calm_ms = cell["mean_ttft_ms"] - cell["link"]["each_ms"] + MOVE_MS
    assert cell["short_run"]["steady_mean_ttft_ms"] == pytest.approx(calm_ms + wait_ms, rel=0.35)
    assert f"{cell['short_run']['steady_mean_ttft_ms']:,.0f} in a steady state" in cell["verdict"]


@pytest.mark.parametrize(("output_len", "held"), [(140, False), (130, True)])
def test_slots_and_a_link_that_are_nearly_full_are_both_said(tmp_path: Path, output_len: int, held: bool) -> None:
    bed = {"max_num_seqs": 2, "handoff_stall_ms": 100.0}
    cell = measured(tmp_path, 0.93 * CARRIES, "push", bed=bed, output_len=output_len)
    assert ("decode_loop" in cell) == held
    evidence, short = not_steady(cell)["evidence"], cell["short_run"]
    assert "mean wait for a slot is about" in evidence and "and of the link: " in evidence
    apart = [float(ms.replace(",", "")) for ms in re.findall(r"mean TTFT (?:is )?([\d,]+) ms", evidence)]
    mean = cell["mean_ttft_ms"]
    assert short["steady_mean_ttft_ms"] == pytest.approx(mean + sum(ms - mean for ms in apart), abs=2)
    assert f"with both queues {short['steady_mean_ttft_ms']:,.0f} ms or more" in evidence


def test_transfers_too_short_to_be_seen_meeting_give_a_least_speed(tmp_path: Path) -> None:
    """The link carries 400 GB/s and each takes 5 ms; how many of those between two scrapes met, nobody saw."""
    cell = measured(tmp_path, 8.0, bed={"link_gb_s": 400.0, "prefill_ms_per_token": 0.001}, duration_s=10.0)
    (entry,) = (one for one in cell["connectors"] if one["direction"] == "handoff")
    assert entry["together_is_least"] and entry["together_gb_s"] <= 1.01 * 400
    assert COLUMNS[TOGETHER](entry).startswith(">") and cell["link"]["gb_s_is_least"]


def test_a_link_with_room_is_no_reason_for_doubt(tmp_path: Path) -> None:
    cell = measured(tmp_path, 0.5 * CARRIES, link=GB_S)
    assert not_steady(cell) == {}
    (cause,) = (one for one in cell["diagnosis"] if one["cause"] == "transfer-bandwidth")
    assert "The link carries what it can" in cause["advice"] and "are asked" not in cause["advice"]


def test_transfers_on_paths_of_their_own_say_nothing_of_what_the_link_carries(tmp_path: Path) -> None:
    """Each takes 1.5 s however many are under way: twice the rate would be carried as well."""
    cell = summarise(make_run(tmp_path / "run", [[World(rate=4, n=160, transfer_s=1.5, slots=64)]]))["cells"][0]
    link = cell["link"]
    assert link["under_way"] > 3 and not link["shared"] and "carries_rate" not in link and not_steady(cell) == {}
    (cause,) = cell["diagnosis"]
    assert "The link carries" not in cause["advice"] and "takes about" not in cause["confirm"]
