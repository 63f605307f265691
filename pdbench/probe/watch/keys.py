"""Single keys from a terminal, without echo, while the view runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def pressed(on_key: Callable[[str], None]) -> Iterator[bool]:
    """Call `on_key` for each key; False where standard input is no terminal."""
    if not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def read() -> None:
        for key in os.read(fd, 64).decode("utf-8", "replace"):
            on_key(key)

    loop.add_reader(fd, read)
    try:
        yield True
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
