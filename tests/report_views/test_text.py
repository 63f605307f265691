"""The terminal views: they fit, never praise a void cell, and let no server write to the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from pdbench.report.text import print_summary
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


def test_wider_terminals_say_more():
    wide, narrow = shown(grid_summary(), 160), shown(grid_summary(), 80)
    assert "±4%" in wide and ">66.3 needs 299" in wide and "tokens/s" in wide
    assert " >66.3 " in narrow and "p99 takes 299" in narrow and "TTFT p50: ±4%" in narrow


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
