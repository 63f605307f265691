"""What connectors moved: pages as vLLM and LMCache write them, with known increments between a cell's edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdbench.probe.scrape import read_page
from pdbench.report import html
from pdbench.report.summary import summarise
from tests.report.queue_simulation import World, make_run

LABELS = 'engine="0",model_name="m"'
# sample -> value before the cell and after it
OFFLOAD = {
    f"vllm:kv_offload_load_bytes_total{{{LABELS}}}": (5e9, 17e9),
    f"vllm:kv_offload_load_time_total{{{LABELS}}}": (1.0, 1.5),
    f"vllm:kv_offload_load_size_count{{{LABELS}}}": (10, 50),
    f"vllm:kv_offload_load_size_sum{{{LABELS}}}": (5e9, 17e9),
    f"vllm:kv_offload_store_bytes_total{{{LABELS}}}": (0, 3e9),
    f"vllm:kv_offload_store_time_total{{{LABELS}}}": (0, 0.25),
    f"vllm:kv_offload_store_size_count{{{LABELS}}}": (0, 20),
    f"vllm:kv_offload_allocation_failure_total{{{LABELS}}}": (2, 9),
    f'vllm:kv_offload_tiering_chunk_queries_total{{{LABELS},tier="1:fs"}}': (100, 300),
    f'vllm:kv_offload_tiering_chunk_hits_total{{{LABELS},tier="1:fs"}}': (10, 60),
    f'vllm:kv_offload_tiering_read_bytes_total{{{LABELS},tier="1:fs"}}': (0, 4e9),
    f'vllm:kv_offload_tiering_read_time_total{{{LABELS},tier="1:fs"}}': (0, 8.0),
    f'vllm:kv_offload_tiering_promotion_job_failures_total{{{LABELS},tier="1:fs"}}': (0, 3),
    f"vllm:external_prefix_cache_queries_total{{{LABELS}}}": (1000, 5000),
    f"vllm:external_prefix_cache_hits_total{{{LABELS}}}": (0, 1000),
}
NAMES = ("total", "bytes_total", "time_seconds_count", "time_seconds_sum", "failed_keys_total")
MOONCAKE = {
    f'vllm:mooncake_store_operation_{name}{{{LABELS},operation="{operation}",status="{status}"}}': (0, value)
    for operation, status, values in (
        ("load_get", "ok", (4, 8e9, 4, 2.0, 0)),
        ("load_get", "partial_failure", (1, 5e9, 1, 0.1, 7)),
        ("save_put", "partial_failure", (8, 3e7, 8, 1.0, 116)),
        ("lookup_exists", "ok", (900, 0, 900, 0.9, 0)),
    )
    for name, value in zip(NAMES, values, strict=True)
}
HF3FS = {
    f"vllm:hf3fs_load_duration_seconds_count{{{LABELS}}}": (3, 8),
    f"vllm:hf3fs_load_duration_seconds_sum{{{LABELS}}}": (1.0, 2.0),
    f"vllm:hf3fs_num_failed_load_total{{{LABELS}}}": (0, 2),
}
HISPARSE = {
    f"vllm:hisparse_cache_hits_total{{{LABELS}}}": (100, 1000),
    f"vllm:hisparse_cache_misses_total{{{LABELS}}}": (0, 100),
    f"vllm:hisparse_host_to_device_bytes_total{{{LABELS}}}": (0, 2e9),
}
LMCACHE = {
    'lmcache:num_requested_tokens_total{model_name="m",worker_id="0"}': (0, 4000),
    'lmcache:num_hit_tokens_total{model_name="m",worker_id="0"}': (0, 3000),
    'lmcache:time_to_retrieve_count{model_name="m",worker_id="0"}': (0, 6),
    'lmcache:time_to_retrieve_sum{model_name="m",worker_id="0"}': (0, 0.3),
}


Samples = dict[str, tuple[float, float]] | dict[str, tuple[float | None, float]]


def summary(path: Path, samples: Samples, mode: str, role: str) -> dict[str, Any]:
    def shown(t: float, of: str, rows: list[list[Any]]) -> list[list[Any]]:
        now = {sample: after if t > 0 else before for sample, (before, after) in samples.items()}
        page = "".join(f"{sample} {value}\n" for sample, value in now.items() if value is not None)
        return rows + [list(row) for row in read_page("vllm", page.encode()).rows] if of == role else rows

    return summarise(make_run(path, [[World(mode=mode, tamper=shown)]]))


def moved(path: Path, samples: Samples, mode: str = "colocated") -> dict[str, dict[str, Any]]:
    role = "colocated" if mode == "colocated" else "prefill"
    (cell,) = summary(path, samples, mode, role)["cells"]
    return {f"{one['server']} {one['connector']} {one['direction']}": one for one in cell.get("connectors", [])}


def test_an_offload_with_a_disk_behind_it(tmp_path: Path) -> None:
    found = moved(tmp_path / "run", OFFLOAD)
    load, store, disk = (found[f"colocated-0 offload{way}"] for way in (" load", " save", " tier 1:fs load"))
    assert (load["operations"], load["nbytes"], load["time_s"], load["gb_s"]) == (40, 12e9, 0.5, 24.0)
    assert (load["mean_ms"], load["hit_share"], load["hits_of"]) == (12.5, 0.25, "tokens")
    assert (store["operations"], store["gb_s"], store["failed"], store["failed_what"]) == (20, 12.0, 7, "without room")
    assert (disk["gb_s"], disk["hit_share"], disk["hits_of"], disk["failed"]) == (0.5, 0.25, "chunks", 3)
    assert len(found) == 3


def test_mooncakes_store_counts_bytes_of_what_failed(tmp_path: Path) -> None:
    """Only what arrived has moved; a look whether a key is there moves nothing."""
    found = moved(tmp_path / "run", MOONCAKE)
    load, store = found["colocated-0 Mooncake store load"], found["colocated-0 Mooncake store save"]
    assert (load["operations"], load["nbytes"], load["gb_s"], load["failed"]) == (4, 8e9, 4.0, 7)
    assert (store["operations"], store["nbytes"], store["failed"]) == (0, 0, 116) and "gb_s" not in store
    assert len(found) == 2


def test_hf3fs_and_lmcache_have_times_and_no_bytes(tmp_path: Path) -> None:
    found = moved(tmp_path / "a", HF3FS)
    assert [*found] == ["colocated-0 HF3FS load"] and "nbytes" not in found["colocated-0 HF3FS load"]
    assert [found["colocated-0 HF3FS load"][name] for name in ("operations", "mean_ms", "failed")] == [5, 200, 2]
    found = moved(tmp_path / "b", LMCACHE)
    assert [*found] == ["colocated-0 LMCache load"]
    assert found["colocated-0 LMCache load"]["mean_ms"] == pytest.approx(50)
    assert found["colocated-0 LMCache load"]["hit_share"] == 0.75


def test_hisparse_says_bytes_and_how_often_it_had_them(tmp_path: Path) -> None:
    found = moved(tmp_path / "run", HISPARSE)
    assert [*found] == ["colocated-0 HiSparse load"]
    load = found["colocated-0 HiSparse load"]
    assert (load["nbytes"], load["hit_share"], load["hits_of"]) == (2e9, 0.9, "rows") and "gb_s" not in load


def test_an_offload_by_its_older_series(tmp_path: Path) -> None:
    """Before the direction was in the name; pages that show both have today's names from the first load on only."""
    old = {
        f'vllm:kv_offload_{name}{{{LABELS},transfer_type="CPU_to_GPU"}}': values
        for name, values in (("total_bytes_total", (0, 12e9)), ("total_time_total", (0, 0.5)), ("size_count", (0, 40)))
    }
    found = moved(tmp_path / "old", old)["colocated-0 offload load"]
    assert (found["operations"], found["nbytes"], found["gb_s"]) == (40, 12e9, 24.0)
    born = {sample: (None, after - before) for sample, (before, after) in OFFLOAD.items() if "_load_" in sample}
    assert moved(tmp_path / "both", {**old, **born})["colocated-0 offload load"] == found


def test_an_offload_beside_nixl_is_no_handoff(tmp_path: Path) -> None:
    """Both are said, apart; the tokens that vLLM's connectors had together are of neither alone."""
    with_offload, alone = (
        summary(tmp_path / name, some, "pull", "prefill") for name, some in (("a", OFFLOAD), ("b", {}))
    )
    mixed, bare = (one["cells"][0] for one in (with_offload, alone))
    ways = [(one["server"], one["connector"], one["direction"]) for one in mixed["connectors"]]
    assert ways == [
        ("decode-0", "NIXL", "handoff"),
        ("prefill-0", "offload", "load"),
        ("prefill-0", "offload", "save"),
        ("prefill-0", "offload tier 1:fs", "load"),
    ]
    handoff, load = mixed["connectors"][:2]
    assert handoff["operations"] == 120 and handoff["nbytes"] == 120 * 1024 * 131072
    assert handoff["gb_s"] == pytest.approx(1024 * 131072 / 0.020 / 1e9)
    assert handoff["transfer_gb_s"] == pytest.approx(1024 * 131072 / 0.015 / 1e9), "5 of the 20 ms are the posting"
    assert load["nbytes"] == 12e9 and "hit_share" not in load
    assert mixed["ttft_split_ms"] == bare["ttft_split_ms"] and mixed["nixl"] == bare["nixl"]
    assert [one["direction"] for one in bare["connectors"]] == ["handoff"]


def test_the_page_shows_what_moved_and_nothing_where_nothing_did(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bare", [[World(mode="colocated")]])
    assert "What connectors moved" not in html.render_html(summarise(run), run)
    found = summary(tmp_path / "run", OFFLOAD, "colocated", "colocated")
    page = html.render_html(found, run)
    section = page.partition('aria-labelledby="moved"')[2].partition("</section>")[0]
    for row in (
        ["offload load", 40, "12.0", "0.50", "12.5", "24.0", "25% of tokens", "-"],
        ["offload save", 20, "3.00", "0.25", "12.5", "12.0", "-", "7 without room"],
        ["offload tier 1:fs load", "-", "4.00", "8.00", "-", "0.50", "25% of chunks", "3 jobs"],
    ):
        name, *figures = row
        assert f"<td>{name}</td>" + "".join(f'<td class="n">{figure}</td>' for figure in figures) in section


@pytest.mark.parametrize(("mode", "mover"), [("pull", "decode-0"), ("push", "prefill-0")])
def test_a_handoff_takes_as_long_in_the_table_as_in_the_split(tmp_path: Path, mode: str, mover: str) -> None:
    run = make_run(tmp_path / "run", [[World(mode=mode)]])
    found = summarise(run)
    (cell,) = found["cells"]
    (handoff,) = cell["connectors"]
    for name in ("post", "transfer"):
        assert handoff[f"{name}_ms"] == pytest.approx(cell["ttft_split_ms"][name])
    section = html.render_html(found, run).partition('aria-labelledby="moved"')[2].partition("</section>")[0]
    row = "".join(f'<td class="n">{figure}</td>' for figure in ("5.00", "15.0"))
    assert row in section.partition(f"<td>{mover}</td><td>NIXL handoff</td>")[2]


def test_what_decode_had_of_its_prompts_is_not_an_offloads(tmp_path: Path) -> None:
    """P/D connectors such as Mooncake's and MoRI-IO show nothing, and vLLM counts their handoffs as hits too."""

    def bare(t: float, role: str, rows: list[list[Any]]) -> list[list[Any]]:
        page = "".join(f"{sample} {after if t > 0 else before}\n" for sample, (before, after) in OFFLOAD.items())
        kept = [row for row in rows if not row[1].startswith("nixl")]
        return kept + [list(row) for row in read_page("vllm", page.encode()).rows]

    (cell,) = summarise(make_run(tmp_path / "run", [[World(tamper=bare)]]))["cells"]
    loads = {one["server"]: one for one in cell["connectors"] if one["connector"] + one["direction"] == "offloadload"}
    assert "hit_share" not in loads["decode-0"] and loads["prefill-0"]["hit_share"] == 0.25
