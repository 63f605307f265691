"""`plan ratio`: how many prefill and decode instances, where both SLOs hold, and how that moves with the load."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pdbench.errors import UsageError
from pdbench.littles_law import plan_options as options
from pdbench.littles_law.controller import Contest, contest, fixed_runs
from pdbench.littles_law.day import played, traced_jobs, turning_jobs, windows, workload_of
from pdbench.littles_law.plan_day import contest_chart, contest_document, contest_table, day_map, day_table, day_windows
from pdbench.littles_law.plan_region import (
    DRAWN_RATES,
    RATES,
    answer_of,
    at_workload_table,
    holding_on,
    load_text,
    ratio_document,
    region_map,
    region_table,
)
from pdbench.littles_law.plan_text import Plan, Table, ms, percent, show
from pdbench.littles_law.pools import Job, Pools
from pdbench.littles_law.ratio import RatioResult, Site, Slo, Workload, ratios
from pdbench.quantities import seconds
from pdbench.traces import TracedRequest, read_trace

MOST_REQUESTS = 300_000
SIMULATED_AS = (
    "Simulated with the routing of the tables above. A stream keeps the TPOT of the batch that it joins there too."
)
_PHASE = re.compile(r"(\d+):(\d+)@(\d+(?:\.\d+)?)")


def ratio(
    context: typer.Context,
    prefill: options.Prefill,
    qps: options.OptionalQps = None,
    prompt_len: options.PromptLen = 4096,
    out_tokens: options.OutTokens = 128,
    out_cv: options.OutCv = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Azure CSV or Mooncake JSONL instead of --qps.",
            rich_help_panel=options.LOAD,
        ),
    ] = None,
    rate_scale: Annotated[
        float, typer.Option("--rate-scale", help="Play the trace this much faster.", rich_help_panel=options.LOAD)
    ] = 1.0,
    window: Annotated[
        str,
        typer.Option(
            "--window", metavar="TIME", help="Part of a trace that has one ratio.", rich_help_panel=options.LOAD
        ),
    ] = "5m",
    instances: Annotated[
        int, typer.Option("--instances", min=2, max=64, help="Instances to share out.", rich_help_panel=options.ENGINES)
    ] = 8,
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
    turn_to: options.TurnTo = None,
    phase: Annotated[
        str,
        typer.Option(
            "--phase", metavar="TIME", help="How long each load of --turn-to lasts.", rich_help_panel=options.LOAD
        ),
    ] = "10m",
    controller: Annotated[
        bool, typer.Option("--controller", help="Simulate a controller over --trace.", rich_help_panel=options.ENGINES)
    ] = False,
    control_every: Annotated[
        str,
        typer.Option(
            "--control-every", metavar="TIME", help="The controller's interval.", rich_help_panel=options.ENGINES
        ),
    ] = "15s",
    switch: Annotated[
        str,
        typer.Option(
            "--switch", metavar="TIME", help="A drained instance's change of role.", rich_help_panel=options.ENGINES
        ),
    ] = "1s",
    seed: Annotated[int, typer.Option("--seed", help="Of the simulated arrivals.", rich_help_panel=options.LOAD)] = 0,
    measured_ttft_ms: options.MeasuredTtft = None,
    json: options.Json = False,
    html: options.Html = None,
) -> None:
    """P:D instances for a load and SLOs: where both hold over ratio and rate, over a trace, under a controller."""
    slo = options.slo_of(goodput, slo_share)
    per_token = options.handoff_ms_per_token(model, model_config, kv_dtype, tp, options.link_of(link, link_gb_s))
    site = options.site_of(prefill, tpot, tpot_slope, max_num_seqs, per_token, handoff_ms, routing)
    scale = options.above_zero(rate_scale, "--rate-scale")
    traced = [] if trace is None else played(read_trace(trace).requests, scale)
    workload = _workload(qps, prompt_len, out_tokens, out_cv, traced)
    phases = [workload, *_phases(turn_to, out_cv)]
    if controller and not traced and len(phases) == 1:
        raise UsageError("--controller wants a load that changes.", "Give --trace, or --turn-to PROMPT:OUT@QPS.")
    plan = _region_plan(workload, site, slo, instances, measured_ttft_ms)
    plan = _after_turns(plan, phases[1:], site, slo, instances)
    jobs = _jobs(phases, phase, traced, site, seed)
    fixed = fixed_runs(jobs, site, slo, instances) if jobs else []
    if traced and len(phases) == 1:
        plan = _with_day(plan, traced, fixed, _seconds(window, "--window"))
    if controller or len(phases) > 1:
        every_s, switch_s = _seconds(control_every, "--control-every"), seconds(switch, "--switch")
        plan = _with_controller(plan, contest(jobs, site, slo, fixed, every_s, switch_s))
    goals = f"ttft:{slo.ttft_ms:g},tpot:{slo.tpot_ms:g}"
    shape = {} if traced else {"prompt_len": prompt_len, "out_tokens": f"{out_tokens:g}", "out_cv": f"{out_cv:g}"}
    taken = options.assumed(
        context, **shape, instances=instances, max_num_seqs=max_num_seqs, tpot=f"{tpot:g}",
        tpot_slope=f"{tpot_slope:g}", goodput=goals, slo_share=f"{slo_share:g}", handoff_ms=f"{handoff_ms:g}",
        routing=routing,
    )  # fmt: skip
    said = f"{plan.answer}{options.constant_tpot(site.tpot)}"
    show(replace(plan, answer=said, remarks=(*plan.remarks, *taken)), as_json=json, html=html)


def _jobs(phases: list[Workload], phase: str, traced: list[TracedRequest], site: Site, seed: int) -> list[Job]:
    """What is simulated: a load that turns, or a trace; nothing where there is neither."""
    if len(phases) == 1:
        _check_size(len(traced))
        return traced_jobs(traced, site)
    long_s = _seconds(phase, "--phase")
    _check_size(sum(each.qps for each in phases) * long_s)
    jobs = turning_jobs(phases, long_s, site, seed)
    if len(jobs) < 2:
        raise UsageError("the load is too thin to simulate.", "Raise --qps or --phase.")
    return jobs


def _check_size(requests: float) -> None:
    if requests > MOST_REQUESTS:
        said = f"{requests:,.0f} requests are more than the {MOST_REQUESTS:,} that are simulated at once."
        raise UsageError(said, "Shorten --phase, or cut the trace.")


def _seconds(text: str, option: str) -> float:
    return options.above_zero(seconds(text, option), option)


def _workload(
    qps: float | None, prompt_len: int, out_tokens: float, out_cv: float, traced: list[TracedRequest]
) -> Workload:
    if traced:
        if qps is not None:
            raise UsageError("give either --qps or --trace, not both.", "--rate-scale changes a trace's own rate.")
        if traced[-1].at_s <= 0:
            raise UsageError("all requests of the trace arrive at once.", "A rate needs time stamps that differ.")
        return workload_of(traced, traced[-1].at_s)
    if qps is None:
        raise UsageError("give --qps or --trace.", "For example --qps 8 --prompt-len 8192 --out-tokens 256.")
    return Workload(options.above_zero(qps, "--qps"), (float(prompt_len),), out_tokens, out_cv)


def _phases(turn_to: list[str] | None, out_cv: float) -> list[Workload]:
    found = []
    for word in turn_to or []:
        match = _PHASE.fullmatch(word)
        if match is None or not all(float(part) > 0 for part in match.groups()):
            raise UsageError(f"--turn-to wants PROMPT:OUT@QPS such as 1024:1024@6, not {word!r}.")
        found.append(Workload(float(match[3]), (float(match[1]),), float(match[2]), out_cv))
    return found


def _region_plan(workload: Workload, site: Site, slo: Slo, instances: int, measured_ttft_ms: float | None) -> Plan:
    found = ratios(workload, site, slo, instances)
    best = max(found, key=lambda each: each.highest_qps)
    area, drawn = (region_map(workload, site, slo, found, count) for count in (RATES, DRAWN_RATES))
    remarks = [
        "An instance that prefills takes one prompt at a time; "
        + ("each has its own part of the rate." if site.routing == "split" else "each role has one queue."),
    ]
    document: dict[str, Any] = {
        "qps": workload.qps,
        "instances": instances,
        "slo": {"ttft_ms": slo.ttft_ms, "tpot_ms": slo.tpot_ms, "share": slo.share},
        "routing": site.routing,
        "best": f"{best.prefills}:{best.decodes}" if best.highest_qps > 0 else None,
        "highest_qps": best.highest_qps,
        "ratios": [ratio_document(each, slo) for each in found],
        "region": {"qps": list(drawn.x_labels), "ratios": list(drawn.y_labels), "states": drawn.states},
    }
    if measured_ttft_ms is not None:
        said, document["measured"] = unexplained(best, slo, options.above_zero(measured_ttft_ms, "--measured-ttft-ms"))
        remarks.append(said)
    tables: tuple[Table, ...] = (at_workload_table(workload, slo, found), region_table(area))
    return Plan(answer_of(workload, slo, instances, found), tables, tuple(remarks), document, (drawn,))


def _after_turns(plan: Plan, turned: list[Workload], site: Site, slo: Slo, instances: int) -> Plan:
    """The tables and the answer above are of the first load; these are of the loads that it turns to."""
    said, tables, documents = plan.answer, plan.tables, []
    for workload in turned:
        found = ratios(workload, site, slo, instances)
        said += f" At {load_text(workload)} {holding_on(slo, found)}."
        tables = (*tables, at_workload_table(workload, slo, found))
        documents.append({"qps": workload.qps, "ratios": [ratio_document(each, slo) for each in found]})
    document = {**plan.document, "turned": documents} if turned else plan.document
    return replace(plan, answer=said, tables=tables, document=document)


def unexplained(best: RatioResult, slo: Slo, measured_ms: float) -> tuple[str, dict[str, Any]]:
    """How much of a measured TTFT the model accounts for on the best ratio."""
    expected = best.at_workload.ttft_ms
    place = f"{best.prefills}:{best.decodes}"
    if expected is None:
        said = f"Measured TTFT {ms(measured_ms)}: {place} is in overload, so it is a figure of the run's length."
        return said, {"ttft_ms": measured_ms, "expected_ms": None, "unexplained_ms": None}
    left = measured_ms - expected
    said = f"Measured TTFT {ms(measured_ms)} on {place}: {ms(expected)} expected at {percent(slo.share)}, "
    said += f"{ms(left)} unexplained." if left > 0.1 * measured_ms else "which explains it."
    return said, {"ttft_ms": measured_ms, "expected_ms": expected, "unexplained_ms": left}


def _with_day(plan: Plan, traced: list[TracedRequest], fixed: list[Pools], window_s: float) -> Plan:
    """A trace is judged by playing it: the formulas take arrivals for Poisson, and traces are burstier."""
    days = day_windows(windows(traced, window_s), fixed, window_s)
    if not days:
        raise UsageError("no window of the trace holds two requests.", "Choose a longer --window.")
    said, table = day_table(days, fixed)
    remarks = (
        *plan.remarks,
        "The first two tables are formulas for Poisson arrivals at the trace's mean rate. Burst is variance over mean "
        "of its counts a second, 1 for Poisson: the higher, the more the simulation below them is to be trusted.",
        SIMULATED_AS,
    )
    document = {**plan.document, "windows": [day.document() for day in days]}
    return replace(plan, answer=said, tables=(*plan.tables, table), remarks=remarks, document=document,
                   charts=(day_map(days), *plan.charts))  # fmt: skip


def _with_controller(plan: Plan, steered: Contest) -> Plan:
    said, table = contest_table(steered)
    remarks = (
        *(remark for remark in plan.remarks if remark != SIMULATED_AS),
        SIMULATED_AS,
        "Its shares are of the requests of all loads together. "
        f"The controller starts at equal shares, moves one instance at a time and waits {ms(steered.drain_s * 1000)} "
        "(a drain) between moves. The best fixed ratio is known only afterwards; the oracle knows what comes.",
    )
    document = {**plan.document, "controller": contest_document(steered)}
    return replace(plan, answer=f"{plan.answer} {said}", tables=(*plan.tables, table), remarks=remarks,
                   document=document, charts=(*plan.charts, contest_chart(steered)))  # fmt: skip
