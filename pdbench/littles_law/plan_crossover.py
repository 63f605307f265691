"""`plan crossover`: from which bandwidth the handoff costs less than the interference that it removes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from pdbench.littles_law import plan_options as options
from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.costs import PrefillCost, prefill_cost
from pdbench.littles_law.crossover import (
    MAX_LINK_USE,
    RULE_SHARE,
    BreakEven,
    Need,
    break_even,
    crossover_gb_s,
    link_load_gb_s,
    overloaded,
)
from pdbench.littles_law.kv import KvShape
from pdbench.littles_law.links import Link
from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.littles_law.plan_text import Plan, Table, ms, number, show
from pdbench.quantities import count, positive, several


@dataclass(frozen=True, slots=True)
class Handoff:
    """The model, what its prompts cost, and the fixed and hidden parts of a transfer."""

    shape: KvShape
    tp: int
    prefill: PrefillCost
    fixed_ms: float
    hidden: float

    def gb_s(self, tokens: float, budget_ms: float) -> float | None:
        return crossover_gb_s(self.shape.wire_bytes(tokens, self.tp), budget_ms, self.fixed_ms, self.hidden)

    def by_rule(self, tokens: float, stalled: float, share: float = 1.0) -> float | None:
        """Break-even transfer = stalled decodes x the forward's time, or a share of that."""
        return self.gb_s(tokens, share * stalled * self.prefill.forward_ms(tokens))

    def carried_gb_s(self, tokens: float, qps: float) -> float:
        """What the links must carry of such prompts, whatever one transfer takes."""
        return link_load_gb_s(qps, self.shape.wire_bytes(tokens, self.tp))


@dataclass(frozen=True, slots=True)
class Asked:
    """A load on two instances, when one is given."""

    qps: float
    out_tokens: float
    tpot: Tpot

    def full(self, forward_ms: float) -> list[str]:
        return overloaded(self.qps, forward_ms, self.out_tokens, self.tpot)


def crossover(
    prefill: options.Prefill,
    model: options.Model = None,
    model_config: options.ModelConfig = None,
    kv_dtype: options.KvDtype = "auto",
    tp: options.Tp = 1,
    prompt_lens: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-lens",
            "--prompt-len",
            metavar="TOKENS,...",
            help="Default 512,2048,8192,32768.",
            rich_help_panel=options.LOAD,
        ),
    ] = None,
    stalled: Annotated[
        list[str] | None,
        typer.Option(
            "--stalled",
            metavar="N,...",
            help="Decodes that a prefill stalls. Default 1,4,16,64.",
            rich_help_panel=options.LOAD,
        ),
    ] = None,
    t0_ms: Annotated[
        float, typer.Option("--t0-ms", help="Fixed cost of a transfer.", rich_help_panel=options.HANDOFF)
    ] = 0.0,
    hidden: Annotated[
        float,
        typer.Option(
            "--hidden",
            min=0,
            max=1,
            help="Share of the transfer hidden, as `plan transfer` says.",
            rich_help_panel=options.HANDOFF,
        ),
    ] = 0.0,
    link: options.LinkName = None,
    link_gb_s: options.LinkSpeed = None,
    qps: options.OptionalQps = None,
    out_tokens: options.OutTokens = 128,
    tpot: options.TpotMs = 10.0,
    tpot_slope: options.TpotSlope = 0.0,
    json: options.Json = False,
    html: options.Html = None,
) -> None:
    """Bandwidth above which P/D pays, over prompt length and stalled decodes; with --qps, for that load."""
    shape = options.shape_of(model, model_config, kv_dtype, tp)
    handoff = Handoff(shape, tp, prefill_cost(prefill), options.not_negative(t0_ms, "--t0-ms"), hidden)
    lens = sorted(several(prompt_lens or ["512,2048,8192,32768"], "--prompt-lens", count))
    decodes = sorted(several(stalled or ["1,4,16,64"], "--stalled", positive))
    load = None
    if qps is not None:
        load = Asked(options.above_zero(qps, "--qps"), out_tokens, options.tpot_of(tpot, tpot_slope))
    plan = crossover_plan(handoff, lens, decodes, options.link_of(link, link_gb_s), load)
    show(plan, as_json=json, html=html)


def crossover_plan(
    handoff: Handoff, lens: list[int], stalled: list[float], link: Link | None, load: Asked | None
) -> Plan:
    curve = {(tokens, b): handoff.by_rule(tokens, b) for tokens in lens for b in stalled}
    tables = [_rule_table(handoff, lens, stalled, curve)]
    low, high = RULE_SHARE
    remarks = [
        "Crossover: above it P/D lowers total latency, by the rule that a transfer may take as long as stalled decodes"
        f" x forward. Simulated ones may take {low:g} to {high:g} of that: count on {number(1 / high)} to"
        f" {number(1 / low)} times these figures.",
        f"The links must also carry all prompts, with at most {MAX_LINK_USE:.0%} of their speed: so "
        "much for each req/s.",
    ]
    document: dict[str, Any] = {
        "model": handoff.shape.model,
        "tp": handoff.tp,
        "t0_ms": handoff.fixed_ms,
        "hidden_fraction": handoff.hidden,
        "curve": [{"prompt_len": tokens, "stalled": b, "gb_s": gb_s} for (tokens, b), gb_s in curve.items()],
        "carried_gb_s_per_qps": {str(tokens): handoff.carried_gb_s(tokens, 1) for tokens in lens},
        "link_gb_s": None if link is None else link.practical_gb_s * handoff.tp,
    }
    improves, found = False, {}
    if load is None:
        answer = _answer_by_rule(handoff, lens, stalled, curve, link)
    else:
        found = {
            tokens: break_even(load.qps, handoff.prefill.forward_ms(tokens), load.out_tokens, load.tpot)
            for tokens in lens
        }
        full = {tokens: load.full(handoff.prefill.forward_ms(tokens)) for tokens in lens}
        improves = any(even is not None and even.ttft_ms > 0 for even in found.values())
        answer = _answer_for_load(handoff, load, found, full, link)
        tables.insert(0, _load_table(handoff, load, found, full))
        remarks[0] = (
            "The second table is the rule alone, at any rate: a transfer may take as long as stalled decodes x forward."
            " The first one also knows that all prompts wait in one queue of prefill, that decode's batch is as large"
            " as both co-located ones together, and a decode step and a half: simulated transfers may take 0.8 to 1 of"
            " what it says."
        )
        if None in found.values():
            remarks.insert(0, "Full: at this rate its queue, or its batch, grows without end.")
        document["load"] = [_even_document(handoff, load, tokens, even, full[tokens]) for tokens, even in found.items()]
    if not improves and (load is None or any(found.values())):
        answer += " TTFT alone does not improve with one prefill and one decode instance, at any bandwidth."
        remarks.append(
            "TTFT: one prefill queue carries what two co-located ones shared, and a transfer and a decode step come on "
            "top. P/D gains in TPOT, total latency and the highest rate, or in TTFT by a better P:D split than 1:1."
        )
    document["ttft_improves"] = improves
    return Plan(answer, tuple(tables), tuple(remarks), document, (_chart(handoff, lens, stalled, link),))


def _rule_table(
    handoff: Handoff, lens: list[int], stalled: list[float], curve: dict[tuple[int, float], float | None]
) -> Table:
    heads = ("prompt", "forward", *(f"{b:g} stalled" for b in stalled), "each req/s")
    rows = [
        (f"{tokens:,}", ms(handoff.prefill.forward_ms(tokens)), *(_speed(curve[tokens, b]) for b in stalled),
         _speed(handoff.carried_gb_s(tokens, 1)))
        for tokens in lens
    ]  # fmt: skip
    title = f"Crossover in GB/s (Gbit/s), all links of {handoff.shape.model} TP {handoff.tp}"
    return Table(title, heads, tuple(rows))


def _answer_by_rule(
    handoff: Handoff,
    lens: list[int],
    stalled: list[float],
    curve: dict[tuple[int, float], float | None],
    link: Link | None,
) -> str:
    """No load is given, so up to which rate the crossover is what binds is part of the answer."""
    tokens, b = lens[len(lens) // 2], stalled[min(1, len(stalled) - 1)]
    rule, each = curve[tokens, b], handoff.carried_gb_s(tokens, 1)
    where = f"with {b:g} stalled decode{'s' if b != 1 else ''} and prompts of {tokens:,} tokens"
    where += " (the table has others)" if len(curve) > 1 else ""
    least = handoff.by_rule(tokens, b, RULE_SHARE[0])
    if rule is None or least is None:
        return f"P/D does not pay {where}: t0 alone takes longer than the interference it removes."
    if least == 0:
        all_hidden = "the whole transfer is hidden, so carrying the prompts is what binds"
        return f"P/D lowers total latency {where}: {all_hidden}, {number(each)} GB/s for each req/s."
    answer = f"P/D lowers total latency above {number(least)} GB/s ({number(least * 8)} Gbit/s) {where}; the rule alone"
    answer += f" says {number(rule)}, and simulations need up to {number(1 / RULE_SHARE[0])} times that. So up to "
    answer += f"{number(least / each)} req/s; at higher rates carrying them binds, {number(each)} GB/s for each req/s"
    if link is None:
        return answer + "."
    have = link.practical_gb_s * handoff.tp
    return f"{answer}. {_there(have, least)}, and carry {number(have / each)} req/s."


def _answer_for_load(
    handoff: Handoff, load: Asked, found: dict[int, BreakEven | None], full: dict[int, list[str]], link: Link | None
) -> str:
    lens = list(found)[: len(found) // 2 + 1]
    tokens = next((each for each in reversed(lens) if found[each] is not None), lens[-1])
    even = found[tokens]
    where = f"{load.qps:g} req/s with prompts of {tokens:,} tokens"
    if even is None:
        return _overloaded(handoff, full[tokens], where)
    where += " (the table has others)" if len(found) > 1 else ""
    need = _need(handoff, load, tokens, even)
    if need.gb_s is None or need.latency_gb_s is None:
        if even.total_latency_ms <= 0:
            return f"P/D does not pay at {where}: even with a transfer that takes no time, answers take longer."
        return f"P/D does not pay at {where}: t0 alone takes longer than the interference it removes."
    answer = f"At {where} P/D needs {number(need.gb_s)} GB/s ({number(need.gb_s * 8)} Gbit/s): "
    if need.binds == "load":
        answer += f"carrying the prompts binds; for lower total latency {number(need.latency_gb_s)} would do"
    else:
        answer += f"lower total latency binds; carrying the prompts takes {number(need.load_gb_s)}"
    return answer + ("." if link is None else f". {_there(link.practical_gb_s * handoff.tp, need.gb_s)}.")


def _overloaded(handoff: Handoff, full: list[str], where: str) -> str:
    two = _instances(handoff).replace("two", "Two")
    apart = [role for role in full if role != "co-located"]
    if len(apart) == len(full):
        return f"{two} carry {where} when co-located, and not as P/D: {' and '.join(apart)} would be full."
    if not apart:
        return f"{two} carry {where} as P/D, and not when co-located: prompts and streams together would be too much."
    return f"{two} do not carry {where}: co-located or as P/D, a queue grows without end."


def _there(have: float, least: float) -> str:
    return f"{number(have)} GB/s are there, {number(have / least)} times that"


def _speed(gb_s: float | None) -> str:
    return "never" if gb_s is None else f"{number(gb_s, 2)} ({number(gb_s * 8, 2)})"


def _load_table(handoff: Handoff, load: Asked, found: dict[int, BreakEven | None], full: dict[int, list[str]]) -> Table:
    heads = ("prompt", "stalled", "TPOT co-loc", "TPOT P/D", "may take", "GB/s, by", "TTFT w/o transfer")
    rows = []
    for tokens, even in found.items():
        if even is None:
            rows.append((f"{tokens:,}", "-", *_full_cells(full[tokens]), "-", "-", "-"))
            continue
        need = _need(handoff, load, tokens, even)
        rows.append(
            (f"{tokens:,}", number(even.stalled_decodes), ms(even.colocated_tpot_ms), ms(even.disaggregated_tpot_ms),
             ms(even.total_latency_ms) if even.total_latency_ms > 0 else "nothing",
             "never" if need.gb_s is None else f"{number(need.gb_s)} {need.binds}",
             f"{ms(abs(even.ttft_ms))} {'better' if even.ttft_ms > 0 else 'worse'}")
        )  # fmt: skip
    step = f"{load.tpot.alone_ms:g} ms a step" + (f" + {load.tpot.slope_ms:g}" if load.tpot.slope_ms else "")
    title = f"{load.qps:g} req/s on {_instances(handoff)}, {load.out_tokens:g} tokens out, {step}: how long a transfer"
    title += " may take"
    return Table(title, heads, tuple(rows))


def _full_cells(full: list[str]) -> tuple[str, str]:
    """What stands in place of the TPOT of both ways."""
    apart = [role for role in full if role != "co-located"]
    return "full" if "co-located" in full else "-", f"{apart[0]} full" if apart else "-"


def _need(handoff: Handoff, load: Asked, tokens: float, even: BreakEven) -> Need:
    return Need(handoff.gb_s(tokens, even.total_latency_ms), handoff.carried_gb_s(tokens, load.qps))


def _instances(handoff: Handoff) -> str:
    return "two GPUs" if handoff.tp == 1 else f"two instances of {handoff.tp} GPUs"


def _even_document(
    handoff: Handoff, load: Asked, tokens: int, even: BreakEven | None, full: list[str]
) -> dict[str, Any]:
    if even is None:
        return {"prompt_len": tokens, "overload": True, "full": full}
    need = _need(handoff, load, tokens, even)
    return {
        "prompt_len": tokens,
        "overload": False,
        "stalled": even.stalled_decodes,
        "colocated_tpot_ms": even.colocated_tpot_ms,
        "disaggregated_tpot_ms": even.disaggregated_tpot_ms,
        "break_even_transfer_ms": even.total_latency_ms,
        "break_even_ttft_ms": even.ttft_ms,
        "gb_s": need.gb_s,
        "latency_gb_s": need.latency_gb_s,
        "load_gb_s": need.load_gb_s,
        "binds": None if need.gb_s is None else need.binds,
    }


def _chart(handoff: Handoff, lens: list[int], stalled: list[float], link: Link | None) -> LineChart:
    low, high = lens[0], max(lens[-1], lens[0] * 2)
    grid = [low * (high / low) ** (step / 40) for step in range(41)]
    lines = []
    for b in stalled:
        points = [(tokens, gb_s) for tokens in grid if (gb_s := handoff.by_rule(tokens, b)) is not None]
        lines.append(Line(f"{b:g} stalled", tuple(points)))
    marks = () if link is None else ((link.name, link.practical_gb_s * handoff.tp),)
    return LineChart(
        "Crossover bandwidth: P/D pays above a line",
        "prompt tokens",
        "GB/s, all links",
        tuple(lines),
        True,
        True,
        marks,
    )
