"""Workers that end in every way they can: what they told is kept, and nobody is left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from pdbench.errors import PdbenchError
from pdbench.probe.transfer.launch import Worker, ending, listen_to

TELL = "import json, os, signal, subprocess, sys, time\ndef tell(**e): print(json.dumps(e), flush=True)\n"
CELL, DONE = "tell(event='cell', found=1)\n", "tell(event='done')\n"
DIE = "os.kill(os.getpid(), signal.SIGSEGV)\n"


def worker(script: str, role: str = "decode") -> Worker:
    process = subprocess.Popen(
        [sys.executable, "-c", TELL + script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    return Worker(role, process)


def heard(*scripts: str, limit_s: float = 20.0) -> tuple[list[str], list[Any]]:
    """The notes and the cells of workers that run these scripts; the first is decode, the second prefill."""
    workers = [worker(script, role) for script, role in zip(scripts, ("decode", "prefill"), strict=False)]
    cells: list[Any] = []
    with ending(workers):
        notes = listen_to(workers, limit_s, lambda _, event: cells.append(event["found"]))
    assert all(each.process.returncode is not None for each in workers)
    return notes, cells


def test_a_good_end() -> None:
    assert heard(CELL + CELL + DONE, DONE) == ([], [1, 1])


def test_a_crash_at_exit_loses_nothing() -> None:
    (note,), cells = heard(CELL + DONE + DIE, DONE)
    assert cells == [1] and "crashed at exit (SIGSEGV) after it had told everything" in note


def test_many_events_at_once_are_all_heard() -> None:
    many = "print('\\n'.join([json.dumps({'event': 'cell', 'found': i, 'more': 'x' * 3000}) for i in range(500)]))\n"
    assert heard(many + DONE)[1] == list(range(500))


@pytest.mark.parametrize(
    ("scripts", "words", "code"),
    [
        ([CELL + DIE, "time.sleep(60)"], "the decode worker was ended by SIGSEGV", 4),
        (["sys.exit(7)"], "the decode worker ended with code 7", 4),
        (["os.kill(os.getpid(), signal.SIGKILL)"], "SIGKILL", 4),
        (["os.close(1); time.sleep(60)"], "closed its output and hangs", 4),
        (["time.sleep(60)"], "not over after 1 s", 4),
        (["tell(event='error', message='no room.', hint='less', exit_code=2)"], "no room", 2),
        (["tell(event='error', message='KeyError: x', hint='', exit_code=70)"], "the decode worker: KeyError", 70),
    ],
    ids=["crash", "exit", "killed", "deaf", "hangs", "says so", "a bug"],
)
def test_bad_ends_are_one_sentence(scripts: list[str], words: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdbench.probe.transfer.launch.GRACE_S", 1.0)
    with pytest.raises(PdbenchError) as raised:
        heard(*scripts, limit_s=1.0 if "1 s" in words else 20.0)
    assert words in str(raised.value) and raised.value.exit_code == code
    assert "\n" not in str(raised.value)


def test_who_died_explains_who_only_misses_the_other() -> None:
    misses = "time.sleep(0.3); tell(event='error', message='the prefill side is gone.', hint='', exit_code=4)\n"
    with pytest.raises(PdbenchError, match="the prefill worker was ended by SIGKILL"):
        heard(misses, "os.kill(os.getpid(), signal.SIGKILL)")
    reason = "tell(event='error', message='GPU 3 is not there.', hint='', exit_code=4)\n"
    with pytest.raises(PdbenchError, match="GPU 3 is not there"):
        heard(misses, reason)


def test_children_of_workers_end_too() -> None:
    """A worker that hangs, with a child of its own (ucx_perftest is one)."""
    script = "child = subprocess.Popen(['sleep', '60'])\ntell(event='cell', found=child.pid)\ntime.sleep(60)"
    hanging = worker(script)
    cells: list[int] = []
    with pytest.raises(PdbenchError), ending([hanging]):
        listen_to([hanging], 2.0, lambda _, event: cells.append(event["found"]))
    until = time.monotonic() + 5
    while psutil.pid_exists(cells[0]) and psutil.Process(cells[0]).status() != "zombie" and time.monotonic() < until:
        time.sleep(0.02)
    assert not psutil.pid_exists(cells[0]) or psutil.Process(cells[0]).status() == "zombie"
