"""The live view: one line at each cell's start and end where stderr is no terminal, and cheap where it is one."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from pdbench.deployment import build
from pdbench.run import RequestRow
from pdbench.sweep.classes import TrafficClass
from pdbench.sweep.live import Live
from pdbench.sweep.plan import Plan, grid

SERVERS = {
    ("t", "decode-0"): {"role": "decode", "running": 5, "waiting": 3},
    ("t", "prefill-0"): {"role": "prefill", "running": 1, "waiting": 0},
    ("other", "decode-0"): {"role": "decode", "running": 50, "waiting": 70},
}


def plan_of(rates=(1.0, 4.0), repeats=1, concurrencies=(), **changes) -> Plan:
    return Plan(grid(["t"], list(rates), list(concurrencies), [1024], [128]), repeats=repeats, **changes)


def deployments():
    urls = [("proxy", "http://h:1"), ("prefill", "http://h:2"), ("decode", "http://h:3")]
    return {"t": build("t", urls, slots={"decode-0": 8})}


def row(index: int, status: str = "ok", ttft_s: float = 0.05) -> RequestRow:
    known = {"first_token_s": index + ttft_s, "last_token_s": index + ttft_s + 1.27, "output_tokens": 128}
    return RequestRow(0, 0, "default", str(index), "t", index, float(index), status=status, **known)


def live(plan: Plan, **console) -> tuple[Live, io.StringIO]:
    file = io.StringIO()
    return Live(plan, deployments(), Console(file=file, width=80, **console)), file


def test_no_terminal_gets_a_line_at_the_start_and_the_end_of_a_cell():
    plan = plan_of()
    view, file = live(plan)
    with view:
        view.cell_started(plan.cells[1], 0, 40)
        for index in range(10):
            view.row(row(index))
        view.row(row(11, "timeout"))
        view.gauges(SERVERS)
        view.cell_ended(plan.cells[1], 0)
    start, end = file.getvalue().splitlines()
    assert start == "cell 2 of 2: 4 req/s x 1,024 tokens, about 60 s"
    assert end == "2/2  4 req/s x 1,024: 10 ok, 1 not, TTFT p50 50 ms, TPOT p50 10 ms, waiting <= 3"


def test_a_server_that_stops_answering_is_named_while_the_cell_goes_on():
    plan = plan_of()
    view, file = live(plan)
    dead = {**SERVERS, ("t", "decode-0"): {"role": "decode", "up": False}}
    with view:
        view.cell_started(plan.cells[0], 0, 40)
        view.gauges(dead)
        assert view.silent_since_s and not view.called_silent  # one scrape that failed is no word
        view.silent_since_s[("t", "decode-0")] -= 9.0
        view.gauges(dead)
        view.gauges(dead)
        assert any("silent" in line and "decode-0" in line for line in view.lines(time.monotonic()))
        view.cell_ended(plan.cells[0], 0)
        view.gauges(SERVERS)
    _, said, end, again = file.getvalue().splitlines()
    assert re.fullmatch(r"decode-0 has not answered for \d+ s: look at its log and process", said)
    assert re.fullmatch(r"1/2  1 req/s x 1,024: 0 ok, decode-0 has not answered for \d+ s", end)
    assert again == "decode-0 answers again"


def test_a_search_counts_probes_and_its_time_for_nobody_knows_how_many_there_will_be():
    plan = plan_of(search={"find": "capacity", "slos": [], "max_duration_s": 100.0})
    view, file = live(plan)
    with view:
        view.cell_started(plan.cells[0], 0, 40)
        view.cell_ended(plan.cells[0], 0)
        view.took_s[0] = 35.0
        view.cell_started(plan.cells[1], 0, 40)
        assert "end not known yet" in view.lines(view.cell_started_s + 1)[1]
    first, end, second = file.getvalue().splitlines()
    assert first == "probe 1, 0 of 100 s: 1 req/s x 1,024 tokens, about 60 s"
    assert end.startswith("probe 1  1 req/s") and second.startswith("probe 2, 35 of 100 s: 4 req/s")


def test_lines_of_classes_fit_80_columns():
    names = ("interactive-chat", "batch-summaries", "agents")
    plan = plan_of(classes=tuple(TrafficClass(name, 1.0, "128") for name in names))
    view, file = live(plan)
    with view:
        view.cell_started(plan.cells[0], 0, 40)
        for index in range(10):
            view.row(row(index))
        view.gauges(SERVERS)
        view.cell_ended(plan.cells[0], 0)
    start, end = file.getvalue().splitlines()
    assert "1 req/s of 3 classes x 1,024" in start and "1 req/s of 3 classes x 1,024: 10 ok" in end
    assert max(len(start), len(end)) <= 80


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("plan", [plan_of(), plan_of(repeats=2), plan_of(rates=(), concurrencies=(128, 256))])
def test_on_a_terminal_the_line_of_a_finished_cell_breaks_no_word(plan, width):
    view, file = live(plan, force_terminal=True)
    view.console.width = width
    with view:
        view.cell_started(plan.cells[1], 0, 40)
        for index in range(1234):
            view.row(row(index, ttft_s=0.471))
        view.row(row(11, "timeout"))
        view.gauges(SERVERS)
        view.cell_ended(plan.cells[1], 0)
    shown = [line.strip() for line in re.split(r"(?:\x1b\[[0-9;?]*[A-Za-z]|[\r\n])+", file.getvalue())]
    at = next(i for i, line in enumerate(shown) if line.startswith("2/"))
    end = f"{shown[at]} {shown[at + 1]}".strip()
    assert all(len(line) <= width for line in shown)
    assert "1,234 ok, 1 not, TTFT p50 471 ms" in end


def test_what_waits_after_the_last_send_does_not_count():
    plan = plan_of()
    view, file = live(plan)
    with view:
        view.cell_started(plan.cells[1], 0, 40)
        view.gauges(SERVERS)
        view.cell_started_s -= 61
        view.gauges({("t", "decode-0"): {"role": "decode", "running": 5, "waiting": 30}})
        view.cell_ended(plan.cells[1], 0)
    assert "waiting <= 3\n" in file.getvalue()


def test_answers_that_do_not_come_are_said_once():
    """A decode that waits for KV which prefill has given up would else look like a sweep that hangs."""
    plan = plan_of(timeout_s=600.0)
    view, file = live(plan)
    with view:
        view.cell_started(plan.cells[1], 0, None)
        view.cell_started_s -= 60 + 29
        view.gauges(SERVERS)
        assert "no answer" not in file.getvalue()
        view.row(row(1))
        view.cell_started_s -= 31  # the last answer is no older for that
        view.gauges(SERVERS)
        assert "no answer" not in file.getvalue()
        view.seen.newest_s -= 31
        view.gauges(SERVERS)
        view.gauges(SERVERS)
        view.cell_ended(plan.cells[1], 0)
    said = file.getvalue()
    assert said.count("no answer for 30 s and some are due") == 1 and "600 s after it was sent (--timeout)" in said


def test_the_picture_says_where_it_stands():
    plan = plan_of(repeats=2)
    view, _ = live(plan)
    view.cell_started(plan.cells[1], 1, None)
    for index in range(60):
        view.row(row(index))
    for _ in range(100):
        view.gauges(SERVERS)
    lines = view.lines(view.cell_started_s + 15)
    text = "\n".join(lines)
    assert lines[0] == "cell 4 of 4: 4 req/s x 1,024 tokens, repeat 2 of 2"
    assert "[#####...............]  15 s of 60 s  about 0:45 left" in text
    assert "60 answered" in text and "50 ms median of the last 50" in text
    assert "running 5 of 8  waiting 3" in text and "\u2588" * 40 in text
    assert all(len(line) <= 80 for line in lines)


def test_nothing_is_made_up_before_the_first_answer():
    plan = plan_of(rates=(), concurrencies=(16,), duration_s=None, num_prompts=100)
    view, _ = live(plan)
    view.cell_started(plan.cells[0], 0, 100)
    text = "\n".join(view.lines(view.cell_started_s + 1))
    assert "16 streams, closed loop" in text and "none yet" in text and "end not known yet" in text
    assert "decode" not in text


def test_a_terminal_is_drawn_and_left_clean():
    plan = plan_of()
    view, file = live(plan, force_terminal=True)
    with view:
        view.cell_started(plan.cells[0], 0, 10)
        view.row(row(1))
        time.sleep(0.6)
        view.cell_ended(plan.cells[0], 0)
    text = file.getvalue()
    assert "cell 1 of 2" in text and "1 answered" in text
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text  # the cursor is back


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    plan = plan_of()
    view, file = live(plan, force_terminal=True)
    with view:
        view.cell_started(plan.cells[0], 0, 10)
    assert file.getvalue() == "cell 1 of 2: 1 req/s x 1,024 tokens, about 60 s\n"


@pytest.mark.parametrize("fails", [True, False])
def test_an_error_passes_through(fails):
    view, _ = live(plan_of(), force_terminal=True)
    if not fails:
        with view:
            pass
        return
    with pytest.raises(KeyError), view:
        raise KeyError


def test_drawing_and_rows_cost_next_to_nothing():
    plan = plan_of()
    view, _ = live(plan, force_terminal=True)
    view.cell_started(plan.cells[0], 0, None)
    for index in range(2000):
        view.row(row(index))
    for _ in range(40):
        view.gauges(SERVERS)
    began = time.thread_time()
    for _ in range(50):
        view.lines(time.monotonic())
    assert (time.thread_time() - began) / 50 < 0.005  # a fraction of a millisecond on an idle machine
