"""The client against the ground-truth server: its times against the server's log, and every way to fail."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from pdbench.deployment import build
from pdbench.report.summary import summarise
from pdbench.sweep.prompts import ChatCalibration
from tests.sweep.one_cell import closed_cell, measure, open_cell, plan_for

pytestmark = pytest.mark.alone


def errors_ms(outcome, truth):
    """Our stamp minus the server's, per token event, by request."""
    chunks = outcome.run.table("chunks").set_index("request_id")["offset_s"]
    for row in outcome.rows:
        ours = outcome.run.origin_ns + (row.sent_s + np.array(chunks[row.request_id])) * 1e9
        theirs = np.array(truth[row.request_id]["sent_ns"])
        assert len(ours) == len(theirs) == row.chunks
        yield (ours - theirs) / 1e6


def test_times_are_those_of_the_servers_log(ground_truth, tmp_path):
    server = ground_truth("--ttft", "30", "--itl", "10")
    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(rate=40, output_len=10), num_prompts=60))
    assert outcome.statuses == ["ok"] * 60
    errors = list(errors_ms(outcome, server.log()))
    firsts, every = np.array([e[0] for e in errors]), np.concatenate(errors)
    # The kernel's stamps do not wait for this process, so neither does the machine's load show in them.
    assert np.median(firsts) < 0.5 and np.median(every) < 0.5
    assert firsts.min() > 0  # nothing arrives before it is sent
    truth = server.log()
    for row in outcome.rows:
        assert (row.prompt_tokens, row.output_tokens, row.chunks) == (16, 10, 10)
        assert truth[row.request_id]["prompt_tokens"] == 16
        assert row.opened_s <= row.connected_s <= row.first_byte_s <= row.first_token_s
        assert row.intended_s <= row.sent_s <= row.first_byte_s
        assert row.first_token_s <= row.second_token_s < row.last_token_s <= row.done_s
        assert row.finish_reason == "length" and row.stamp == "kernel"
    client = outcome.entry["client"]
    assert 0 < client["lateness_p99_ms"] <= client["lateness_max_ms"] and 0 < client["cpu_share"] < 1.2
    assert 0 < client["loop_lag_p99_ms"] <= client["loop_lag_max_ms"] and client["achieved_concurrency"] is None
    assert client["stamps"]["kernel"] > 300 and client["stamps"]["user"] == client["offset_steps"] == 0
    assert client["kernel_stamps_share"] == 1 and 1 <= client["events_per_read"] < 2  # a busy machine merges some
    assert (client["connections_opened"], client["connections_reused"], client["resets_retried"]) == (60, 0, 0)
    assert 0 < client["kernel_to_user_p50_ms"] <= client["kernel_to_user_p99_ms"]
    assert 0 < client["connect_p50_ms"] <= client["connect_p99_ms"] and 0 <= client["shared_reads_share"] < 1
    # Most connections stood before they were needed.
    assert sum(row.connected_s <= row.intended_s for row in outcome.rows) > 40


def test_the_schedule_is_kept_and_the_window_lasts_as_long_as_was_asked(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "1")
    plan = plan_for(open_cell(rate=100, output_len=2), num_prompts=None, duration_s=1.0, arrivals="constant")
    outcome = measure(tmp_path, server.deployment(), plan)
    intended = np.sort([row.intended_s for row in outcome.rows])
    assert len(intended) == outcome.entry["planned"] == outcome.entry["sent"] == 99
    assert np.allclose(np.diff(intended), 0.01, atol=1e-6)
    assert intended[0] - outcome.entry["start_s"] == pytest.approx(0.01, abs=1e-6)
    assert outcome.entry["send_end_s"] - outcome.entry["start_s"] == pytest.approx(1.0, abs=0.1)
    lateness = np.array([row.sent_s - row.intended_s for row in outcome.rows])
    assert lateness.min() >= 0 and np.median(lateness) < 0.005


def test_a_stall_of_two_seconds_shows_in_full(ground_truth, tmp_path):
    """In the gaps of the streams under way, the largest of which is told, and in the TTFT of all that were due then."""
    server = ground_truth("--ttft", "10", "--itl", "10", "--stall-at", "0.3", "--stall-ms", "2000")
    plan = plan_for(open_cell(rate=40, output_len=20), num_prompts=80, arrivals="constant")
    outcome = measure(tmp_path, server.deployment(), plan)
    truth = server.log()
    true_gap = max(np.diff(record["sent_ns"]).max() for record in truth.values()) / 1e9
    largest = max(np.diff(offsets).max() for offsets in outcome.run.table("chunks")["offset_s"])
    assert true_gap > 1.98 and largest == pytest.approx(true_gap, abs=0.01)
    # Nothing waited with being sent: the stall is in the latencies of all who came in it, the longest of them 2 s.
    ttft_s = np.array([row.first_token_s - row.intended_s for row in outcome.rows])
    true_ttft_s = [
        truth[row.request_id]["sent_ns"][0] / 1e9 - outcome.run.origin_ns / 1e9 - row.intended_s for row in outcome.rows
    ]
    assert ttft_s == pytest.approx(np.array(true_ttft_s), abs=0.01)
    assert ttft_s.max() > 1.9 and (ttft_s > 0.1).sum() > 60
    outcome.run.document |= {"cell_runs": [outcome.entry], "deployments": []}
    (cell,) = summarise(outcome.run)["cells"]
    assert cell["max_itl_ms"] == pytest.approx(true_gap * 1000, abs=10)
    assert cell["max_itl_ms"] > 50 * cell["median_itl_ms"]


def test_slots_and_coalescing(ground_truth, tmp_path):
    server = ground_truth("--ttft", "20", "--itl", "5", "--slots", "1", "--coalesce", "4")
    outcome = measure(tmp_path, server.deployment(), plan_for(closed_cell(4, output_len=8), num_prompts=8))
    assert outcome.statuses == ["ok"] * 8
    assert {(row.chunks, row.output_tokens) for row in outcome.rows} == {(2, 8)}
    # One slot: 40 ms each (20 + 4 x 5), so four streams wait for one another.
    assert np.median([row.first_token_s - row.intended_s for row in outcome.rows]) > 0.1
    assert outcome.entry["client"]["achieved_concurrency"] == pytest.approx(4, rel=0.3)


def test_events_cut_between_sends_are_whole(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "8", "--split", "3,40,60", "--split-gap", "1")
    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(output_len=5)))
    assert {(row.status, row.chunks, row.output_tokens) for row in outcome.rows} == {("ok", 5, 5)}


def test_sse_under_another_content_type(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "1", "--content-type", "application/json")
    assert measure(tmp_path, server.deployment(), plan_for(open_cell())).statuses == ["ok"] * 8


@pytest.mark.parametrize(
    ("mode", "status", "kind", "chunks"),
    [
        ("status:401", "failed", "http-401", 0),
        ("status:404", "failed", "http-404", 0),
        ("status:429", "rejected", "http-429", 0),
        ("status:503", "rejected", "http-503", 0),
        ("status:500", "failed", "http-500", 0),
        ("html", "failed", "not-sse", 0),
        ("json", "failed", "not-sse", 0),
        ("redirect", "failed", "redirect", 0),
        ("empty", "truncated", "truncated", 0),
        ("close", "failed", "reset", None),
        ("cut:3", "truncated", "truncated", 3),
        ("reset:3", "truncated", "truncated", 3),
        ("error:3", "failed", "server-error", 3),
        ("silent", "failed", "no-tokens", 0),
        ("fewer:2", "ok", None, 6),
        ("nousage", "ok", None, 8),
        ("hang", "timeout", "timeout", None),
        ("hang:3", "timeout", "timeout", 3),
    ],
)
def test_ways_to_fail(quick_server, tmp_path, mode, status, kind, chunks):
    outcome = measure(tmp_path, quick_server.deployment(mode), plan_for(open_cell(), num_prompts=2, timeout_s=0.4))
    assert [(row.status, row.error_kind, row.chunks) for row in outcome.rows] == [(status, kind, chunks)] * 2
    assert outcome.entry["state"] == "done" and outcome.entry["sent"] == 2
    if mode == "fewer:2":
        assert {row.output_tokens for row in outcome.rows} == {6}
    if mode == "nousage":
        assert {row.output_tokens for row in outcome.rows} == {None}
    if status == "timeout":
        assert all(0.39 < row.done_s - row.sent_s < 1.0 for row in outcome.rows)


def test_a_key_that_a_server_repeats_is_not_kept(quick_server, tmp_path):
    outcome = measure(
        tmp_path, quick_server.deployment("status:401", key="sk-secret"), plan_for(open_cell(), num_prompts=1)
    )
    assert "Bearer ***" in (outcome.rows[0].error or "")
    for file in outcome.run.path.rglob("*"):
        assert file.is_dir() or b"sk-secret" not in file.read_bytes()


def test_connection_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    deployment = build("default", [("proxy", f"http://127.0.0.1:{port}")], model="m")
    outcome = measure(tmp_path, deployment, plan_for(open_cell(), num_prompts=3))
    assert [(row.status, row.error_kind) for row in outcome.rows] == [("failed", "connect")] * 3
    assert all("ECONNREFUSED" in (row.error or "") for row in outcome.rows)


def test_a_server_that_ends_some_requests_with_500(ground_truth, tmp_path):
    server = ground_truth("--ttft", "5", "--itl", "1", "--error-every", "4")
    outcome = measure(tmp_path, server.deployment(), plan_for(open_cell(), num_prompts=8))
    assert outcome.statuses == ["failed"] * 2 + ["ok"] * 6


def test_chat(quick_server, tmp_path):
    plan = plan_for(open_cell(prompt_len=40, output_len=3), endpoint="chat", num_prompts=2)
    outcome = measure(tmp_path, quick_server.deployment(), plan, chat=ChatCalibration(4.0, 1.0))
    assert [(row.status, row.output_tokens) for row in outcome.rows] == [("ok", 3)] * 2
