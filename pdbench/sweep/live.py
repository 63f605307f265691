"""What a person sees on stderr while a sweep runs.

On a terminal a few lines that renew themselves, elsewhere one line at each cell's start and end. The event loop only
appends to lists here; drawing is done by a thread of its own, at most DRAWS_A_SECOND times a second and only of what
changed, so that it holds the interpreter for about a millisecond at a time (tests/report_views/test_live.py).
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from pdbench.deployment import Deployment
from pdbench.run import RequestRow
from pdbench.sweep.plan import Cell, Plan

DRAWS_A_SECOND = 4
RECENT = 50  # requests of which the current medians are
HISTORY = 40  # gauges in the sparkline
BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.-=+*#@"
LABEL_WIDTH = 9
SILENT_S = 2.0  # without a scrape that worked: then a server is worth a word
STUCK_S = 30.0  # without an answer while some are due
LONGEST_LOAD = 30  # characters; more classes are counted, not named


class Seen:
    """What came back of the cell in hand. Written by the event loop, read by the drawing thread."""

    def __init__(self) -> None:
        self.ok = 0
        self.failed = 0
        self.ttft_ms: list[float] = []
        self.tpot_ms: list[float] = []
        self.waiting: deque[float] = deque(maxlen=HISTORY)
        self.waiting_max: float | None = None
        self.newest_s = 0.0
        self.stuck = False

    def row(self, row: RequestRow) -> None:
        self.newest_s = time.monotonic()
        if row.status != "ok":
            self.failed += 1
            return
        self.ok += 1
        if row.first_token_s is None:
            return
        self.ttft_ms.append((row.first_token_s - row.intended_s) * 1000)
        if row.last_token_s is not None and row.output_tokens is not None and row.output_tokens > 1:
            self.tpot_ms.append((row.last_token_s - row.first_token_s) * 1000 / (row.output_tokens - 1))


class Live:
    """The live view, as a context manager around the sweep."""

    def __init__(self, plan: Plan, deployments: Mapping[str, Deployment], console: Console | None = None) -> None:
        self.plan = plan
        self.deployments = deployments
        self.console = console or Console(stderr=True, highlight=False)
        self.turns = list(plan.turns())
        self.expected_s = [plan.lasts_s(cell) for cell, _ in self.turns]
        self.took_s: dict[int, float] = {}
        self.turn = -1
        self.planned: int | None = None
        self.started_s = self.cell_started_s = time.monotonic()
        self.seen = Seen()
        self.servers: Mapping[tuple[str, str], Mapping[str, Any]] = {}
        self.silent_since_s: dict[tuple[str, str], float] = {}  # by (target, server)
        self.called_silent: set[tuple[str, str]] = set()
        self.bars = BARS if (self.console.encoding or "").lower().startswith("utf") else PLAIN_BARS
        self._view: RichLive | None = None
        self._news = threading.Event()
        self._stop = threading.Event()
        self._pen = threading.Lock()  # rich lets a line land behind a picture that another thread is still writing
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Live:
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self._view = RichLive(
                Text(), console=self.console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._view.start()
            self._thread = threading.Thread(target=self._draw, name="pdbench-live", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(1.0)
        if self._view is not None:
            self._view.stop()

    def cell_started(self, cell: Cell, repeat: int, planned: int | None) -> None:
        """`planned` is how many requests the schedule holds, where that is known beforehand."""
        self.turn = self.turns.index((cell, repeat))
        self.planned = planned
        self.cell_started_s = time.monotonic()
        self.seen = Seen()
        self._news.set()
        if self._view is None:
            expected = self.expected_s[self.turn]
            about = f", about {expected:.0f} s" if expected else ""
            self._line(f"{self._where(cell, repeat)}{about}")

    def grown(self, plan: Plan) -> None:
        """The plan has more cells now, behind those that it had."""
        self.plan = plan
        self.turns = list(plan.turns())
        self.expected_s = [plan.lasts_s(cell) for cell, _ in self.turns]

    def row(self, row: RequestRow) -> None:
        self.seen.row(row)
        self._news.set()

    def gauges(self, servers: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """The newest gauges by (target, server), as the sampler keeps them."""
        self.servers = servers
        waiting = self._sum("waiting", "decode", "colocated")
        if waiting is not None:
            self.seen.waiting.append(waiting)
            # As in the report, the maximum is over the time of sending, where the plan says how long that is.
            if not (ends := self.expected_s[self.turn]) or time.monotonic() - self.cell_started_s <= ends:
                self.seen.waiting_max = max(waiting, self.seen.waiting_max or 0)
        self._say_who_is_silent(time.monotonic())
        self._say_if_stuck(time.monotonic())
        self._news.set()

    def _say_who_is_silent(self, now_s: float) -> None:
        """Once for each time that a server stops answering, and when it answers again."""
        for key, server in self.servers.items():
            if server.get("up", True):
                self.silent_since_s.pop(key, None)
                if key in self.called_silent:
                    self.called_silent.remove(key)
                    self._line(f"{self._server(key)} answers again")
            elif now_s - self.silent_since_s.setdefault(key, now_s) >= SILENT_S and key not in self.called_silent:
                self.called_silent.add(key)
                self._line(f"{self._silence(key, now_s)}: look at its log and process")

    def _silence(self, key: tuple[str, str], now_s: float) -> str:
        return f"{self._server(key)} has not answered for {now_s - self.silent_since_s[key]:.0f} s"

    def _server(self, key: tuple[str, str]) -> str:
        target, server = ("".join(c for c in text if c.isprintable()) for text in key)
        return f"{target}: {server}" if len(self.deployments) > 1 else server

    def _silent(self, now_s: float) -> list[str]:
        """Of the target in hand."""
        target = self.turns[self.turn][0].target
        return [self._silence(key, now_s) for key in sorted(self.called_silent) if key[0] == target]

    def _say_if_stuck(self, now_s: float) -> None:
        """Once a cell: nothing is sent any more, and the answers that are due do not come."""
        seen, ends = self.seen, self.expected_s[self.turn]
        if ends is None or seen.stuck or self.turn in self.took_s:
            return
        if now_s - max(seen.newest_s, self.cell_started_s + ends) > STUCK_S:
            seen.stuck = True
            given_up = f"each is given up {self.plan.timeout_s:g} s after it was sent (--timeout)"
            self._line(f"no answer for {STUCK_S:.0f} s and some are due: {given_up}; Ctrl-C keeps what is there")

    def cell_ended(self, cell: Cell, repeat: int, lost: Sequence[str] = ()) -> None:
        """Say what a cell came to, and in sentences what was `lost` of it."""
        self.took_s[self.turn] = time.monotonic() - self.cell_started_s
        seen = self.seen
        parts = [f"{seen.ok:,} ok" + (f", {seen.failed:,} not" if seen.failed else "")]
        parts += self._silent(time.monotonic())
        if seen.ttft_ms:
            parts.append(f"TTFT p50 {_ms(statistics.median(seen.ttft_ms))}")
        if seen.tpot_ms:
            parts.append(f"TPOT p50 {_ms(statistics.median(seen.tpot_ms))}")
        if seen.waiting_max is not None:
            drain = "" if self.expected_s[self.turn] else " (drain included)"
            parts.append(f"waiting <= {seen.waiting_max:,g}{drain}")
        again = f", repeat {repeat + 1}" if self.plan.repeats > 1 else ""
        name = cell_name(self.plan, cell, target=len(self.deployments) > 1).removesuffix(" tokens")
        place = f"probe {self.turn + 1}" if self.plan.search else f"{self.turn + 1}/{len(self.turns)}"
        self._line(f"{place}  {name}{again}: ", parts)
        for sentence in lost:
            self._line(f"{place}  {sentence}")

    def _line(self, head: str, parts: Sequence[str] = ()) -> None:
        """One line, which gives up its last parts where it does not fit; on a terminal it wraps between words."""
        narrow = self._view is not None
        kept = list(parts)
        while len(kept) > 2 and len(head + ", ".join(kept)) > self.console.width:
            kept.pop()
        with self._pen:
            self.console.print(Text(head + ", ".join(kept)), soft_wrap=not narrow)

    def _where(self, cell: Cell, repeat: int) -> str:
        name = cell_name(self.plan, cell, target=len(self.deployments) > 1)
        again = f", repeat {repeat + 1} of {self.plan.repeats}" if self.plan.repeats > 1 else ""
        if self.plan.search:  # nobody knows how many there will be
            return f"probe {self.turn + 1}{self._spent()}: {name}{again}"
        return f"cell {self.turn + 1} of {len(self.turns)}: {name}{again}"

    def _spent(self) -> str:
        """How much of the search's time its probes took; nothing where a run goes on, which did not see them all."""
        if not self.plan.search or len(self.took_s) < self.turn:
            return ""
        return f", {sum(self.took_s.values()):,.0f} of {float(self.plan.search['max_duration_s']):,.0f} s"

    def _sum(self, gauge: str, *roles: str) -> float | None:
        target = self.turns[self.turn][0].target if self.turn >= 0 else None
        of_role = [s for (t, _), s in self.servers.items() if t == target and s.get("role") in roles]
        known = [float(s[gauge]) for s in of_role if s.get(gauge) is not None]
        return sum(known) if known else None

    def _draw(self) -> None:
        while not self._stop.is_set():
            self._news.wait(1.0)
            self._news.clear()
            if self._view is not None and self.turn >= 0:
                width = self.console.width
                lines = [line[: width - 1] for line in self.lines(time.monotonic())]
                with self._pen:
                    self._view.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            self._stop.wait(1 / DRAWS_A_SECOND)

    def lines(self, now_s: float) -> list[str]:
        """The picture as plain lines. Where there is no number yet, there is a word."""
        cell, repeat = self.turns[self.turn]
        seen, elapsed = self.seen, now_s - self.cell_started_s
        expected = self.expected_s[self.turn]
        answered = f"{seen.ok:,} answered" + (f" of {self.planned:,}" if self.planned else "")
        lines = [self._where(cell, repeat)]
        sending = f" of {expected:.0f} s" if expected and elapsed <= expected else ", last answers" if expected else ""
        span = f"{elapsed:.0f} s{sending}"
        bar = _bar(elapsed / expected) + "  " if expected else ""
        left = self._left_s(elapsed)
        lines.append(_labelled("progress", f"{bar}{span}  {_left(left)}"))
        lines.append(_labelled("requests", answered + (f"  {seen.failed:,} not answered" if seen.failed else "")))
        lines += [_labelled("silent", said) for said in self._silent(now_s)]
        for name, values in (("TTFT", seen.ttft_ms), ("TPOT", seen.tpot_ms)):
            recent = values[-RECENT:]
            text = f"{_ms(statistics.median(recent)):>9} median of the last {len(recent)}" if recent else "none yet"
            lines.append(_labelled(name, text))
        for role in ("prefill", "decode", "colocated"):
            if line := self._role(role, cell.target):
                lines.append(_labelled(role, line))
        return lines

    def _role(self, role: str, target: str) -> str:
        running, waiting = self._sum("running", role), self._sum("waiting", role)
        if running is None and waiting is None:
            return ""
        deployment = self.deployments.get(target)
        slots = deployment.decode_slots if deployment is not None and role != "prefill" else None
        of = f" of {slots}" if slots else ""
        text = f"running {_count(running)}{of}  waiting {_count(waiting)}"
        return f"{text:26}" + ("" if role == "prefill" else _spark(self.seen.waiting, self.bars))

    def _left_s(self, elapsed: float) -> float | None:
        """Seconds to the end of the sweep; what cells took beyond their plan so far is expected of the rest."""
        if self.plan.search:
            return None
        done = [(took, self.expected_s[turn]) for turn, took in self.took_s.items()]
        rest = self.expected_s[self.turn :]
        if any(expected is None for expected in rest):
            mean = statistics.fmean(took for took, _ in done) if done else None
            return None if mean is None else max(mean * len(rest) - elapsed, 0)
        extra = statistics.fmean(took - (expected or took) for took, expected in done) if done else 0.0
        return max(sum(expected or 0 for expected in rest) + extra * len(rest) - elapsed, 0)


def cell_name(plan: Plan, cell: Cell, *, target: bool) -> str:
    """`8 req/s x 16,384 tokens`, or `32 streams, closed loop x ...`, or another load by its name."""
    load = (
        f"{cell.request_rate:g} req/s"
        if cell.request_rate is not None
        else f"{cell.max_concurrency} streams, closed loop"
    )
    driven = plan.traffic(cell) or load
    if len(plan.classes) > 1 and len(driven) > LONGEST_LOAD:
        names = " + ".join(each.name for each in plan.classes)
        driven = driven.replace(names, f"{len(plan.classes)} classes")
    name = f"{driven} x {cell.prompt_len:,} tokens"
    name, shown = ("".join(c for c in text if c.isprintable()) for text in (name, cell.target))
    return f"{shown}: {name}" if target else name


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _labelled(label: str, text: str) -> str:
    return f"  {label:{LABEL_WIDTH}} {text}"


def _bar(share: float, width: int = 20) -> str:
    full = round(min(max(share, 0), 1) * width)
    return f"[{'#' * full}{'.' * (width - full)}]"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "end not known yet"
    return f"about {int(seconds // 60)}:{int(seconds % 60):02d} left"


def _spark(values: deque[float], bars: str) -> str:
    """The last values as bars; the highest bar is the highest of them, and at least one."""
    kept = list(values)
    highest = max([1.0, *kept])
    return "".join(bars[min(int(value / highest * (len(bars) - 1) + 0.5), len(bars) - 1)] for value in kept)
