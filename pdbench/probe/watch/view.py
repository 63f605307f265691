"""The picture on a terminal, good at 80 columns and over ssh."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pdbench.deployment import ROLES
from pdbench.probe.watch.frame import Frame
from pdbench.probe.watch.reading import PARTS, Reading
from pdbench.probe.watch.sampled import in_words
from pdbench.probe.watch.totals import STAGES, Watched

SORTS: dict[str, Callable[[Watched], object]] = {
    "name": lambda one: (ROLES.index(one.role), len(one.name), one.name),  # decode-9 before decode-10
    "waiting": lambda one: -one.now.get("waiting", 0.0),
    "running": lambda one: -one.now.get("running", 0.0),
    "KV": lambda one: -one.now.get("kv_cache_usage", 0.0),
}
ORDER = tuple(SORTS)
OTHER_LINES = 13  # of the picture, besides the table of servers
FULL = 0.95


def picture(frame: Frame, sort: str, *, paused: bool, height: int | None, keys: bool) -> RenderableType:
    """The frame as rich draws it; `height` in lines cuts the list of servers and long flags, never the verdict."""
    parts: list[RenderableType] = [_title(frame, sort, paused), Text(frame.verdict, style="bold")]
    whole = height is None
    parts += [
        Text(f"{code}: {evidence}", style="red", no_wrap=not whole, overflow="fold" if whole else "ellipsis")
        for code, evidence in frame.now.flags.items()
    ]
    stores = _stores(frame.now)
    room = None if height is None else max(2, height - OTHER_LINES - len(frame.now.flags) - len(stores))
    parts += [_servers(frame.servers, sort, room), _flow(frame), *stores, _split(frame)]
    if keys:
        parts.append(Text("q quit   p pause   s sort", style="dim"))
    return Group(*parts)


def _title(frame: Frame, sort: str, paused: bool) -> Text:
    deployment = frame.deployment
    up = sum(server.up for server in frame.servers)
    words = [deployment.engine or "engine unknown", deployment.mode or "", deployment.model or ""]
    text = Text(f"{' '.join(word for word in words if word)[:50]}  {up}/{len(frame.servers)} up  sorted by {sort}")
    if deployment.simulated:
        text.append("  SIMULATED", style="bold magenta")
    if paused:
        text.append("  PAUSED", style="reverse")
    return text


def _servers(servers: Sequence[Watched], sort: str, room: int | None) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("last look")
    for head in ("running/slots", "waiting", "start", "moving", "loaded", "KV"):
        table.add_column(head, justify="right")
    # Who does not answer is first, unless the busiest are asked for.
    ordered = sorted(servers, key=lambda one: (one.up == (sort == ORDER[0]), SORTS[sort](one)))
    shown = ordered if room is None or len(ordered) <= room else ordered[: room - 1]
    for one in shown:
        table.add_row(*_row(one))
    left = len(ordered) - len(shown)
    return Group(table, Text(f"... and {left} more", style="dim")) if left else table


def _row(one: Watched) -> list[RenderableType]:
    if not one.up:
        return [Text(one.name, style="red"), Text(one.trouble[:24], style="red")]
    now = one.now
    running = now.get("running", now.get("inflight"))
    full = running is not None and one.slots is not None and running >= FULL * one.slots
    slots = "?" if one.slots is None else f"{one.slots:,}"
    usage = now.get("kv_cache_usage")
    cells: list[RenderableType] = [
        one.name,
        Text(f"{_count(running)}/{slots}", style="yellow" if full else ""),
        Text(_count(now.get("waiting")), style="yellow" if now.get("waiting") else ""),
    ]
    cells += [_count(now.get(f"stage.{stage}")) for stage in STAGES]
    style = "yellow" if usage is not None and usage > FULL else ""
    return [*cells, Text("-" if usage is None else f"{usage:.0%}", style=style)]


def _flow(frame: Frame) -> Table:
    """Throughput and handoffs of both windows, one below the other, with what the load needs."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("")
    heads = ("req/s", "in tok/s", "out tok/s", "TPOT", "moves/s", "MB/s", "expired", "slots need/have")
    for head in heads:
        table.add_column(head, justify="right")
    for reading in _windows(frame):
        have = "?" if reading.slots_available is None else f"{reading.slots_available:,}"
        nbytes = reading.transfer_nbytes_per_s
        table.add_row(
            reading.words,
            _figure(reading.requests_per_s),
            _figure(reading.prompt_tokens_per_s),
            _figure(reading.output_tokens_per_s),
            _figure(reading.tpot_ms),
            _figure(reading.transfers_per_s),
            _figure(None if nbytes is None else nbytes / 1e6),
            _count(reading.expired),
            f"{_needed(reading)}/{have}",
        )
    return table


def _needed(reading: Reading) -> str:
    return reading.needed_words if reading.slots_short else _figure(reading.slots_needed)


def _stores(now: Reading) -> list[Text]:
    """What moves KV beside handoffs, a line each; nothing where no server shows any."""
    lines = []
    for way, moved in now.stores.items():
        operations, nbytes = moved.get("operations_per_s"), moved.get("nbytes_per_s")
        shown = [] if operations is None else [f"{_figure(operations)}/s"]
        shown += [] if nbytes is None else [f"{_figure(nbytes / 1e6)} MB/s"]
        lines.append(Text(f"no handoff: {way} {', '.join(shown)}", no_wrap=True, overflow="ellipsis"))
    return lines


def _split(frame: Frame) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("TTFT, ms")
    for part in PARTS:
        table.add_column(part.replace("_", " "), justify="right")
    for reading in _windows(frame):
        table.add_row(reading.words, *(_part(reading, part) for part in PARTS))
    return table


def _part(reading: Reading, part: str) -> str:
    """What is sampled is printed to the digit that the looks make sure."""
    value, between = reading.parts_ms.get(part), reading.parts_between_ms.get(part)
    return _figure(value) if value is None or between is None else in_words(value, between)


def _windows(frame: Frame) -> list[Reading]:
    """The short window and the long one, or one of them where they are still the same."""
    return [frame.now] if frame.now.words == frame.long.words else [frame.now, frame.long]


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _figure(value: float | None) -> str:
    """Three digits, or whole numbers above that."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"


def print_frame(console: Console, frame: Frame, sort: str = ORDER[0]) -> None:
    console.print(picture(frame, sort, paused=False, height=None, keys=False))
