"""The terminal views: they fit, never praise a void cell, and let no server write to the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from pdbench.report.columns import NUMBERS
from pdbench.report.text import print_summary
from pdbench.report.verdict import cell_verdict, run_verdict
from tests.report_views.made_run import bare_summary, cell_summary, grid_summary

HOSTILE = "\x1b[2J\x1b]0;title\x07evil\x1b[31m\r\n\u202e\x9b5n name"
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def shown(summary: dict, width: int = 80, **console: object) -> str:
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=width, **console))
    return file.getvalue()


def lines_of(summary: dict, width: int = 80) -> list[str]:
    return shown(summary, width).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 240])
@pytest.mark.parametrize("targets", [("testbed",), ("a-long-name-of-a-target", "b")])
def test_no_line_is_longer_than_the_terminal(width, targets):
    summary = grid_summary(rates=(0.25, 8, 1000), lens=(8, 131072), targets=targets)
    summary["cells"][0] |= {"waiting_mean": 1234.5, "waiting_max": 99999, "mean_ttft_ms": 1234567.8}
    too_long = [line for line in lines_of(summary, width) if len(line) > width]
    assert not too_long


def test_at_80_columns_the_main_numbers_are_there():
    text = shown(grid_summary())
    head = [line for line in text.splitlines() if "asked" in line and "tokens" in line]
    assert head
    for number in ("1,681", "1,631", "3,195", "10.5", "10.8/8", "9.1/31", "16,384"):
        assert number in text, number


def test_where_nothing_is_valid_the_terminal_says_what_voids_it_once():
    void = {"code": "kv-expired", "severity": "void", "evidence": "3 requests lost their KV. Raise the lease."}
    bad = [cell_summary(i, rate, 1024, validity=[void]) for i, rate in enumerate((2, 4))]
    of_bad = {**grid_summary(), "cells": bad, "verdict": "No cell is valid; 2 req/s: void."}
    text = " ".join(shown(of_bad).split())
    assert "kv-expired (every cell, such as 2 req/s x 1,024 tokens): 3 requests lost their KV" in text
    assert "kv-expired (" not in shown({**of_bad, "verdict": "No cell is valid; 3 requests lost their KV."})
    assert "kv-expired (" not in shown({**of_bad, "cells": [*bad, cell_summary(2, 1, 1024, validity=[])]})


CHANCE, GAP, EDGE = "are due on average", "equal gaps begin with a gap", "outside of the window of got"


@pytest.mark.parametrize(
    ("sent", "answered", "got", "arrivals", "explained"),
    [
        (12, 12, 1.2, "poisson", [CHANCE]),  # a third fewer came, and were answered as they came
        (28, 28, 2.8, "poisson", [CHANCE]),
        (19, 19, 1.9, "poisson", [CHANCE]),
        (97, 97, 9.7, "poisson", []),  # a trifle
        (8, 8, 0.7, "poisson", [CHANCE, EDGE]),
        (20, 20, 1.8, "poisson", [EDGE]),
        (20, 20, 1.2, "poisson", []),  # all came, and the servers fell behind
        (12, 12, 0.7, "poisson", []),  # both: the servers are what matters
        (12, 11, 1.1, "poisson", []),
        (19, 19, 1.9, "constant", [GAP]),
        (12, 12, 1.2, "constant", []),  # neither chance nor a gap
        (20, 20, 2.0, "poisson", []),
    ],
)
def test_a_rate_that_the_servers_did_not_make_is_told(sent, answered, got, arrivals, explained):
    asked = 10 if sent > 50 else 2
    changes = {"sent": sent, "completed": answered, "duration_s": 10.0, "request_throughput": got, "validity": []}
    summary = {**grid_summary(), "cells": [cell_summary(0, asked, 1024, **changes)]}
    summary["plan"] = {**summary["plan"], "arrivals": arrivals}
    said = " ".join(shown(summary).split())
    told = f"got is not what was asked in {asked} req/s x 1,024 tokens, yet all {sent} that were sent were answered"
    assert [why for why in (CHANCE, GAP, EDGE) if why in said] == explained
    assert (told in said) == bool(explained)
    summary["plan"]["num_prompts"] = sent  # then it is the time that chance makes, not the number
    by_time = f"so many take {sent / asked:.0f} s on average and took 10 by chance"
    said = " ".join(shown(summary).split())
    assert CHANCE not in said and (by_time in said) == (CHANCE in explained)
    void = {"code": "not-steady-state", "severity": "void", "evidence": "TTFT grows 40 ms per request"}
    summary["cells"][0]["validity"] = [void]
    assert "yet all" not in shown(summary)


def test_a_request_without_a_whole_answer_is_counted_once():
    (answers,) = (column for column in NUMBERS if column.head == ("answers", "ok/not"))
    found = {"completed": 1300, "failed": 17, "truncated": 2, "timed_out": 1, "rejected": 3}
    assert answers.forms[0](found) == "1,300/20"


def test_wider_terminals_say_more():
    wide, narrow = shown(grid_summary(), 160), shown(grid_summary(), 80)
    assert "±4%" in wide and ">66.3 needs 299" in wide and "tokens/s" in wide
    assert " >66.3 " in narrow and "p99 takes 299" in narrow and "TTFT p50: reach of its 95% interval: ±4%" in narrow


def test_a_void_cell_says_so_first_and_after_its_numbers():
    lines = lines_of(grid_summary())
    assert "void" in lines[1].lower()
    rows = [i for i, line in enumerate(lines) if "1,681" in line]
    assert rows
    assert all(lines[i].startswith("VOID") for i in rows)
    assert "void: not-steady-state" in lines[rows[0] + 1]


def test_a_void_row_is_dimmed_on_a_terminal():
    row = next(line for line in shown(grid_summary(), force_terminal=True).splitlines() if "1,681" in line)
    assert "\x1b[2m" in row
    assert "\x1b[1;31mVOID" in row


def test_no_color_leaves_every_word(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(grid_summary(), force_terminal=True)
    codes = {int(code) for found in ESCAPES.findall(text) for code in found[2:-1].split(";") if code}
    assert not codes & {*range(30, 38), *range(90, 98)}
    assert ESCAPES.sub("", text) == shown(grid_summary())


def test_simulated_and_closed_loop_are_said():
    summary = grid_summary()
    assert shown(summary).startswith("SIMULATED")
    for cell in summary["cells"]:
        cell |= {"loop": "closed", "max_concurrency": 16, "request_rate": None}
    text = shown(summary)
    assert "Closed loop" in text and "16 streams, closed loop x" in text
    assert not shown({**summary, "simulated": False}).startswith("SIMULATED")


def test_the_least_summary_is_shown_without_a_made_up_number():
    text = shown(bare_summary())
    assert "not measured" in text
    assert "nothing was measured" in text
    assert " 0 " not in text and "nan" not in text.lower() and "None" not in text
    assert "No cell was measured." in shown({"schema": 1, "simulated": False, "cells": []})


@pytest.mark.parametrize("key", sorted(cell_summary(0, 8, 16384)))
def test_any_key_of_a_cell_may_be_absent(key):
    cell = cell_summary(0, 8, 16384)
    del cell[key]
    assert shown({"schema": 1, "simulated": False, "cells": [cell]})


def test_what_a_server_said_cannot_reach_the_terminal():
    summary = grid_summary(targets=(HOSTILE, "b"))
    summary["verdict"] = HOSTILE
    for cell in summary["cells"]:
        cell["verdict"] = HOSTILE
        cell["validity"] = [{"code": HOSTILE, "severity": "void", "evidence": HOSTILE}]
        cell["diagnosis"] = [{"cause": HOSTILE, "share": 0.5, "evidence": [HOSTILE], "advice": HOSTILE}]
    text = shown(summary)
    assert "evil" in text
    assert not set(text) & set("\x1b\x07\r\x9b\u202e")


def test_markup_of_the_terminal_library_is_text():
    summary = {**grid_summary(), "verdict": "[bold]x[/bold] [link=http://e]y[/link]"}
    assert "[bold]x[/bold] [link=http://e]y[/link]" in shown(summary)


def test_a_warning_of_every_cell_is_said_once():
    summary = grid_summary()
    flag = {"code": "metrics-missing", "severity": "warn", "evidence": "kv_fetch_stage"}
    for cell in summary["cells"]:
        cell["validity"] = [*cell["validity"], flag]
    text = shown(summary)
    assert text.count("metrics-missing") == 1
    assert "every cell" in text


def test_a_terminal_without_unicode_gets_letters():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="")
    print_summary({**grid_summary(), "verdict": "x \u2192 y"}, Console(file=file, width=160))
    file.flush()
    assert b"+-4%" in raw.getvalue()


def test_the_verdict_is_the_last_block_and_said_once():
    summary = grid_summary()
    lines = lines_of(summary)
    last = max(i for i, line in enumerate(lines) if not line)
    said = " ".join(lines[last + 1 :])
    assert said == f"SIMULATED. {summary['verdict']}"
    assert " ".join(lines).count(summary["verdict"]) == 1


def test_with_several_targets_each_name_has_its_target():
    summary = grid_summary(rates=(8,), lens=(1024, 16384), targets=("pull", "push"))
    flag = {"code": "metrics-missing", "severity": "warn", "evidence": "kv_fetch_stage"}
    for cell in summary["cells"]:
        cell["validity"] = [*cell["validity"], flag]
        cell["notes"] = ["A remark."]
    for width in (60, 80, 160):
        text = shown(summary, width)
        named = [line for line in text.splitlines() if "req/s x" in line]
        assert named and all("pull: 8" in line or "push: 8" in line for line in named)
        rows = [line for line in text.splitlines() if line[:4].strip() in ("VOID", "warn") and "req/s" not in line]
        assert all(re.match("(VOID|warn) +(pull|push|[a-z-]+ [(])", line) for line in rows)
    summary["targets"] = ["a-long-name-of-a-target-1", "a-long-name-of-a-target-2"]
    for cell in summary["cells"]:
        cell["target"] = summary["targets"][cell["cell"] % 2]
    assert "t2: a-long-name-of-a-target-2" in shown(summary)


def saturated(**changes: object) -> dict:
    """One cell that the client spoilt, as the report judges it."""
    found = "sends were up to 88 ms late (p99; limit 20 ms)."
    text = f"{found} Run pdbench on a host of its own, or lower the rate."
    cell = cell_summary(0, 4, 16384, validity=[{"code": "client-saturated", "severity": "void", "evidence": text}])
    cause = {"cause": "client", "share": 0.002, "evidence": text, "advice": "Move pdbench to a host of its own."}
    cell |= {"diagnosis": [cause], **changes}
    cell["verdict"] = cell_verdict(cell)
    return cell


@pytest.mark.parametrize("simulated", [True, False])
def test_a_client_that_was_too_slow_is_said_once_without_a_share(simulated):
    cells = [saturated(), saturated(cell=1, request_rate=8.0)]
    verdict = run_verdict(cells, simulated)
    text = " ".join(shown({**grid_summary(), "simulated": simulated, "cells": cells, "verdict": verdict}).split())
    assert text.count("88 ms late") == 1  # of both cells the same
    assert "0% of TTFT" not in text
    assert ("This machine was busy: close what else runs" in text) == simulated
    assert ("host of its own" in text) != simulated


@pytest.mark.parametrize("headline", ["decode-slots", "another cell"])
@pytest.mark.parametrize("growth", [42.0, None])
def test_the_arrow_stands_at_the_first_change_of_the_main_cause(headline, growth):
    main = {"cause": "decode-slots", "share": 0.82, "evidence": "running was 8 of 8.", "advice": "Raise slots. Look."}
    small = {"cause": "engine-loop-blocking", "share": 0.08, "evidence": "8% was lost.", "advice": "Move posting off."}
    flag = {"code": "not-steady-state", "severity": "void", "evidence": "TTFT grows. Lower the rate."}
    cell = cell_summary(0, 8, 16384, validity=[flag], diagnosis=[main, small], ttft_growth_ms_per_request=growth)
    cell["verdict"] = cell_verdict(cell)
    verdict = run_verdict([cell], False) if headline == "decode-slots" else "1 of 9 cells is valid; another one."
    lines = lines_of({**grid_summary(), "cells": [cell], "verdict": verdict}, 200)
    arrows = [place for place, line in enumerate(lines) if "-> " in line]
    assert [lines[place].strip() for place in arrows] == ["-> Raise slots. Look."]
    assert "decode-slots (82% of TTFT)" in lines[arrows[0] - 1]
    assert "then: Move posting off." in " ".join(lines)
    assert " ".join(lines).count("Raise slots") == (2 if growth and headline == "decode-slots" else 1)


def test_too_few_requests_alone_is_no_warning():
    few = {"code": "too-few-requests", "severity": "warn", "evidence": "28 requests"}
    summary = grid_summary(rates=(1,))
    for cell in summary["cells"]:
        cell["validity"] = [few]
    text = shown(summary)
    assert "warn" not in text and "few   too-few-requests" in text and "few: valid, with too few" in text
    summary["cells"][0]["validity"] = [few, {"code": "stall", "severity": "warn", "evidence": "x"}]
    assert "warn" in shown(summary)


def test_requests_that_are_lacking_are_told_of_the_cell_that_lacks_most():
    """And not of void ones, to which more requests do not help."""
    summary = grid_summary(rates=(1, 2, 4))
    summary["cells"] = [cell_summary(at, rate, 1024) for at, rate in enumerate((1, 2, 4))]
    for cell, takes in zip(summary["cells"], (400, 900, 2000), strict=True):
        cell["needs"] = {"p99_ttft_ms": takes}
        cell["validity"] = [{"code": "too-few-requests", "severity": "warn", "evidence": f"takes {takes}"}]
    summary["cells"][2]["validity"].append({"code": "stall", "severity": "void", "evidence": "3 s"})
    assert "too-few-requests (2 cells, most of all 2 req/s x 1,024 tokens): takes 900" in " ".join(
        shown(summary).split()
    )


def test_the_legend_names_slos_and_slots_that_are_not_known():
    summary = grid_summary(rates=(1,))
    for cell in summary["cells"]:
        del cell["slots"]["available"]
    text = shown(summary, 100)
    assert "good: TTFT <= 2,000 ms and TPOT <= 30 ms" in text
    assert "/?" in text and "?: slots not known: pdbench slots --from-run RUN --max-num-seqs N" in " ".join(
        text.split()
    )


def test_an_interrupted_run_says_how_far_it_came():
    summary = grid_summary(rates=(1, 2), lens=(1024,))
    last = summary["cells"][1]
    last |= {"state": "interrupted", "completed": 6, "sent": 11}
    last["verdict"] = cell_verdict(last)
    plan = {"repeats": 2, "cells": [{"cell": i, "target": "testbed"} for i in range(4)]}
    summary |= {"interrupted": True, "plan": plan}
    judged = run_verdict(summary["cells"], True, plan, True)
    assert judged.startswith("SIMULATED. Interrupted after 1 of 8 cells. The cell is valid; 1 req/s fits")
    for verdict in (judged, "All fits."):  # a summary from before says it all the same
        text = " ".join(shown({**summary, "verdict": verdict}).split())
        assert text.count("Interrupted after 1 of 8 cells.") == 1
        assert "cut 2 req/s x 1,024 tokens: cut short: 6 of 11 answered." in text
    assert run_verdict([last], False, plan, True).startswith(
        "Interrupted after 0 of 8 cells. No cell is valid; 2 req/s"
    )
    none = cell_summary(0, 2, 1024, completed=0, cancelled=4)
    assert cell_verdict(none) == "2 req/s x 1,024 tokens: cut short before any answer."


@pytest.mark.parametrize("valid", [0, 1, 2])
def test_one_cell_is_and_two_are(valid):
    cells = [saturated(cell=i) if i >= valid else cell_summary(i, 1, 1024) for i in range(3)]
    begin = {0: "No cell is valid; ", 1: "1 of 3 cells is valid; ", 2: "2 of 3 cells are valid; "}[valid]
    verdict = run_verdict(cells, False)
    assert verdict.startswith(begin + "4 req/s x 16,384 tokens: void (client-saturated): ")
    assert verdict.count(". ") == 1


def overloaded(cell: int) -> dict:
    full = cell_summary(cell, 12, 16384, ttft_growth_ms_per_request=40.0)
    full["verdict"] = cell_verdict(full)
    return full


def test_a_busy_client_in_a_few_cells_does_not_hide_what_the_servers_lack():
    """It comes second; where it spoilt most cells, first."""
    fine = [cell_summary(i, 1, 1024) for i in range(3)]
    verdict = run_verdict([saturated(cell=7, request_rate=2.0), overloaded(8), *fine], True)
    assert verdict.startswith("SIMULATED. 3 of 5 cells are valid; 12 req/s x 16,384 tokens: not steady state")
    assert verdict.endswith(
        "1 cell is void for a busy client (client-saturated). This machine was busy: close what else runs, then repeat."
    )
    most = run_verdict([saturated(cell=i) for i in range(3)] + [overloaded(8)], True)
    assert most.startswith("SIMULATED. No cell is valid; 4 req/s x 16,384 tokens: void (client-saturated)")
    slots = {"cause": "decode-slots", "share": 0.9, "evidence": "running was 8 of 8.", "advice": "Raise slots."}
    valid = cell_summary(6, 4, 1024, diagnosis=[slots])
    valid["verdict"] = cell_verdict(valid)
    assert "cells are valid; 4 req/s x 1,024 tokens: mean TTFT" in run_verdict([saturated(cell=7), valid, *fine], True)


def test_a_row_says_the_cause_where_the_verdict_has_its_sentence():
    """A mark is a word on the measurement alone."""
    parts = {"cause": "engine-loop-blocking", "share": 0.62, "made_of": "slot wait 270 ms + post 61 ms"}
    cell = cell_summary(0, 1, 1024, diagnosis=[{**parts, "evidence": "x.", "advice": "Move posting."}])
    cell["verdict"] = cell_verdict(cell)
    assert "engine-loop-blocking (62% of TTFT: slot wait 270 ms + post 61 ms): Move posting." in cell["verdict"]
    summary = {**grid_summary(), "cells": [cell], "verdict": run_verdict([cell], False)}
    lines = lines_of(summary, 100)
    assert "valid 1 req/s x 1,024 tokens: engine-loop-blocking (62% of TTFT): see the verdict below" in lines
    assert not any(line.lower().startswith("ok") for line in lines)


def test_with_several_targets_the_verdict_of_the_run_names_the_target():
    cells = [cell_summary(0, 1, 1024, "pull"), saturated(cell=1, target="push")]
    assert "; push: 4 req/s x 16,384 tokens: void" in run_verdict(cells, False)


def test_the_legend_says_what_stands_where_requests_are_lacking():
    """A bound, or how many it takes where there is none; how many cells lack them; and no interval of nothing."""
    summary = grid_summary(rates=(2, 4))
    for cell in summary["cells"]:
        middle = cell["median_ttft_ms"]
        cell["ttft_ms_interval"]["p50"] = [middle * 0.999, middle * 1.001]
    assert "TTFT p50: reach of its 95% interval: ±<1%" in " ".join(shown(summary, 80).split())
    assert "n<" not in shown(summary, 80)
    lacking = summary["cells"][0]
    del lacking["ttft_ms_interval"]["p50"]
    lacking["needs"] = {"median_ttft_ms": 516}
    text = " ".join(shown(summary, 80).split())
    assert "n<516" in text and "n<N that it takes N" in text
    assert "TTFT p50: reach of its 95% interval: ±<1%, too few requests for it in 1 of 4 sound cells" in text
    for cell in summary["cells"]:
        cell["validity"] = [{"code": "stall", "severity": "void", "evidence": "3 s"}]
    assert "reach of its" not in shown(summary, 80)
