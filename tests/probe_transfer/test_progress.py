"""What is said while transfers are measured, on a terminal and into a file."""

from __future__ import annotations

import io

import pytest

from pdbench.probe.transfer.progress import Progress

FOUND = {"op": "READ", "ids": "scattered", "nbytes": 524_288_000}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, measured: int, planned: int = 6, passes: int = 2) -> str:
    progress = Progress(stream, passes)
    progress.begin(planned)
    for _ in range(measured):
        progress.measured(FOUND)
    progress.end()
    return stream.getvalue()


def test_a_file_gets_a_line_a_pass() -> None:
    lines = told(io.StringIO(), 6).splitlines()
    assert lines == ["6 measurements: 3 shapes in 2 passes", "3 of 6 measured, about 0 s left", "6 of 6 measured"]


@pytest.mark.parametrize("measured", [2, 6])
def test_a_terminal_gets_one_line_that_ends_however_far_it_came(measured: int) -> None:
    text = told(Terminal(), measured)
    assert text.endswith("\n") and text.count("\n") == 2
    last = text.splitlines()[-1].rpartition("\x1b[K")[2]
    assert last.startswith(f"{measured} of 6 measured") and last.endswith("(last: pull scattered 524 MB)")
    assert all(len(line) < 80 for line in text.replace("\r", "\n").splitlines())
