"""Where frames go: a terminal that renews itself and takes keys, or lines for a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from types import TracebackType

from rich.console import Console
from rich.live import Live

from pdbench.probe.watch.frame import Frame
from pdbench.probe.watch.keys import pressed
from pdbench.probe.watch.view import ORDER, picture, print_frame


class Lines:
    """One frame after another: JSON lines, or the picture as text."""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, frame: Frame, *, as_json: bool) -> None:
        if as_json:
            sys.stdout.write(json.dumps(frame.document(), allow_nan=False) + "\n")
        else:
            print_frame(Console(highlight=False, markup=False, emoji=False, width=80), frame)
            sys.stdout.write("\n")
        sys.stdout.flush()


class Screen:
    """The whole terminal, as long as it is watched."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._stack = contextlib.ExitStack()
        self._sort, self._paused = ORDER[0], False
        self._frame: Frame | None = None
        self._keys = False

    def __enter__(self) -> Screen:
        self._keys = self._stack.enter_context(pressed(self._on_key))
        self._stack.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def show(self, frame: Frame, *, as_json: bool) -> None:
        if not self._paused:
            self._frame = frame
            self._draw()

    def _on_key(self, key: str) -> None:
        if key == "q":
            self._stop.set()
        elif key == "p":
            self._paused = not self._paused
        elif key == "s":
            self._sort = ORDER[(ORDER.index(self._sort) + 1) % len(ORDER)]
        self._draw()

    def _draw(self) -> None:
        if self._frame is not None:
            height = self._console.size.height
            view = picture(self._frame, self._sort, paused=self._paused, height=height, keys=self._keys)
            self._live.update(view, refresh=True)
