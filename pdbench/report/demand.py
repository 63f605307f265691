"""Decode slots: how many the load needs, how many it holds, how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdbench.littles_law.slots import slots_held
from pdbench.report.breakdown import slots_by_class
from pdbench.report.cell import COLOCATED, Measured
from pdbench.report.window import Floats, Gauge, Page

PLATEAU_SAMPLES = 5  # samples with requests waiting for a slot, at least
PLATEAU_SHARE = 0.5  # of them that show the largest running seen
PLATEAU_NEAR_SHARE = 0.9  # of them that show it or a slot that was just freed
LOOKS = 4.0  # times a post and a turn that a request waits to start: what holds it is not the loop
SHOWS = 0.05  # slots: less is not worth a word


@dataclass(frozen=True, slots=True)
class Slots:
    """`available` and `source` are None when neither given, nor told by the servers, nor seen as a plateau."""

    needed: float | None
    held: float | None
    available: int | None
    source: str | None
    reached: bool  # running touched the limit while requests waited for a slot
    prefill_held: float | None = None  # co-located: slots held for prompts, beside `needed`
    role: str = "decode"  # whose slots

    @property
    def where(self) -> str:
        return "the server" if self.role == COLOCATED else "decode"

    @property
    def demand(self) -> float | None:
        """`needed`, with what else holds a slot: co-located, the prompt's own prefill."""
        return None if self.needed is None else self.needed + (self.prefill_held or 0.0)

    def wanted_text(self) -> str:
        """`10.6 decode slots of 8`, with what prefill holds where that shows."""
        own = f" plus {self.prefill_held:.1f} held during prefill," if (self.prefill_held or 0.0) >= SHOWS else ""
        return f"{self.needed:.1f} {'' if self.role == COLOCATED else 'decode '}slots{own} of {self.available}"

    @property
    def utilisation(self) -> float | None:
        return self.needed / self.available if self.needed is not None and self.available else None

    def overload(self, at_least: float = 1.0) -> bool:
        """Whether the load asks for `at_least` times the slots there are."""
        return self.demand is not None and bool(self.available) and self.demand >= at_least * (self.available or 0)


def slots_of(cell: Measured) -> Slots:
    """Slots of the decode (or co-located) servers together, and the load's demand by Little's law."""
    needed, held = _needed_and_held(cell)
    available, source = _available(cell)
    prefill = prefill_hold_s(cell)
    own = None if prefill is None or cell.offered is None else cell.offered * prefill
    return Slots(needed, held, available, source, reached(cell), own, cell.decoder)


def prefill_hold_s(cell: Measured) -> float | None:
    """How long a co-located request holds its slot beside tokens x TPOT, in seconds; `None` on other roles and where
    no page tells.

    A slot is held from the first scheduled step to the last token: prefill, which ends with the first token, and
    (tokens - 1) x TPOT. Tokens x TPOT has a step for the first token already.
    """
    prefill = cell.window.mean_s("colocated", "prefill_s") if cell.mode == COLOCATED else None
    if prefill is None:
        return None
    steps_ms = np.nan_to_num(cell.answers.tpot_ms[cell.answers.ok])
    return max(0.0, prefill - (float(steps_ms.mean()) / 1000 if len(steps_ms) else 0.0))


def _needed_and_held(cell: Measured) -> tuple[float | None, float | None]:
    """Little's law over the cell, or class by class: what a class holds is its own rate x length x TPOT."""
    if own := slots_by_class(cell):
        return _sum([slots["needed"] for slots in own]), _sum([slots["held"] for slots in own])
    answers = cell.answers
    tokens, tpot = answers.mean(answers.output_tokens), answers.mean(answers.tpot_ms)
    if tokens is None or tpot is None:
        return None, None
    needed = None if cell.offered is None else slots_held(cell.offered, tokens, tpot)
    return needed, None if cell.achieved is None else slots_held(cell.achieved, tokens, tpot)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _available(cell: Measured) -> tuple[int | None, str | None]:
    each, source = slots_by_server(cell)
    return (sum(each.values()) if each else None), source


def slots_by_server(cell: Measured) -> tuple[dict[str, int], str | None]:
    """Slots of each server that makes the tokens, and how they are known; none unless all of them are."""
    if cell.decoder in cell.doubts and cell.doubts[cell.decoder].of_others:
        return {}, None
    servers = [s for s in cell.deployment.get("servers", []) if s.get("role") == cell.decoder]
    given = [s.get("max_num_seqs") for s in servers]
    told = [limit_told(s) for s in servers]
    known = [g if g is not None else t for g, t in zip(given, told, strict=True)]
    pages = [page for segment in cell.window.segments for page in segment.pages if page.role == cell.decoder]
    if known and None not in known:
        said = {str(s.get("name")): int(k) for s, k in zip(servers, known, strict=True) if k is not None}
        fewer = {page.server: sum(_limits(cell, page)) for page in pages if fewer_than_said(cell, page)}
        source = "inferred" if fewer else "given" if None not in given else "server"
        return said | {name: int(slots) for name, slots in fewer.items()}, source
    seen: dict[tuple[str, str], int] = {}
    for page in pages:
        for engine in page.engines():
            if (limit := plateau(page, engine)) is not None:
                seen[page.server, engine] = max(limit, seen.get((page.server, engine), 0))
    engines = {(page.server, engine) for page in pages for engine in page.engines()}
    if engines and len({server for server, _ in engines}) == len(servers) and engines == set(seen):
        return {name: sum(n for (server, _), n in seen.items() if server == name) for name, _ in engines}, "inferred"
    return {}, None


def _limits(cell: Measured, page: Page) -> list[float]:
    limits = (engine_limit(cell, page, engine) for engine in page.engines())
    return [limit for limit in limits if limit is not None]


def limit_told(server: object) -> int | None:
    """`max_num_seqs` as the server told it, over its DP ranks."""
    facts = server.get("facts") if isinstance(server, dict) else None
    if not facts or facts.get("max_num_seqs") is None:
        return None
    return int(facts["max_num_seqs"]) * int(facts.get("dp_ranks") or 1)


def engine_limit(cell: Measured, page: Page, engine: str) -> float | None:
    """Slots of one engine of one server: its share of what is given or told, or fewer where it runs fewer; else the
    plateau seen."""
    said = _said(cell, page)
    if said is None:
        return plateau(page, engine)
    fewer = _runs_fewer(cell, page, engine, said)
    return said if fewer is None else fewer


def fewer_than_said(cell: Measured, page: Page) -> tuple[int, int] | None:
    """Slots that a server runs, and those that it is said to have, where it runs fewer."""
    said, engines = _said(cell, page), page.engines()
    if said is None or all(_runs_fewer(cell, page, engine, said) is None for engine in engines):
        return None
    return int(sum(_limits(cell, page))), round(said * len(engines))


def _said(cell: Measured, page: Page) -> float | None:
    """An engine's share of the slots that its server was given or told."""
    for server in cell.deployment.get("servers", []):
        if server.get("name") == page.server:
            limit = server.get("max_num_seqs")
            limit = limit_told(server) if limit is None else limit
            return None if limit is None else float(limit) / max(1, len(page.engines()))
    return None


def _runs_fewer(cell: Measured, page: Page, engine: str, said: float) -> int | None:
    """The limit that `running` stays at below the slots that are said to be there, while requests stand in
    waiting_to_start for longer than the loop takes to look, and KV blocks for the longest of them are free."""
    running, usage = engine_gauge(page, engine, "running"), engine_gauge(page, engine, "kv_cache_usage")
    stages = [
        engine_gauge(page, engine, "kv_fetch_stage", stage=stage)
        for stage in ("waiting_to_start", "in_progress", "completed_waiting")
    ]
    prompts = cell.answers.prompt_tokens[np.isfinite(cell.answers.prompt_tokens)]
    if running is None or not len(running.t) or not len(prompts):
        return None
    gauges = [gauge.value for gauge in (usage, *stages) if gauge is not None and len(gauge.t) == len(running.t)]
    if len(gauges) != 1 + len(stages):
        return None
    used, start, moving, loaded = gauges
    top, pressed = float(running.value.max()), start > 0
    if not 1 <= top < said or pressed.sum() < PLATEAU_SAMPLES or not _for_long(page, running.t, start):
        return None
    holders = np.maximum(1.0, running.value + moving + loaded)
    longest = float(prompts.max() / max(1.0, prompts.mean()))
    room = (used * (1 + longest / holders))[pressed] <= 1
    held = running.value[pressed]
    near = np.mean(held >= top - 1) >= PLATEAU_NEAR_SHARE and held.mean() >= PLATEAU_NEAR_SHARE * top
    flat = near and np.mean(held == top) >= PLATEAU_SHARE
    return int(top) if flat and np.mean(room) >= PLATEAU_NEAR_SHARE else None


def _for_long(page: Page, t: Floats, start: Floats) -> bool:
    """Whether requests wait to start for `LOOKS` times as long as the loop is busy with another's post and a turn: one
    between tokens or, where that is longer or answers are of one token, the first step."""
    begun = _sum_of(page, "queue_s", "count")
    post_s, *turns_s = (
        _sum_of(page, name, "sum") / (_sum_of(page, name, "count") or 1.0)
        for name in ("nixl_post_s", "itl_s", "prefill_s")
    )
    looks_s = post_s + max(turns_s)
    waited_s = Gauge(t, start).integral(float(t[0]), float(t[-1]))
    return begun > 0 and waited_s / begun >= LOOKS * looks_s


def _sum_of(page: Page, canonical: str, kind: str) -> float:
    return sum(value for key, value in page.deltas.items() if key.canonical == canonical and key.kind == kind)


def engine_gauge(page: Page, engine: str, canonical: str, **labels: str) -> Gauge | None:
    for key, gauge in page.series.items():
        if key.kind == "gauge" and key.engine == engine and key.matches(canonical, labels):
            return gauge
    return None


def slot_waiters(page: Page, engine: str) -> Gauge | None:
    """The gauge that counts requests without a slot: by stage or reason where the engine has it, else all that wait."""
    for canonical, labels in (
        ("kv_fetch_stage", {"stage": "waiting_to_start"}),
        ("waiting_by_reason", {"reason": "capacity"}),
        ("waiting", {}),
    ):
        if (gauge := engine_gauge(page, engine, canonical, **labels)) is not None:
            return gauge
    return None


def plateau(page: Page, engine: str) -> int | None:
    """The limit that `running` stays at while requests wait for a slot; `None` when it shows none."""
    running, waiting = engine_gauge(page, engine, "running"), slot_waiters(page, engine)
    if running is None or waiting is None:
        return None
    times, at, other = np.intersect1d(running.t, waiting.t, return_indices=True)
    pressed = running.value[at][waiting.value[other] > 0]
    if len(times) == 0 or len(pressed) < PLATEAU_SAMPLES:
        return None
    top = float(running.value[at].max())
    flat = np.mean(pressed == top) >= PLATEAU_SHARE and np.mean(pressed >= top - 1) >= PLATEAU_NEAR_SHARE
    return int(top) if top >= 1 and flat else None


def reached(cell: Measured) -> bool:
    """Whether some engine of the decoder ran at its limit while requests waited for a slot."""
    for _, page in cell.window.pages(cell.decoder):
        for engine in page.engines():
            limit = engine_limit(cell, page, engine)
            running, waiting = engine_gauge(page, engine, "running"), slot_waiters(page, engine)
            if limit is None or running is None or waiting is None:
                continue
            _, at, other = np.intersect1d(running.t, waiting.t, return_indices=True)
            if np.any((running.value[at] >= limit) & (waiting.value[other] > 0)):
                return True
    return False
