"""`plan compare`: co-located with chunked prefill against P/D on as many GPUs: what gets better, what gets worse."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from pdbench.errors import UsageError
from pdbench.littles_law import plan_options as options
from pdbench.littles_law.colocated import Service, colocated, colocated_highest_qps, disaggregated
from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.littles_law.plan_text import Plan, Table, listed, ms, number, percent, show
from pdbench.littles_law.ratio import Site, Slo, Workload, highest_qps

# Less than this is no difference that these models carry.
SAME = 0.05
CURVE_STEPS = 30


@dataclass(frozen=True, slots=True)
class Sides:
    """One load on the same number of GPUs, used in two ways."""

    workload: Workload
    slo: Slo
    together: Service
    apart: Service
    together_qps: float
    apart_qps: float
    prefills: int
    decodes: int

    @property
    def place(self) -> str:
        return f"{self.prefills}:{self.decodes}"


def compare(
    context: typer.Context,
    prefill: options.Prefill,
    qps: options.Qps,
    prompt_len: options.PromptLen = 4096,
    out_tokens: options.OutTokens = 128,
    out_cv: options.OutCv = 0.0,
    instances: Annotated[
        int, typer.Option("--instances", min=2, max=64, help="Instances of each way.", rich_help_panel=options.ENGINES)
    ] = 2,
    ratio: Annotated[
        str | None,
        typer.Option("--ratio", metavar="P:D", help="Default: what serves most.", rich_help_panel=options.ENGINES),
    ] = None,
    chunk_tokens: Annotated[
        int,
        typer.Option(
            "--chunk-tokens",
            min=1,
            help="max-num-batched-tokens of the co-located engines.",
            rich_help_panel=options.ENGINES,
        ),
    ] = 2048,
    max_num_seqs: options.MaxNumSeqs = 64,
    tpot: options.TpotMs = 10.0,
    tpot_slope: options.TpotSlope = 0.0,
    goodput: options.Goodput = None,
    slo_share: options.SloShare = 0.9,
    model: options.Model = None,
    model_config: options.ModelConfig = None,
    kv_dtype: options.KvDtype = "auto",
    tp: options.Tp = 1,
    link: options.LinkName = None,
    link_gb_s: options.LinkSpeed = None,
    handoff_ms: options.HandoffMs = 0.0,
    routing: options.Routing = "split",
    json: options.Json = False,
    html: options.Html = None,
) -> None:
    """Co-located with chunked prefill against P/D on equal GPUs: what gets better, what gets worse."""
    slo = options.slo_of(goodput, slo_share)
    per_token = options.handoff_ms_per_token(model, model_config, kv_dtype, tp, options.link_of(link, link_gb_s))
    site = options.site_of(prefill, tpot, tpot_slope, max_num_seqs, per_token, handoff_ms, routing)
    workload = Workload(options.above_zero(qps, "--qps"), (float(prompt_len),), out_tokens, out_cv)
    prefills = _prefills(ratio, instances) or _best(workload, site, slo, instances)
    sides = sides_of(workload, site, slo, prefills, instances - prefills, chunk_tokens)
    plan = compare_plan(sides, site, chunk_tokens)
    taken = options.assumed(
        context, prompt_len=prompt_len, out_tokens=f"{out_tokens:g}", out_cv=f"{out_cv:g}", instances=instances,
        chunk_tokens=chunk_tokens, max_num_seqs=max_num_seqs, tpot=f"{tpot:g}", tpot_slope=f"{tpot_slope:g}",
        goodput=f"ttft:{slo.ttft_ms:g},tpot:{slo.tpot_ms:g}", slo_share=f"{slo_share:g}",
        handoff_ms=f"{handoff_ms:g}", routing=routing,
    )  # fmt: skip
    said = f"{plan.answer}{options.constant_tpot(site.tpot)}"
    show(replace(plan, answer=said, remarks=(*plan.remarks, *taken)), as_json=json, html=html)


def _prefills(ratio: str | None, instances: int) -> int | None:
    if ratio is None:
        return None
    parts = ratio.split(":")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"--ratio wants P:D such as 1:1, not {ratio!r}.")
    if int(parts[0]) + int(parts[1]) != instances:
        raise UsageError(f"--ratio {ratio} is not {instances} instances.", "Equal GPUs: --instances is P + D.")
    return int(parts[0])


def _best(workload: Workload, site: Site, slo: Slo, instances: int) -> int:
    """The split that serves the highest rate, or where the SLOs hold at no rate, the one with the least load."""

    def worth(prefills: int) -> tuple[float, float]:
        decodes = instances - prefills
        load = disaggregated(workload, site, slo, prefills, decodes).load
        return highest_qps(workload, site, slo, prefills, decodes), -load

    return max(range(1, instances), key=worth)


def sides_of(workload: Workload, site: Site, slo: Slo, prefills: int, decodes: int, chunk_tokens: float) -> Sides:
    return Sides(
        workload,
        slo,
        colocated(workload, site, slo, prefills + decodes, chunk_tokens),
        disaggregated(workload, site, slo, prefills, decodes),
        colocated_highest_qps(workload, site, slo, prefills + decodes, chunk_tokens),
        highest_qps(workload, site, slo, prefills, decodes),
        prefills,
        decodes,
    )


def compare_plan(sides: Sides, site: Site, chunk_tokens: float) -> Plan:
    rows = _rows(sides)
    better = [f"{name} ({a} to {b})" for name, a, b, verdict in rows if verdict == "better"]
    worse = [f"{name} ({a} to {b})" for name, a, b, verdict in rows if verdict == "worse"]
    title = f"{number(sides.workload.qps)} req/s on {sides.prefills + sides.decodes} instances"
    table = Table(title, ("", "co-located", f"P/D {sides.place}", "P/D is"), tuple(rows))
    remarks = (
        "Co-located, a step with a chunk carries every stream too: TPOT is the mean of those steps and the others;"
        " a prompt that is computed holds a slot, as streams do.",
        "ITL p99 of P/D is a decode step: what posting handoffs takes of decode's loop is not in it (`plan transfer`).",
        f"Less than {SAME:.0%} counts as the same. Highest rate: at which {percent(sides.slo.share)} of requests still"
        " meet both SLOs.",
    )
    document: dict[str, Any] = {
        "qps": sides.workload.qps,
        "ratio": sides.place,
        "colocated": {**asdict(sides.together), "highest_qps": sides.together_qps},
        "disaggregated": {**asdict(sides.apart), "highest_qps": sides.apart_qps},
        "better": [name for name, _, _, verdict in rows if verdict == "better"],
        "worse": [name for name, _, _, verdict in rows if verdict == "worse"],
        "same": [name for name, _, _, verdict in rows if verdict == "same"],
    }
    return Plan(_answer(sides, better, worse), (table,), remarks, document, _charts(sides, site, chunk_tokens))


def _answer(sides: Sides, better: list[str], worse: list[str]) -> str:
    if sides.together.tpot_ms is None and sides.apart.tpot_ms is None:
        return f"Both ways are in overload at {number(sides.workload.qps)} req/s: neither has a steady state."
    if sides.apart.tpot_ms is None:
        return f"P/D {sides.place} is in overload ({percent(sides.apart.load)}) where co-located instances are not."
    if sides.together.tpot_ms is None:
        return f"Co-located instances are in overload ({percent(sides.together.load)}) where P/D {sides.place} is not."
    gains = f"P/D {sides.place} is better in {listed(better)}" if better else f"P/D {sides.place} is better in nothing"
    return f"{gains}, worse in {listed(worse)}." if worse else f"{gains}, worse in nothing."


def _rows(sides: Sides) -> list[tuple[str, str, str, str]]:
    a, b = sides.together, sides.apart
    percentile = f"p{sides.slo.share * 100:g}"
    measures: list[tuple[str, float | None, float | None]] = [
        ("mean TTFT", a.ttft_ms, b.ttft_ms),
        (f"TTFT {percentile}", a.ttft_quantile_ms, b.ttft_quantile_ms),
        ("TPOT", a.tpot_ms, b.tpot_ms),
        ("ITL p99", a.itl_p99_ms, b.itl_p99_ms),
        ("mean E2EL", a.e2el_ms, b.e2el_ms),
    ]
    rows = [(name, ms(x), ms(y), _verdict(x, y)) for name, x, y in measures]
    x, y = sides.together_qps, sides.apart_qps
    higher = _verdict(-x, -y) if x > 0 or y > 0 else "-"
    rows.append(("highest rate", f"{number(x)} req/s", f"{number(y)} req/s", higher))
    rows.append(("load", percent(a.load), percent(b.load), "-"))
    rows.append(("streams an instance", number(a.streams), number(b.streams), "-"))
    rows.append(("slots held", number(a.slots_held), number(b.slots_held), "-"))
    return rows


def _verdict(together: float | None, apart: float | None) -> str:
    """Lower is better; `None` is a queue that grows without end, and two of them tell nothing of each other."""
    if together is None and apart is None:
        return "-"
    if together is None or apart is None:
        return "better" if together is None else "worse"
    if abs(apart - together) <= SAME * abs(together):
        return "same"
    return "better" if apart < together else "worse"


def _charts(sides: Sides, site: Site, chunk_tokens: float) -> tuple[LineChart, ...]:
    """E2EL and ITL over the rate, both ways."""
    top = 1.1 * max(sides.together_qps, sides.apart_qps, sides.workload.qps)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"Mean TTFT": {}, "Mean E2EL": {}, "ITL p99": {}}
    for step in range(1, CURVE_STEPS + 1):
        workload = sides.workload.at(top * step / CURVE_STEPS)
        ways = {
            "co-located": colocated(workload, site, sides.slo, sides.prefills + sides.decodes, chunk_tokens),
            f"P/D {sides.place}": disaggregated(workload, site, sides.slo, sides.prefills, sides.decodes),
        }
        for name, way in ways.items():
            for title, value in (("Mean TTFT", way.ttft_ms), ("Mean E2EL", way.e2el_ms), ("ITL p99", way.itl_p99_ms)):
                if value is not None:
                    found[title].setdefault(name, []).append((workload.qps, value))
    return tuple(
        LineChart(f"{title} over the rate", "requests/s", "ms", tuple(Line(n, tuple(p)) for n, p in lines.items()))
        for title, lines in found.items()
        if lines
    )
