"""Handoffs by SGLang's pages: its prefill's ranks each count the MiB of their own share, as its source has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.counted import bytes_unsure, time_unsure
from pdbench.deployment import Deployment, ServerFacts, build, from_document
from pdbench.probe.scrape import read_page
from pdbench.report import html
from pdbench.report.crosschecks import cross_checks
from pdbench.report.summary import measured_cells, summarise
from tests.report.queue_simulation import World, make_run

TOKENS, PER_TOKEN, TP, PP = 1024, 131072, 4, 2
NBYTES = TOKENS * PER_TOKEN  # of a request, all ranks together
SPENT_S = 0.020


def page(role: str, ended: float, moving: float) -> bytes:
    """As SGLang 0.5.23 writes it: each request's transfer on each rank; failures and stages are repeated by them."""
    share = NBYTES / TP / PP  # its heads, of its layers
    lines = [f'sglang:queue_time_seconds_count{{engine_type="{role}",tp_rank="0"}} {ended}']
    for rank in ((tp, pp) for tp in range(TP) for pp in range(PP) if role == "prefill"):
        labels = f'model_name="m",engine_type="prefill",tp_rank="{rank[0]}",pp_rank="{rank[1]}",moe_ep_rank="0"'
        stage = f'{labels},stage="prefill_transfer_kv_cache"'
        lines += [
            f"sglang:kv_transfer_total_mb_sum{{{labels}}} {ended * share / 2**20}",
            f"sglang:kv_transfer_total_mb_count{{{labels}}} {ended}",
            f'sglang:kv_transfer_total_mb_bucket{{{labels},le="50.0"}} {ended}',
            f"sglang:kv_transfer_latency_ms_sum{{{labels}}} {ended * 1000 * SPENT_S}",
            f"sglang:kv_transfer_latency_ms_count{{{labels}}} {ended}",
            f"sglang:kv_transfer_speed_gb_s_sum{{{labels}}} {ended * share / 2**30 / SPENT_S}",
            f"sglang:num_transfer_failed_reqs_total{{{labels}}} {3 if ended else 0}",
            f"sglang:num_prefill_inflight_queue_reqs{{{labels}}} {moving}",
            f"sglang:per_stage_req_latency_seconds_sum{{{stage}}} {ended * SPENT_S}",
            f"sglang:per_stage_req_latency_seconds_count{{{stage}}} {ended}",
        ]
    return ("\n".join(lines) + "\n").encode()


def run_of(path: Path, facts: dict[str, dict[str, Any]], moving: float = 0.02, **more: Any) -> Any:
    def speak(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        ended = next((row[5] for row in rows if row[1] == "e2e_s" and row[2] == "count"), 0.0)
        kept = [row for row in rows if row[1] in ("running", "waiting", "generation_tokens")]
        return kept + [list(row) for row in read_page("sglang", page(role, ended, moving)).rows]

    run = make_run(path, [[World(mode="push", prompt=TOKENS, rate=1.0, n=60, tamper=speak, **more)]])
    document = run.document["deployments"][0]
    document["engine"] = "sglang"
    for server in document["servers"]:
        if server["role"] in facts:
            server["facts"] = facts[server["role"]]
    return run


def sides(prefill: int | None, decode: int | None, version: str = "0.5.23", backend: str | None = "nixl") -> Any:
    known = {"version": version, "connector": backend}
    ranks = {"prefill": prefill, "decode": decode}
    return {role: {k: v for k, v in (known | {"kv_ranks": n}).items() if v is not None} for role, n in ranks.items()}


def test_bytes_add_up_over_ranks_and_speed_is_a_ranks(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", sides(TP, TP), link_gb_s=10.0)
    found = summarise(run)
    (cell,) = found["cells"]
    handoffs = cell["handoffs"]
    assert (handoffs["source"], handoffs["role"], handoffs["transfers"]) == ("SGLang", "prefill", 60 * TP * PP)
    assert handoffs["mb_per_request"] == pytest.approx(NBYTES / 1e6)
    assert handoffs["gb_s"] == pytest.approx(NBYTES / (TP * PP) / SPENT_S / 1e9) and "unsure" not in handoffs
    (entry,) = cell["connectors"]
    assert (entry["server"], entry["connector"], entry["direction"]) == ("prefill-0", "SGLang", "handoff")
    assert (entry["operations"], entry["failed"], entry["failed_what"]) == (60 * TP * PP, 3, "requests")
    assert entry["nbytes"] == pytest.approx(60 * NBYTES) and entry["mean_ms"] == pytest.approx(1000 * SPENT_S)
    assert found["tiers"][0]["link_qps"] == pytest.approx(10e9 / NBYTES)
    assert "cannot be known" not in html.render_html(found, run)


def test_what_cannot_be_known_is_said_in_place_of_a_number(tmp_path: Path) -> None:
    """Mooncake's time is of the last chunk; and fewer decode ranks get copies that are counted and never sent."""
    run = run_of(tmp_path / "run", sides(TP, 2, backend="mooncake"), link_gb_s=10.0)
    found = summarise(run)
    (cell,) = found["cells"]
    handoffs, (entry,) = cell["handoffs"], cell["connectors"]
    assert {*handoffs} == {"source", "role", "transfers", "unsure"} and {*handoffs["unsure"]} == {"bytes", "time"}
    assert {"nbytes", "gb_s", "time_s", "mean_ms"}.isdisjoint(entry) and entry["operations"] == 60 * TP * PP
    assert "link_qps" not in found["tiers"][0] or found["tiers"][0]["link_qps"] is None
    section = html.render_html(found, run).partition('aria-labelledby="moved"')[2].partition("</section>")[0]
    assert "The bytes of SGLang" in section and "prefill has more ranks than decode" in section
    assert "The time of SGLang" in section and "last chunk of a prompt with mooncake" in section


@pytest.mark.parametrize(
    ("prefill", "decode", "version", "why"),
    [
        (8, 8, "0.5.11", None),
        (4, 8, "0.5.16", None),
        (4, 8, "0.5.15", "before 0.5.16"),
        (4, 8, "main", "before 0.5.16"),
        (8, 4, "0.5.23", "more ranks than decode"),
        (None, 4, "0.5.23", "not every SGLang server tells"),
        (4, None, "0.5.23", "not every SGLang server tells"),
    ],
)
def test_bytes_are_certain_where_no_copy_can_be_counted_wrongly(
    prefill: int | None, decode: int | None, version: str, why: str | None
) -> None:
    told = bytes_unsure(deployment(sides(prefill, decode, version)))
    assert told is None if why is None else told is not None and why in told


@pytest.mark.parametrize(
    ("backend", "version", "why"),
    [
        ("nixl", "0.5.12.post1", None),
        ("nixl", "0.5.11", "before 0.5.12"),
        ("nixl", "", "before 0.5.12"),
        ("mooncake", "0.5.23", "last chunk of a prompt with mooncake"),
        (None, "0.5.23", "transfer backend"),
    ],
)
def test_the_time_is_the_bytes_own_with_nixl_only(backend: str | None, version: str, why: str | None) -> None:
    told = time_unsure(deployment(sides(1, 1, version, backend)))
    assert told is None if why is None else told is not None and why in told


def deployment(facts: dict[str, dict[str, Any]]) -> Deployment:
    document = build("t", [(role, f"http://{role}:1") for role in facts]).document()
    for server in document["servers"]:
        server["facts"] = {"reachable": True, **facts[server["role"]]}
    found = from_document(document)
    assert all(isinstance(server.facts, ServerFacts) for server in found.servers)
    return found


@pytest.mark.parametrize(("moving", "agrees"), [(SPENT_S, True), (5.0, False)])
def test_prefills_queue_of_transfers_is_checked_against_their_time(tmp_path: Path, moving: float, agrees: bool) -> None:
    """One request a second that moves for 20 ms: 0.02 of them on average, by Little's law."""
    (cell,) = measured_cells(run_of(tmp_path / "run", sides(TP, TP), moving))
    (check,) = (one for one in cross_checks(cell) if "queue of transfers" in one.name)
    assert check.counted == pytest.approx(1000 * SPENT_S) and check.agrees is agrees
