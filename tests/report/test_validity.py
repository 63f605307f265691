"""Every code of the validity table with a cell that must raise it and a twin that must not."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pdbench.report.arrivals_check import departure
from pdbench.report.summary import exit_code_of, summarise
from pdbench.report.text import print_summary
from pdbench.run import Run
from pdbench.testbed.settings import Settings
from tests.planted.virtual import sweep
from tests.report.queue_simulation import Req, World, make_run

Rows = list[list[Any]]


def flags(path: Path, world: World) -> dict[str, tuple[str, str]]:
    """code -> (severity, evidence) of the one cell."""
    cell = summarise(make_run(path / "run", [[world]]))["cells"][0]
    return {v["code"]: (v["severity"], v["evidence"]) for v in cell["validity"]}


def codes_of(run: Run) -> set[str]:
    return {v["code"] for v in summarise(run)["cells"][0]["validity"]}


def every(n: int, **row: Any) -> list[Callable[[Req], None]]:
    """Change the row of each n-th request."""

    def spoil(r: Req) -> None:
        if r.i % n == n - 1:
            r.row.update(row)

    return [spoil]


def set_rows(canonical: str, value: Callable[[float], float], role: str = "", **labels: str) -> Any:
    """Give a series of the pages another value."""

    def tamper(t: float, of: str, rows: Rows) -> Rows:
        for row in rows:
            if row[1] == canonical and role in ("", of) and all(v in row[4] for v in labels.values()):
                row[5] = value(t)
        return rows

    return tamper


def lost(role: str, *canonical: str) -> Any:
    return lambda t, of, rows: [r for r in rows if not (of == role and r[1] in canonical)]


HEALTHY = World(n=320, rate=4, prefill_s=0.04)
NO_TOKENS: dict[str, Any] = {"first_token_s": None, "last_token_s": None, "output_tokens": None}


@pytest.mark.parametrize("mode", ["pull", "push", "colocated"])
def test_a_healthy_cell_has_no_flag(tmp_path: Path, mode: str) -> None:
    """With requests enough for a p99 although some wait together: at a sixth of prefill's time 300 are worth 200."""
    assert flags(tmp_path, World(**{**vars(HEALTHY), "mode": mode, "n": 1600})) == {}


def test_few_requests_are_flagged_with_the_number_needed(tmp_path: Path) -> None:
    severity, evidence = flags(tmp_path, World(n=40))["too-few-requests"]
    assert severity == "warn" and "299" in evidence


@pytest.mark.parametrize(
    ("streams", "more"), [(None, "--num-prompts {takes} or more"), (6, "--repeats {times} or more:")]
)
def test_requests_that_wait_together_are_too_few(tmp_path: Path, streams: int | None, more: str) -> None:
    world = World(n=400, slots=8, tokens=64, streams=streams, rate=None if streams else 8)
    severity, evidence = flags(tmp_path, world)["too-few-requests"]
    assert severity == "warn" and "are alike: only a lower bound is known" in evidence
    needs = summarise(make_run(tmp_path / "again", [[world]]))["cells"][0]["needs"]
    takes = {name: needs[f"p99_{name}_ms"] for name in ("ttft", "tpot", "e2el") if f"p99_{name}_ms" in needs}
    names, numbers = [name.upper() for name in takes], {f"{needed:,} or more" for needed in takes.values()}
    assert all(name in evidence for name in names) and all(f"takes {number}" in evidence for number in numbers)
    assert ("TPOT" in evidence) == ("tpot" in takes)
    assert more.format(takes=takes["ttft"], times=math.ceil(takes["ttft"] / 400)) in evidence


def test_overload(tmp_path: Path) -> None:
    severity, evidence = flags(tmp_path, World(rate=16, n=320, slots=8))["not-steady-state"]
    assert severity == "void" and "TTFT grows" in evidence and "figure of this run's length" in evidence


def test_a_burst_of_a_closed_loop_is_told_to_run_longer(tmp_path: Path) -> None:
    """Its streams wait for their answers, so it overloads nothing, however full the slots are."""
    severity, evidence = flags(tmp_path, World(streams=40, n=60, slots=48, rate=None))["not-steady-state"]
    assert severity == "void" and "requests were in flight at once" in evidence
    assert "Run longer: --num-prompts 400 or more" in evidence
    assert "the rate" not in evidence and "don't help" not in evidence


def test_a_cell_that_was_only_too_short_is_told_to_run_longer(tmp_path: Path) -> None:
    """Eleven requests in a second hold 0.64 s each: with 30 slots they need a third of them, with 8 more than all."""
    burst: dict[str, Any] = {"rate": 16, "n": 11, "prefill_s": 0.01, "times": np.arange(11) / 30}
    severity, evidence = flags(tmp_path / "room", World(slots=30, **burst))["not-steady-state"]
    assert severity == "void" and "requests were in flight at once" in evidence
    assert "Run longer: --num-prompts 110 or more" in evidence and "Lower the rate" not in evidence
    for name, world in {
        "slots": World(slots=8, **burst),
        "prefill": World(slots=30, **{**burst, "prefill_s": 0.06}),
    }.items():
        assert "Lower the rate" in flags(tmp_path / name, world)["not-steady-state"][1]


def test_a_short_run_at_full_slots_is_told_what_a_steady_state_would_be(tmp_path: Path) -> None:
    """At 90 % of 8 slots M/D/c waits 0.4513 holding times on average, after about 900 requests; 60 see less of it."""
    full = {"rate": 0.9 * 8 / 0.64, "prefill_s": 0.005, "post_s": 0.0, "transfer_s": 0.005}
    found = [flags(tmp_path / str(seed), World(n=60, seed=seed, **full)).get("not-steady-state") for seed in range(4)]
    short = [evidence for severity, evidence in filter(None, found) if severity == "warn"]
    assert short
    for evidence in short:
        used, settles, steady = re.search(  # type: ignore[union-attr]
            r"with (\d+)% of the slots in use .* about ([\d,]+) requests to build up.* slot is about ([\d,]+) ms",
            evidence,
        ).groups()
        assert used == "90" and int(settles) == pytest.approx(900, rel=0.05)
        assert float(steady) == pytest.approx(0.4513 * 640, rel=0.1)


@pytest.mark.parametrize(("used", "n", "held"), [(0.66, 60, 0.0442), (0.8, 300, 0.1520), (0.9, 1000, 0.4513)])
def test_a_mean_that_is_chance_says_so(tmp_path: Path, used: float, n: int, held: float) -> None:
    """M/D/8 waits `held` holding times on average. A cell that says nothing has a mean that is nearly so, and one that
    speaks knows the true one, however many requests came by chance."""
    silent, told = [], []
    for seed in range(5):
        world = World(rate=used * 8 / 0.64, n=n, seed=seed, prefill_s=0.005, post_s=0.0, transfer_s=0.005)
        cell = summarise(make_run(tmp_path / f"{seed}", [[world]]))["cells"][0]
        short = cell.get("short_run")
        assert (short is not None) == any(flag["code"] == "not-steady-state" for flag in cell["validity"])
        wait_ms = cell["ttft_split_ms"].get("slot_wait", 0.0)
        true_ms = cell["mean_ttft_ms"] - wait_ms + held * 640
        (silent if short is None else told).append(cell["mean_ttft_ms"] / true_ms)
        if short is not None:
            assert short["steady_slot_wait_ms"] == pytest.approx(held * 640, rel=0.1)
            assert short["steady_requests"] > 1.2 * n
    assert told and max(abs(1 - share) for share in told) > 0.25
    assert all(0.75 < share < 1.45 for share in silent), silent


@pytest.mark.parametrize("slots", [8, 64])
def test_a_cell_with_slots_to_spare_is_no_short_run(tmp_path: Path, slots: int) -> None:
    """At 40 % of the slots hardly any request waits, in 300 as in a steady state."""
    world = World(rate=0.4 * slots / 0.64, n=300, slots=slots, prefill_s=0.002, post_s=0.0, transfer_s=0.005)
    assert "not-steady-state" not in flags(tmp_path, world)


def test_too_few_slots_are_an_overload_whatever_this_runs_arrivals_did(tmp_path: Path) -> None:
    for seed in range(4):
        world = World(rate=8, n=80, tokens=128, step_s=0.0104, prefill_s=0.06, transfer_s=0.07, post_s=0.06, seed=seed)
        assert "10.6 decode slots of 8" in flags(tmp_path / str(seed), world)["not-steady-state"][1]


@pytest.mark.parametrize("series", ["nixl_kv_expired", "nixl_used_after_expiry"])
def test_kv_that_expired(tmp_path: Path, series: str) -> None:
    world = World(**{**vars(HEALTHY), "tamper": set_rows(series, lambda t: 4.0 + (t > 20))})
    assert flags(tmp_path, world)["kv-expired"][0] == "void"
    old = World(**{**vars(HEALTHY), "tamper": set_rows(series, lambda t: 4.0)})
    assert "kv-expired" not in flags(tmp_path / "old", old)


def test_decode_that_computes_prompts_itself(tmp_path: Path) -> None:
    severity, evidence = flags(tmp_path, World(recompute=True))["decode-recomputed"]
    assert severity == "void" and "1,024 prompt tokens a request" in evidence
    one_token = set_rows("prompt_tokens_by_source", lambda t: t * HEALTHY.rate, source="local_compute")  # type: ignore[operator]
    assert "decode-recomputed" not in flags(tmp_path / "one", World(**{**vars(HEALTHY), "tamper": one_token}))


@pytest.mark.parametrize("client", [{"loop_lag_p99_ms": 80.0}, {"cpu_share": 0.99}])
def test_a_client_that_is_the_bottleneck(tmp_path: Path, client: dict[str, float]) -> None:
    assert flags(tmp_path, World(client=client))["client-saturated"][0] == "void"


def late_by(ms: float, every: int, but: int = 0) -> list[Callable[[Req], None]]:
    """Each `every`-th request was due `ms` before it left."""

    def spoil(r: Req) -> None:
        if r.i % every == but:
            r.row["intended_s"] = r.arrive - ms / 1000

    return [spoil]


@pytest.mark.parametrize(("ms", "every_nth"), [(200, 10), (100, 3), (12, 1)])
def test_late_sends_that_move_the_mean(tmp_path: Path, ms: float, every_nth: int) -> None:
    severity, evidence = flags(tmp_path, World(spoil=late_by(ms, every_nth)))["client-saturated"]
    assert severity == "void" and "of the mean TTFT" in evidence


@pytest.mark.parametrize("n", [24, 120])
def test_one_late_send_is_a_warning(tmp_path: Path, n: int) -> None:
    world = World(n=n, prefill_s=0.3, rate=1, spoil=late_by(90, n, n // 2))
    severity, evidence = flags(tmp_path, world)["client-saturated"]
    assert severity == "warn" and "1 of" in evidence and "up to 90" in evidence


def test_lateness_of_few_voids_where_p99_is_printed(tmp_path: Path) -> None:
    """A hundredth and a half of 400 requests: the mean hardly moves, p99 is the client's."""
    late = flags(tmp_path, World(n=400, rate=2, spoil=late_by(250, 66)))["client-saturated"]
    assert late[0] == "void" and "p99 TTFT" in late[1]
    assert flags(tmp_path / "b", World(n=132, rate=2, spoil=late_by(250, 66)))["client-saturated"][0] == "warn"


def test_late_sends_beside_a_long_wait_move_nothing(tmp_path: Path) -> None:
    world = World(rate=12, n=150, tokens=128, slots=4, spoil=late_by(90, 10))
    assert "client-saturated" not in flags(tmp_path, world)


def test_lag_that_only_blurs_itl_is_a_warning(tmp_path: Path) -> None:
    assert flags(tmp_path, World(client={"loop_lag_p99_ms": 7.0}))["client-saturated"][0] == "warn"


def test_lag_does_not_blur_the_kernels_stamps_but_merged_events_do(tmp_path: Path) -> None:
    client = {"loop_lag_p99_ms": 7.0, "stamps": {"kernel": 1000, "user": 0}, "kernel_to_user_p99_ms": 7.0}
    assert "client-saturated" not in flags(tmp_path, World(client={**client, "shared_reads_share": 0.001}))
    merged = flags(tmp_path / "merged", World(client={**client, "shared_reads_share": 0.02}))
    assert merged["client-saturated"][0] == "warn" and "one time stamp" in merged["client-saturated"][1]
    bunched = World(client={**client, "shared_reads_share": 0.5, "kernel_to_user_p99_ms": 0.2})
    assert "client-saturated" not in flags(tmp_path / "bunched", bunched)
    mixed = World(client={**client, "stamps": {"kernel": 900, "user": 100}})
    assert flags(tmp_path / "mixed", mixed)["client-saturated"][0] == "warn"


def test_a_stall_seen_by_the_client(tmp_path: Path) -> None:
    def hold(r: Req) -> None:
        stop = 20.0
        late = [o if r.arrive + o < stop else o + 6.0 for o in r.offsets]
        r.row |= {
            "first_token_s": r.arrive + late[0],
            "last_token_s": r.arrive + late[-1],
            "done_s": r.arrive + late[-1],
        }
        r.offsets = late

    (cell,) = summarise(make_run(tmp_path / "run", [[World(rate=4, n=160, spoil=[hold])]]))["cells"]
    (void,) = [flag for flag in cell["validity"] if flag["severity"] == "void"]
    assert void["code"] == "stall" and "6.0 s" in void["evidence"]
    assert not any(note.startswith("the longest gap") for note in cell["notes"]), "said once"


def test_a_stall_seen_on_decodes_page(tmp_path: Path) -> None:
    def freeze(t: float, role: str, rows: Rows) -> Rows:
        if role == "decode" and 10 < t < 18:
            for row in rows:
                row[5] = {"running": 3.0, "generation_tokens": 640.0}.get(row[1], row[5])
        return rows

    def nothing_then(r: Req) -> None:
        if r.last > 9 and r.arrive < 19:
            r.offsets = []

    world = World(rate=2, tamper=freeze, spoil=[nothing_then])
    assert "made no token" in flags(tmp_path, world)["stall"][1]


def test_quiet_times_without_requests_are_no_stall(tmp_path: Path) -> None:
    assert "stall" not in flags(tmp_path, World(rate=0.2, n=12))


def test_a_server_that_restarted(tmp_path: Path) -> None:
    def again(t: float, role: str, rows: Rows) -> Rows:
        for row in rows:
            if row[2] in ("counter", "count") and role == "decode" and t > 20:
                row[5] = max(0.0, row[5] - 15)
        return rows

    assert flags(tmp_path, World(tamper=again))["server-restarted"][0] == "void"
    started = set_rows("process_start_s", lambda t: 1e9 + 100 * (t > 20))
    assert "start time" in flags(tmp_path / "b", World(tamper=started))["server-restarted"][1]


@pytest.mark.parametrize(("share", "severity"), [(0.3, "void"), (0.02, "warn"), (0.005, None)])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_prefix_cache_hits_on_any_server(tmp_path: Path, share: float, severity: str | None, role: str) -> None:
    def hit(t: float, of: str, rows: Rows) -> Rows:
        queries = next((r[5] for r in rows if r[1] == "prefix_cache_queries"), 0.0)
        return [[*r[:5], share * queries] if r[1] == "prefix_cache_hits" and of == role else r for r in rows]

    found = flags(tmp_path, World(tamper=hit)).get("prefix-cache-hits")
    assert (found[0] if found else None) == severity
    if severity == "void" and found:
        assert "prompt tokens/s served" in found[1]


@pytest.mark.parametrize(("n", "severity"), [(10, "void"), (60, "warn")])
@pytest.mark.parametrize("status", ["failed", "truncated", "timeout"])
def test_failed_requests(tmp_path: Path, n: int, severity: str, status: str) -> None:
    world = World(n=320, spoil=every(n, status=status, error="x", **NO_TOKENS))
    assert flags(tmp_path, world)["failed-requests"][0] == severity


def test_rejected_requests_are_not_failed(tmp_path: Path) -> None:
    assert "failed-requests" not in flags(tmp_path, World(spoil=every(5, status="rejected", **NO_TOKENS)))


@pytest.mark.parametrize(("n", "severity"), [(10, "void"), (200, "warn")])
@pytest.mark.parametrize("row", [{"output_tokens": 10}, {"prompt_tokens": 1000}])
def test_other_tokens_than_asked(tmp_path: Path, n: int, severity: str, row: dict[str, int]) -> None:
    assert flags(tmp_path, World(n=320, spoil=every(n, **row)))["token-mismatch"][0] == severity


def test_real_ends_and_chat_templates_are_no_mismatch(tmp_path: Path) -> None:
    ends = World(n=320, spoil=every(3, output_tokens=20), plan={"ignore_eos": False})
    chat = World(n=320, spoil=every(3, prompt_tokens=1040), plan={"endpoint": "chat"})
    assert "token-mismatch" not in flags(tmp_path / "a", ends) and "token-mismatch" not in flags(tmp_path / "b", chat)


def test_failed_transfers(tmp_path: Path) -> None:
    found = flags(tmp_path, World(tamper=set_rows("nixl_failed_transfers", lambda t: float(t > 10))))
    assert found["failed-transfers"][0] == "warn"


@pytest.mark.parametrize(("factor", "flagged"), [(1.2, True), (1.0, False)])
def test_work_of_others(tmp_path: Path, factor: float, flagged: bool) -> None:
    def more(t: float, role: str, rows: Rows) -> Rows:
        return [[*r[:5], factor * r[5]] if r[1] == "e2e_s" and role == "decode" else r for r in rows]

    run = make_run(tmp_path / "run", [[World(tamper=more)]])
    assert ("foreign-traffic" in codes_of(run)) == flagged
    # What a worker sent before it was lost is in no row of ours.
    lost = {"worker": 1, "of_workers": 2, "why": "signal 9", "measured": 6, "not_measured": 9}
    run.document["cell_runs"][0] |= {"state": "interrupted", "lost": [lost], "not_measured": 9}
    assert "foreign-traffic" not in codes_of(run)


def test_requests_where_no_gauge_counts_them(tmp_path: Path) -> None:
    """A proxy that holds every request for 0.6 s more than the servers see."""
    found = flags(tmp_path, World(rate=4, n=320, proxy_s=0.6))
    assert found["littles-law"][0] == "warn" and "no server counts them" in found["littles-law"][1]


def test_missing_pages_and_series_are_named(tmp_path: Path) -> None:
    assert "no metrics page of decode" in flags(tmp_path / "a", World(pages=("prefill",)))["metrics-missing"][1]
    found = flags(tmp_path / "b", World(tamper=lost("decode", "kv_fetch_stage", "nixl_xfer_s")))["metrics-missing"][1]
    assert "kv_fetch_stage" in found and "nixl_xfer_s" in found


def test_servers_that_were_not_given_are_named_with_what_adds_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [[World(n=20)]])
    (deployment,) = run.document["deployments"]
    deployment["servers"] = [one for one in deployment["servers"] if one["role"] == "proxy"]
    for target, given in (("default", "--decode URL --prefill URL"), ("a", "--target a=RECIPE.toml")):
        deployment["target"] = run.document["plan"]["cells"][0]["target"] = target
        flags = summarise(run)["cells"][0]["validity"]
        (found,) = [flag["evidence"] for flag in flags if flag["code"] == "metrics-missing"]
        assert given in found and ("--decode" in found) == (target == "default")


def test_a_page_that_is_never_read_gives_no_zero(tmp_path: Path) -> None:
    cell = summarise(make_run(tmp_path / "run", [[World(pages=("prefill",))]]))["cells"][0]
    assert "waiting_mean" not in cell and "decode" not in cell["servers"] and "first_step" not in cell["ttft_split_ms"]


def test_void_cells_exit_with_3(tmp_path: Path) -> None:
    assert exit_code_of(summarise(make_run(tmp_path / "a", [[World(recompute=True)]]))) == 3
    assert exit_code_of(summarise(make_run(tmp_path / "b", [[World()], [World(recompute=True)]]))) == 0


# ---- arrivals


def sends(kind: str, n: int, seed: int, rate: float = 8.0, burstiness: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = {"poisson": 1.0, "gamma": burstiness}.get(kind)
    gaps = np.full(n, 1 / rate) if shape is None else rng.gamma(shape, 1 / (rate * shape), n)
    return np.asarray(np.cumsum(gaps) + rng.exponential(0.0005, n))


@pytest.mark.parametrize(("kind", "burstiness"), [("poisson", 1.0), ("gamma", 0.25), ("gamma", 4.0), ("constant", 1.0)])
@pytest.mark.parametrize("n", [12, 80, 480])
def test_the_named_process_passes(kind: str, burstiness: float, n: int) -> None:
    alarms = sum(
        departure(sends(kind, n, s, 8.0, burstiness), 0.0, kind, 8.0, burstiness) is not None for s in range(100)
    )
    assert alarms <= 1


@pytest.mark.parametrize(
    ("sent", "named"),
    [("constant", "poisson"), ("poisson", "constant"), ("gamma", "poisson"), ("poisson", "gamma")],
)
def test_another_process_is_seen(sent: str, named: str) -> None:
    seen = [departure(sends(sent, 160, s, 8.0, 0.25), 0.0, named, 8.0, 0.25) for s in range(20)]
    assert sum(text is not None for text in seen) >= 19


def test_a_pause_or_another_rate_is_seen() -> None:
    stamps = sends("poisson", 200, 3)
    paused = np.concatenate((stamps[:100], stamps[100:] + 8.0))
    assert departure(paused, 0.0, "poisson", 8.0) is not None
    assert departure(stamps * 1.5, 0.0, "poisson", 8.0) is not None
    assert departure(stamps[:5], 0.0, "poisson", 8.0) is None


def test_a_cell_that_was_cut_is_told_as_one(tmp_path: Path) -> None:
    """Its servers counted requests that the client gave up: no part of TTFT is below zero for it, and no advice rests
    on what is left."""

    def given_up(r: Req) -> None:
        if r.i >= 60:
            r.row |= {"status": "cancelled", "first_token_s": None, "last_token_s": None, "output_tokens": None}
        elif r.i < 30:
            r.row["first_token_s"] = r.arrive + 0.02  # what was answered was quick

    run = make_run(tmp_path / "run", [[World(n=80, spoil=[given_up])]])
    whole = summarise(run)
    assert whole["cells"][0]["ttft_split_ms"]["proxy"] < 0 and whole["cells"][0]["state"] == "done"
    run.document["cell_runs"][0]["state"] = "interrupted"
    found = summarise(run)
    (cell,) = found["cells"]
    parts = cell["ttft_split_ms"]
    assert "proxy" not in parts and sum(parts.values()) == pytest.approx(cell["mean_ttft_ms"])
    assert not cell["counsel"]
    assert "No cell is valid;" in found["verdict"] and "0 of 1 repeats" not in found["verdict"]


def test_arrivals_off_voids(tmp_path: Path) -> None:
    world = World(arrivals="constant", plan={"arrivals": "poisson"})
    assert flags(tmp_path, world)["arrivals-off"][0] == "void"
    assert "arrivals-off" not in flags(tmp_path / "b", World(arrivals="constant"))


def rare_draw(n: int, rate: float) -> np.ndarray:
    """Poisson arrivals of the first seed that the test of evenness refuses."""
    draws = (np.cumsum(np.random.default_rng(seed).standard_exponential(n)) / rate for seed in range(20_000))
    return next(times for times in draws if departure(times, 0.0, "poisson", rate) is not None)


def test_a_rare_draw_is_no_fault_of_the_client_where_the_sends_are_in_their_places(tmp_path: Path) -> None:
    """One draw in a thousand departs as far, and a seed draws it each time: no repeat would ever be valid."""
    drawn: dict[str, Any] = {"rate": 6.0, "n": 90, "slots": 32, "prefill_s": 0.01, "times": rare_draw(90, 6.0)}
    severity, evidence = flags(tmp_path / "a", World(**drawn, plan={"seed": 6}))["arrivals-off"]
    assert severity == "warn" and "--seed 7" in evidence and "repeat the cell" not in evidence

    def elsewhere(r: Req) -> None:
        r.row["intended_s"] = (r.i + 1) / 6.0
        r.row["sent_s"] = r.arrive

    severity, evidence = flags(tmp_path / "b", World(**drawn, spoil=[elsewhere]))["arrivals-off"]
    assert severity == "void" and "--seed" not in evidence


@pytest.mark.parametrize(
    ("lost_every", "used", "said"),
    [
        (0, 0.0, "came back all the same"),
        (4, 0.0, "80 requests had no whole answer"),
        (4, 3.0, "came back all the same"),
    ],
)
def test_an_answer_from_freed_kv_is_spoken_of_where_there_was_one(
    tmp_path: Path, lost_every: int, used: float, said: str
) -> None:
    """24 leases end: with 80 requests unanswered and no KV used after its expiry, no answer came from it."""

    def tamper(t: float, of: str, rows: Rows) -> Rows:
        rows = set_rows("nixl_kv_expired", lambda t: 24.0 * (t > 20), role="prefill")(t, of, rows)
        return set_rows("nixl_used_after_expiry", lambda t: used * (t > 20), role="prefill")(t, of, rows)

    spoil = every(lost_every, status="timeout", **NO_TOKENS) if lost_every else []
    cell = summarise(make_run(tmp_path / "run", [[World(**{**vars(HEALTHY), "tamper": tamper, "spoil": spoil})]]))[
        "cells"
    ][0]
    assert said in next(cause["evidence"] for cause in cell["diagnosis"] if cause["cause"] == "kv-expired")


@pytest.mark.parametrize(
    ("rate", "settings", "said"),
    [
        (6, {"stall_s": 1.5, "stall_at_s": 3.0}, "the longest gap between tokens is 1.5 s"),
        (3, {"stall_s": 2.0, "stall_at_s": 4.0}, "nobody got a token for 1."),  # no stream was under way
        (6, {"stall_s": 0.6, "stall_at_s": 3.0}, ""),
        (6, {"stall_s": 4.0, "stall_at_s": 3.0}, "the longest gap between tokens is 4.0 s"),  # and void
    ],
)
def test_streams_that_stood_still_are_told(tmp_path: Path, rate: float, settings: dict[str, Any], said: str) -> None:
    load: dict[str, Any] = {"rates": [rate], "prompt_lens": [1024], "output_len": 128, "duration_s": 9.0}
    summary = summarise(sweep(tmp_path / "run", {"default": Settings(mode="pull", **settings)}, **load).run)
    (cell,) = summary["cells"]
    told = [note for note in cell["notes"] if "servers' logs at that time" in note]
    assert ("stall" in [flag["code"] for flag in cell["validity"]]) == (settings["stall_s"] > 2)
    assert len(told) == bool(said)
    if said:
        assert said in told[0]
        file = io.StringIO()
        print_summary(summary, Console(file=file, width=80))
        assert said in " ".join(file.getvalue().split())


def test_streams_that_stood_still_while_others_went_on(tmp_path: Path) -> None:
    def hold(r: Req) -> None:
        if r.i % 2:
            late = [o if r.arrive + o < 20.0 else o + 6.0 for o in r.offsets]
            r.row |= {"first_token_s": r.arrive + late[0], "last_token_s": r.arrive + late[-1]}
            r.row["done_s"] = r.arrive + late[-1]
            r.offsets = late

    (cell,) = summarise(make_run(tmp_path / "run", [[World(rate=4, n=160, spoil=[hold])]]))["cells"]
    (said,) = [note for note in cell["notes"] if note.startswith("the longest gap between tokens is 6.0 s")]
    still, under_way = (int(n) for n in re.findall(r"(\d+) of (\d+) streams", said)[0])
    assert 1 <= still < under_way and "stall" not in [flag["code"] for flag in cell["validity"]]
