"""The plan: which cells are measured, in which order, with which seeds. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pdbench.sweep.classes import TrafficClass
from pdbench.sweep.lengths import Law, the_trace
from pdbench.sweep.stages import Stage

DEFAULT_DURATION_S = 60.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid. Open loop has a rate, closed loop a concurrency; the other one is `None`.

    Where a cell's requests differ (a ramp, classes, a trace, a law of lengths), rate and lengths are their means.
    """

    cell: int
    target: str
    request_rate: float | None
    max_concurrency: int | None  # streams, or sessions
    prompt_len: int
    output_len: int
    output_law: str = ""  # of answers that differ: lognormal:MEAN:CV or trace:FILE
    speed: float | None = None  # of a trace: its clock runs so many times as fast
    drive: str = "proxy"  # or two-hop: to prefill and to decode by ourselves
    requests: int | None = None  # of a probe of a search: so many, whatever the plan says

    @property
    def loop(self) -> str:
        return "open" if self.request_rate is not None else "closed"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides what is sent. The first limit reached (`num_prompts`, `duration_s`) ends a cell's sends."""

    cells: tuple[Cell, ...]
    repeats: int = 1
    arrivals: str = "poisson"  # poisson, gamma, constant
    burstiness: float = 1.0  # gamma shape of the gaps, as in vLLM: 1 is Poisson, below 1 is burstier
    num_prompts: int | None = None
    duration_s: float | None = DEFAULT_DURATION_S
    seed: int = 0  # of arrivals, and of prompts when prompt_seed is None
    prompt_seed: int | None = None  # drawn for each run unless the seed was asked for: caches must not know the prompts
    endpoint: str = "completions"  # completions (token ids), chat (text)
    vocab_size: int = 4000  # ids are drawn from 256 to vocab_size - 1
    ignore_eos: bool = True
    timeout_s: float = 600.0
    goodput_ms: Mapping[str, float] = field(default_factory=dict)  # ttft, tpot, itl, e2el -> limit
    sample_interval_s: float = 0.5
    stages: tuple[Stage, ...] = ()  # a ramp or steps instead of one rate
    classes: tuple[TrafficClass, ...] = ()
    prefix_len: int = 0  # tokens that a prompt shares with others of its class
    num_prefixes: int = 1
    trace: str | None = None  # file whose requests are replayed
    session_turns: int | None = None  # sessions of so many turns, `max_concurrency` of them at a time
    think_s: float = 0.0  # mean pause of a session before each turn
    max_model_len: int | None = None  # what a trace or a law asks beyond it is cut
    notes: tuple[str, ...] = ()  # what a reader of the figures must know of it
    pass_token_ids: bool = True  # in two-hop chat decode gets prefill's token ids, and does not tokenise again
    digests: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each trace that was read
    connections: str = "fresh"  # fresh: one a request; pool: kept and used again
    search: Mapping[str, Any] | None = None  # what the cells are probes for: find, slos, max_duration_s

    def turns(self) -> Iterator[tuple[Cell, int]]:
        """(cell, repeat) in the order of measurement: the grid, then again with the targets the other way round."""
        for repeat in range(self.repeats):
            groups: dict[tuple[Any, ...], list[Cell]] = {}
            for cell in self.cells:
                groups.setdefault(_place(cell), []).append(cell)
            for group in groups.values():
                for cell in group if repeat % 2 == 0 else reversed(group):
                    yield cell, repeat

    def of(self, cell: Cell) -> Plan:
        """The plan as it holds for this cell: a probe of a search has its own length."""
        return self if cell.requests is None else replace(self, num_prompts=cell.requests, duration_s=None)

    def with_probe(self, like: tuple[str, int, int, str, str], rate: float, requests: int) -> Plan:
        """The plan with one more cell: of this target, prompt length, output length, its law, and drive."""
        target, prompt_len, output_len, output_law, drive = like
        cell = Cell(len(self.cells), target, rate, None, prompt_len, output_len, output_law, None, drive, requests)
        return replace(self, cells=(*self.cells, cell))

    def cell_seed(self, cell: Cell, repeat: int) -> int:
        """Seed of one cell's arrivals: the same for every target, another for every cell and repeat."""
        place = [round(float(value or 0) * 1e6) for value in _place(cell)[:4]]
        if cell.output_law or cell.speed:
            place += [zlib.crc32(cell.output_law.encode()), round((cell.speed or 0) * 1e6)]
        return int(np.random.SeedSequence([self.seed, repeat, *place]).generate_state(1, np.uint64)[0] >> 1)

    def prompt_seed_of(self, cell: Cell, repeat: int, attempt: int) -> int:
        """Seed of one cell's prompts; another one when an interrupted cell is measured again.

        Targets may share servers, where the second would find the first one's prompts cached. So each has its own,
        unless the answers' real ends depend on what a prompt says.
        """
        words = [self.cell_seed(cell, repeat), self.seed if self.prompt_seed is None else self.prompt_seed, attempt]
        if cell.drive != "proxy":  # the same servers: their caches must not know the prompts from the other drive
            words.append(zlib.crc32(cell.drive.encode()))
        place = list(dict.fromkeys(each.target for each in self.cells)).index(cell.target)
        words += [place] if place and self.ignore_eos else []
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])

    def document(self) -> dict[str, Any]:
        """The plan as stored in run.json."""
        cells = [{**asdict(cell), "loop": cell.loop, "traffic": self.traffic(cell)} for cell in self.cells]
        return {**asdict(self), "cells": cells}

    def traffic(self, cell: Cell) -> str | None:
        """What drives the cell, where that is more than a rate or a number of streams."""
        if self.trace is not None:
            speed = "" if cell.speed == 1 else f" at speed {cell.speed:g}"
            return f"{Path(self.trace).name}{speed}, {cell.request_rate:.3g} req/s"
        if self.session_turns is not None:
            counts = ((cell.max_concurrency, "session"), (self.session_turns, "turn"))
            return " of ".join(f"{count} {thing}{'' if count == 1 else 's'}" for count, thing in counts)
        names = " + ".join(each.name for each in self.classes)
        if self.stages:
            way = [self.stages[0].start, *(stage.end for stage in self.stages)]
            way = [rate for number, rate in enumerate(way) if number == 0 or rate != way[number - 1]]
            return f"{' to '.join(f'{rate:g}' for rate in way)} req/s{f' of {names}' if names else ''}"
        return f"{cell.request_rate:g} req/s of {names}" if names else None

    def lasts_s(self, cell: Cell) -> float | None:
        """How long a cell sends, where the plan says it."""
        if cell.requests and cell.request_rate:
            return cell.requests / cell.request_rate
        limits = [self.duration_s] if self.duration_s else []
        if self.trace is not None:
            limits.append(the_trace(Path(self.trace)).span_s / (cell.speed or 1.0))
        if self.num_prompts and cell.request_rate:
            limits.append(self.num_prompts / cell.request_rate)
        return min(limits) if limits else None


def _place(cell: Cell) -> tuple[Any, ...]:
    load = (cell.request_rate, cell.max_concurrency, cell.prompt_len, cell.output_len)
    return (*load, cell.output_law, cell.speed)


def grid(
    targets: Sequence[str],
    rates: Sequence[float],
    streams: Sequence[int],
    prompt_lens: Sequence[int],
    output_lens: Sequence[int | Law],
    speeds: Sequence[float] = (),
    drives: Sequence[str] = ("proxy",),
) -> tuple[Cell, ...]:
    """The cells: by prompt length, then output length, then rising load, then target, then drive.

    A load is a rate, or a number of streams; with `speeds` the rates are those of a trace at each speed.
    """
    loads: list[tuple[float | None, int | None, float | None]]
    loads = [(rate, None, speeds[number] if speeds else None) for number, rate in enumerate(rates)]
    loads += [(None, count, None) for count in streams]
    laws = [Law(each) if isinstance(each, int) else each for each in output_lens]
    places = [(x, p, law, t, d) for p in prompt_lens for law in laws for x in loads for t in targets for d in drives]
    return tuple(
        Cell(i, target, rate, count, prompt_len, law.mean, law.text, speed, drive)
        for i, ((rate, count, speed), prompt_len, law, target, drive) in enumerate(places)
    )


def plan_of(document: Mapping[str, Any]) -> Plan:
    """The inverse of `Plan.document`."""
    cells = tuple(Cell(**_known(cell, Cell)) for cell in document["cells"])
    stages = tuple(Stage(**_known(stage, Stage)) for stage in document.get("stages", ()))
    classes = tuple(TrafficClass(**_known(each, TrafficClass)) for each in document.get("classes", ()))
    notes = tuple(document.get("notes", ()))
    return Plan(**{**_known(document, Plan), "cells": cells, "stages": stages, "classes": classes, "notes": notes})


def _known(document: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The keys that this pdbench knows: others may come from a newer one."""
    return {key: value for key, value in document.items() if key in kind.__slots__}
