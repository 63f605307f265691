"""The client judged by what it did to the figures: each fault of its own with a healthy twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdbench.report.summary import summarise
from tests.report.queue_simulation import Req, World, make_run
from tests.report.test_validity import flags

KERNEL = {"stamps": {"kernel": 1000, "user": 0}, "kernel_to_user_p99_ms": 0.2}


def notes(path: Path, world: World) -> list[str]:
    found: list[str] = summarise(make_run(path / "run", [[world]]))["cells"][0]["notes"]
    return found


@pytest.mark.parametrize(("count", "what"), [("out_of_ports", "no local port"), ("out_of_files", "no descriptor")])
def test_what_the_host_did_not_give(tmp_path: Path, count: str, what: str) -> None:
    severity, evidence = flags(tmp_path, World(client={**KERNEL, count: 3}))["client-saturated"]
    assert severity == "void" and evidence.startswith("3 requests found") and what in evidence
    assert "client-saturated" not in flags(tmp_path / "twin", World(client={**KERNEL, count: 0}))


def test_the_cause_is_called_client(tmp_path: Path) -> None:
    cell = summarise(make_run(tmp_path / "run", [[World(client={**KERNEL, "out_of_ports": 3})]]))["cells"][0]
    assert "client" in [cause["cause"] for cause in cell["diagnosis"]]


def busy_for(share: float) -> Any:
    """Each stream pauses: it is under way for this share of the time between two of its requests."""

    def spoil(r: Req) -> None:
        begun = r.arrive + (1 - share) * (r.last - r.arrive)
        r.row |= {"intended_s": begun, "sent_s": begun}
        r.offsets = [o - (begun - r.arrive) for o in r.offsets]

    return spoil


@pytest.mark.parametrize(("share", "severity"), [(0.97, None), (0.85, "warn"), (0.6, "void")])
def test_streams_that_were_not_under_way(tmp_path: Path, share: float, severity: str | None) -> None:
    # A small share of the first token's time may go without making it negative.
    world = World(
        rate=None, streams=4, n=80, prefill_s=1.0, prefill_servers=4, tokens=16, spoil=[busy_for(share)], client=KERNEL
    )
    found = flags(tmp_path, world).get("client-saturated")
    assert (found[0] if found else None) == severity
    if found:
        held = float(found[1].partition(" of 4 streams were under way")[0])
        assert held == pytest.approx(4 * share, abs=0.15)


def test_streams_that_went_with_a_lost_worker_are_not_the_clients_fault(tmp_path: Path) -> None:
    """Half of the streams are gone: that is told as such, and no host is blamed."""
    world = World(rate=None, streams=4, n=80, prefill_s=1.0, prefill_servers=4, tokens=16, spoil=[busy_for(0.6)])
    run = make_run(tmp_path / "run", [[world]])
    lost = {"worker": 0, "why": "its process was ended by signal 9", "measured": 6, "not_measured": None}
    run.document["cell_runs"][0] |= {"state": "interrupted", "lost": [lost], "not_measured": None}
    (cell,) = summarise(run)["cells"]
    found = {flag["code"]: flag["evidence"] for flag in cell["validity"]}
    assert "client-saturated" not in found and "nobody knows how many" in found["arrivals-off"]
    assert "cut short: 80 answered, but a load worker was lost: what" in cell["verdict"]


@pytest.mark.parametrize(("streams", "left"), [(1, None), (3, None), (1, 20)])
def test_the_verdict_of_a_cell_that_lost_a_worker_says_what_is_missing(
    tmp_path: Path, streams: int, left: int | None
) -> None:
    """All that was sent may have been answered, and half of the load is missing all the same."""
    run = make_run(tmp_path / "run", [[World(rate=None, streams=4, n=80, prefill_s=0.1, tokens=16)]])
    entry = run.document["cell_runs"][0]
    lost = {"worker": 0, "why": "its process was ended by signal 9", "measured": 6, "not_measured": left}
    lost |= {"streams": streams, "last_heard_s": entry["start_s"] + 3.0}
    entry |= {"state": "interrupted", "lost": [lost], "not_measured": left}
    (cell,) = summarise(run)["cells"]
    since = f"{streams} of 4 streams sent nothing from second 3 of {cell['duration_s']:.0f} on"
    missing = "20 not measured: a load worker was lost" if left else since
    assert missing in cell["verdict"] and since in next(iter(cell["validity"]))["evidence"]


def test_streams_that_pause_by_design_or_are_too_few_are_not_judged(tmp_path: Path) -> None:
    base: dict[str, Any] = {"rate": None, "streams": 4, "prefill_s": 1.0, "tokens": 16, "spoil": [busy_for(0.6)]}
    paused = World(**base, n=80, client=KERNEL, plan={"think_s": 2.0})
    assert "client-saturated" not in flags(tmp_path, paused)
    assert "client-saturated" not in flags(tmp_path / "few", World(**base, n=8, client=KERNEL))


@pytest.mark.parametrize(("share", "severity"), [(0.001, None), (0.06, "warn"), (0.12, "void")])
def test_merged_events(tmp_path: Path, share: float, severity: str | None) -> None:
    late = {**KERNEL, "kernel_to_user_p99_ms": 8.0, "shared_reads_share": share}
    found = flags(tmp_path, World(client=late)).get("client-saturated")
    assert (found[0] if found else None) == severity
    # Where reads came in time it was the server that sent them together.
    in_time = World(client={**KERNEL, "shared_reads_share": share})
    assert "client-saturated" not in flags(tmp_path / "twin", in_time)


def first_two_together(of: int) -> Any:
    """The kernel has one stamp, that of the second token, for the first two of each `of`-th answer."""

    def spoil(r: Req) -> None:
        if r.i % of == 0:
            r.offsets[0] = r.offsets[1]
            r.row |= {"first_token_s": r.arrive + r.offsets[1]}

    return spoil


@pytest.mark.parametrize(
    ("of", "latest_ms", "told"), [(40, 30.0, True), (200, 30.0, False), (40, 1.0, False)]
)  # 2 of 400 are nothing to tell of
def test_first_tokens_that_share_a_read_are_told_though_they_move_no_figure(
    tmp_path: Path, of: int, latest_ms: float, told: bool
) -> None:
    """In long answers the share of all reads says nothing: one of 256 here, in one of 40 answers."""
    client = {**KERNEL, "kernel_to_user_max_ms": latest_ms, "shared_reads_share": 1 / 256 / of}
    world = World(rate=1.0, n=400, tokens=256, slots=16, client=client, spoil=[first_two_together(of)], prefill_s=0.3)
    (cell,) = summarise(make_run(tmp_path / "run", [[world]]))["cells"]
    said = [note for note in cell["notes"] if "first tokens came in one read" in note]
    assert "client-saturated" not in [flag["code"] for flag in cell["validity"]]
    assert bool(said) == told
    if told:
        assert said[0].startswith("10 of 400 first tokens") and "about 10 ms too long" in said[0]


def connected_late(ms: float) -> Any:
    def spoil(r: Req) -> None:
        r.row |= {"connected_s": r.arrive + ms / 1000}

    return spoil


def test_connecting_that_is_part_of_ttft(tmp_path: Path) -> None:
    client = {"connections_opened": 120, "stamps": {"kernel": 0, "user": 900}}
    severity, evidence = flags(tmp_path, World(client=client, spoil=[connected_late(12)]))["connections"]
    assert severity == "warn" and "connecting makes 12.0 of" in evidence and "--connections pool" in evidence
    for name, ms in (("ahead", -8.0), ("little", 1.0)):
        assert "connections" not in flags(tmp_path / name, World(client=client, spoil=[connected_late(ms)]))


def test_resets_of_kept_connections(tmp_path: Path) -> None:
    client = {**KERNEL, "connections_opened": 20, "connections_reused": 100}
    severity, evidence = flags(tmp_path, World(client={**client, "resets_retried": 3}))["connections"]
    assert severity == "warn" and evidence.startswith("3 requests met the close")
    assert "connections" not in flags(tmp_path / "twin", World(client={**client, "resets_retried": 1}))


def test_the_report_says_which_stamps_and_how_good(tmp_path: Path) -> None:
    own = World(client={"stamps": {"kernel": 0, "user": 900}, "loop_lag_p99_ms": 1.4})
    (said,) = [note for note in notes(tmp_path, own) if "stamps" in note]
    assert "its own" in said and "1.4 ms (p99)" in said
    mixed = World(client={"stamps": {"kernel": 900, "user": 100}, "loop_lag_p99_ms": 1.4})
    assert any("10.0% of the reads" in note for note in notes(tmp_path / "mixed", mixed))
    assert not [note for note in notes(tmp_path / "kernel", World(client=KERNEL)) if "stamps" in note]


def first_tokens_together(share: float, tokens: int) -> Any:
    """The first tokens of this share of the answers come in one read, with the stamp of the last of them."""

    def spoil(r: Req) -> None:
        if (r.i * 0.618) % 1 < share:
            r.offsets[:tokens] = [r.offsets[tokens - 1]] * tokens
            r.row |= {"first_token_s": r.arrive + r.offsets[0], "second_token_s": r.arrive + r.offsets[1]}

    return spoil


@pytest.mark.parametrize(
    ("share", "read_lag_ms", "events_per_read", "void", "noted"),
    [
        (0.0, 30.0, 1.0, False, False),
        (0.05, 30.0, 1.1, True, False),
        (0.05, 0.2, 1.1, False, True),
        (0.05, 30.0, 4.0, False, True),  # a read every 80 ms: 30 ms late is not late
        (1.0, 0.2, 1.1, False, False),
    ],
)
def test_first_tokens_that_came_with_later_ones(
    tmp_path: Path, share: float, read_lag_ms: float, events_per_read: float, void: bool, noted: bool
) -> None:
    """p99 TTFT is then that of a later token: ours where reads were late, not known whose where they were not, and no
    fault where the server sends so."""
    client = {**KERNEL, "kernel_to_user_p99_ms": read_lag_ms, "events_per_read": events_per_read}
    spoiled = [first_tokens_together(share, 6)] if share else []
    world = World(n=320, tokens=16, step_s=0.02, slots=64, prefill_servers=16, spoil=spoiled, client=client)
    cell = summarise(make_run(tmp_path / "run", [[world]]))["cells"][0]
    found = [flag for flag in cell["validity"] if flag["code"] == "client-saturated"]
    said = [note for note in cell["notes"] if "first tokens in one read" in note]
    assert [flag["severity"] for flag in found] == (["void"] if void else [])
    assert bool(said) == noted
    for text in [*(flag["evidence"] for flag in found), *said]:
        made, _, value = text.rpartition("later ones make ")[2].partition(" ms p99")[0].partition(" of ")
        honest = summarise(make_run(tmp_path / "twin", [[replace(world, spoil=[])]]))["cells"][0]["p99_ttft_ms"]
        assert float(made) == pytest.approx(100, abs=25)
        assert float(value) - float(made) == pytest.approx(honest, abs=25)
