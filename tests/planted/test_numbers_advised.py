"""Whoever follows a number that the report advises has what it promised: prefill instances, slots of each server, slots
beside a loop that stays held."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from pdbench.sweep.stages import Stage
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep

BED: dict[str, Any] = {"step_base_ms": 9.0, "step_per_seq_ms": 0.1, "max_num_seqs": 32, "post_fixed_ms": 1.2}


def measured(path: Path, load: dict[str, Any], **bed: Any) -> dict[str, Any]:
    settings = Settings(**{"mode": "pull", **BED, **bed})
    done = sweep(path, {"bed": settings}, prompt_lens=[1900], seed=5, **load)
    cell: dict[str, Any] = summarise(done.run)["cells"][0]
    return cell


def by_name(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cause["cause"]: cause for cause in cell["diagnosis"]}


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_prefill_instances_for_an_open_load(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rates": [7.5], "output_len": 40, "duration_s": 25.0}
    cause = by_name(measured(tmp_path / "one", load, prefill_ms_per_token=0.2))["prefill-queue"]
    needed = int(number(r"Use (\d+) prefill instances instead of 1", cause["advice"]))
    assert needed == 5  # 7.5 req/s x 0.38 s at 60 %
    assert "prefill-queue" in by_name(measured(tmp_path / "two", load, prefill_ms_per_token=0.2, prefills=2))
    assert "prefill-queue" not in by_name(measured(tmp_path / "n", load, prefill_ms_per_token=0.2, prefills=needed))
    lower = number(r"lower the rate to ([\d.]+) req/s", cause["advice"])
    slower = {**load, "rates": [lower], "duration_s": 60.0}
    assert "prefill-queue" not in by_name(measured(tmp_path / "lower", slower, prefill_ms_per_token=0.2))


def test_prefill_instances_for_a_closed_loop_are_for_the_rate_that_it_then_makes(tmp_path: Path) -> None:
    load: dict[str, Any] = {"streams": [10], "output_len": 140, "duration_s": 25.0}
    cause = by_name(measured(tmp_path / "one", load, prefill_ms_per_token=0.2))["prefill-queue"]
    assert "same rate" not in cause["confirm"] and "req/s," not in cause["advice"].split(":")[0]
    needed = int(number(r"Use (\d+) prefill instances", cause["advice"]))
    then = measured(tmp_path / "n", load, prefill_ms_per_token=0.2, prefills=needed)
    assert "prefill-queue" not in by_name(then)
    promised = number(r"up to ([\d.]+) instead", cause["confirm"])
    assert then["request_throughput"] <= 1.02 * promised  # "up to": what is left of the wait is not taken off
    assert then["request_throughput"] == pytest.approx(promised, rel=0.15)


@pytest.mark.parametrize(("servers", "rate", "output", "slots"), [(2, 6, 140, 4), (3, 3, 400, 1)])
def test_slots_are_said_of_each_server(tmp_path: Path, servers: int, rate: float, output: int, slots: int) -> None:
    """Round robin makes no common pool of three servers' slots: what would be enough of that is not."""
    load: dict[str, Any] = {"rates": [rate], "output_len": output, "duration_s": 9 * output / 50}
    sites = {"decodes": servers, "prefills": servers}
    advice = by_name(measured(tmp_path / "short", load, max_num_seqs=slots, **sites))["decode-slots"]["advice"]
    each = int(number(rf"--max-num-seqs to (\d+) on each of the {servers} decode servers", advice))
    assert slots < each < 12
    assert by_name(measured(tmp_path / "enough", load, max_num_seqs=each, **sites)) == {}


@pytest.mark.parametrize(("slots", "next_queue"), [(5, True), (32, False)])
def test_who_mends_prefill_alone_is_told_of_the_next_queue(tmp_path: Path, slots: int, next_queue: bool) -> None:
    """Prefill lets 4 of 8 req/s through, which hold 2.3 slots; 8 hold 4.6. With a second and third prefill they do."""
    load: dict[str, Any] = {"rates": [8], "output_len": 80, "duration_s": 20.0}
    sites = {"prefill_ms_per_token": 0.13, "max_num_seqs": slots}
    now = by_name(measured(tmp_path / "now", load, **sites))
    assert next(iter(now)) == "prefill-queue" and ("decode-slots" in now) == next_queue
    then = by_name(measured(tmp_path / "then", load, prefills=4, **sites))
    assert ("decode-slots" in then) == next_queue
    if next_queue:
        assert now["decode-slots"]["share"] == 0 and "takes nothing of TTFT yet" in now["decode-slots"]["evidence"]
        each = int(number(r"--max-num-seqs on decode to (\d+)", now["decode-slots"]["advice"]))
        mended = measured(tmp_path / "mended", load, prefills=4, **sites | {"max_num_seqs": each})
        assert "decode-slots" not in by_name(mended)


def test_no_number_of_slots_fits_a_rate_that_moves(tmp_path: Path) -> None:
    """Its mean is 6.5 req/s, for which 9 slots would do; at the end 12 are asked. The highest alone has a number."""
    ramp: dict[str, Any] = {"rates": [6.5], "output_len": 96, "duration_s": 40.0, "stages": (Stage(40.0, 1.0, 12.0),)}
    advice = by_name(measured(tmp_path / "ramp", ramp, max_num_seqs=8))["decode-slots"]["advice"]
    assert "--rates 12)" in advice and not re.search(r"to \d|\d req/s", advice)
    highest: dict[str, Any] = {"rates": [12], "output_len": 96, "duration_s": 20.0}
    found = by_name(measured(tmp_path / "highest", highest, max_num_seqs=8))["decode-slots"]["advice"]
    slots = int(number(r"--max-num-seqs on decode to (\d+)", found))
    assert by_name(measured(tmp_path / "enough", ramp, max_num_seqs=slots)) == {}


def test_slots_beside_a_loop_that_stays_held_are_said_with_their_number(tmp_path: Path) -> None:
    load: dict[str, Any] = {"rates": [13], "output_len": 13, "duration_s": 25.0}
    held: dict[str, Any] = {"step_base_ms": 11.0, "post_fixed_ms": 46.0}
    cell = measured(tmp_path / "short", load, max_num_seqs=4, **held)
    (cause,) = cell["diagnosis"]
    assert cause["cause"] == "engine-loop-blocking" and "Move posting" in cause["advice"]
    slots = int(number(r"as it is and raise --max-num-seqs on decode to (\d+)", cause["advice"]))
    parts = [number(rf"{name} (\d+) ms", cause["made_of"].replace(",", "")) for name in ("slot wait", "post")]
    assert sum(parts) / cell["mean_ttft_ms"] == pytest.approx(cause["share"], abs=0.02)
    assert cause["made_of"] in cell["verdict"] and cause["advice"] in cell["verdict"]
    more = measured(tmp_path / "more", load, max_num_seqs=slots, **held)
    assert more["mean_ttft_ms"] < cell["mean_ttft_ms"] / 3
    assert more["ttft_split_ms"]["slot_wait"] < 0.25 * more["mean_ttft_ms"]


def test_posting_of_two_servers_takes_no_more_than_their_loops_have(tmp_path: Path) -> None:
    """Twice the servers at twice the rate: the same share of each one's loop."""
    shares = []
    for servers in (1, 2):
        load: dict[str, Any] = {"rates": [3 * servers], "output_len": 140, "duration_s": 25.0}
        cell = measured(tmp_path / str(servers), load, decodes=servers, prefills=servers, post_fixed_ms=90.0)
        evidence = by_name(cell)["engine-loop-blocking"]["evidence"]
        shares.append(number(r"on the loop, (\d+)% of its time", evidence))
    assert shares[1] == pytest.approx(shares[0], rel=0.2) and max(shares) < 40
