"""What can go wrong, what the process then exits with, and what the reader can do next.

    PdbenchError            70  our own bug, when raised as itself
    +-- GateFailed           1  a gate did not hold: SLO, regression, doctor
    +-- UsageError           2  a bad flag or file, a run directory that exists, model not served, credentials refused
    +-- InvalidRun           3  no cell is valid, all requests failed: what was measured means nothing
    +-- Unreachable          4  a server, a peer or a required library cannot be reached
    +-- StorageError        74  the disk is full or cannot be written
    +-- Interrupted        130  Ctrl-C, after saving

A message is one sentence with the cause; the hint is the next thing to do.
"""

from __future__ import annotations

import os

CRASH_EXIT_CODE = 70


class PdbenchError(Exception):
    """An error that a reader sees as one sentence (`str(error)`) and a hint, never as a traceback."""

    exit_code = CRASH_EXIT_CODE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class GateFailed(PdbenchError):
    exit_code = 1


class UsageError(PdbenchError):
    exit_code = 2


class InvalidRun(PdbenchError):
    exit_code = 3


class Unreachable(PdbenchError):
    exit_code = 4


class StorageError(PdbenchError):
    exit_code = 74


class Interrupted(PdbenchError):
    exit_code = 130


def end_at_once(*_: object) -> None:
    """Of a Ctrl-C (a signal handler too) before anything was begun that would have to be saved."""
    os.write(2, b"pdbench: interrupted.\n")
    os._exit(Interrupted.exit_code)
