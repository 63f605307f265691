"""`pdbench slots`: how many decode slots the load needs, how long requests wait for one, and what would be safe."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pdbench.errors import StorageError, UsageError
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.slots_answer import answer, fullest, slots_curve
from pdbench.littles_law.slots_inputs import classed, mean_load, pooled, traced
from pdbench.littles_law.slots_question import (
    MOST_DECODERS,
    MOST_PROMPTS,
    MOST_SLOTS,
    Question,
    burstiness_of,
    lengths_of,
    tpot_of,
    whole,
)
from pdbench.quantities import seconds

Number = float | None
LOAD, DECODERS, POOL = "The load", "The decoders", "The KV pool, a second limit"


def slots(
    qps: Annotated[
        Number, typer.Option("--qps", "--request-rate", help="Requests/s on all decoders.", rich_help_panel=LOAD)
    ] = None,
    out_tokens: Annotated[
        Number, typer.Option("--out-tokens", help="Mean output tokens of a request.", rich_help_panel=LOAD)
    ] = None,
    tpot: Annotated[
        Number, typer.Option("--tpot", help="Time per output token in ms, under load.", rich_help_panel=DECODERS)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", help="Slots of one decoder.", rich_help_panel=DECODERS)
    ] = None,
    decoders: Annotated[
        int, typer.Option("--decoders", help="Decoders, each with its own slots.", rich_help_panel=DECODERS)
    ] = 1,
    burstiness: Annotated[
        Number, typer.Option(help="Gamma shape of arrivals: 1 (Poisson), below 1 burstier.", rich_help_panel=LOAD)
    ] = None,
    out_cv: Annotated[
        Number, typer.Option("--out-cv", help="Coefficient of variation of output lengths.", rich_help_panel=LOAD)
    ] = None,
    out_law: Annotated[
        str, typer.Option("--out-law", help="Law of output lengths: gamma or lognormal.", rich_help_panel=LOAD)
    ] = "gamma",
    trace: Annotated[
        Path | None, typer.Option(help="Replay a trace: Azure CSV or Mooncake JSONL.", rich_help_panel=LOAD)
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME:OUT@QPS", help="A class of its own; repeat.", rich_help_panel=LOAD),
    ] = None,
    tpot_slope: Annotated[
        Number, typer.Option("--tpot-slope", help="ms that each further running one adds.", rich_help_panel=DECODERS)
    ] = None,
    tpot_at_batch: Annotated[
        Number,
        typer.Option("--tpot-at-batch", help="Requests running when --tpot was taken.", rich_help_panel=DECODERS),
    ] = None,
    slo_wait_p99: Annotated[
        str, typer.Option("--slo-wait-p99", metavar="TIME", help="The p99 wait that is allowed.")
    ] = "100ms",
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", help="Also: what a run this long shows.")] = None,
    normalised: Annotated[
        bool, typer.Option("--vllm-arrivals", help="That run's arrivals rescaled as by vllm bench serve.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", help="KV cache of a well-known model.", rich_help_panel=POOL)
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="Any other model's config.json.", rich_help_panel=POOL)
    ] = None,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="Type of the KV cache.", rich_help_panel=POOL)] = "auto",
    tp: Annotated[
        int, typer.Option("--tp", min=1, help="Tensor-parallel GPUs of a decoder.", rich_help_panel=POOL)
    ] = 1,
    hbm: Annotated[
        Number, typer.Option("--hbm", metavar="GIB", help="KV memory of one decoder GPU.", rich_help_panel=POOL)
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option("--kv-tokens", help="KV pool of a decoder in tokens.", rich_help_panel=POOL)
    ] = None,
    prompt_len: Annotated[
        Number, typer.Option("--prompt-len", help="Prompt tokens: they fill the KV pool.", rich_help_panel=POOL)
    ] = None,
    staging: Annotated[
        int,
        typer.Option(
            "--staging",
            min=0,
            help="Of its sequences, those that wait for a slot with their KV there.",
            rich_help_panel=POOL,
        ),
    ] = 1,
    from_run: Annotated[
        Path | None, typer.Option("--from-run", help="Take the load from a run's cells.", rich_help_panel=LOAD)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the curves.")] = None,
) -> None:
    """How many decode slots does a load need, how long does a request wait for one, how much is safe?

    Little's law gives the mean, queueing theory the waits; the output names the method and its known error.
    """
    slo_s = seconds(slo_wait_p99, "--slo-wait-p99")
    whole(decoders, "--decoders", MOST_DECODERS)
    whole(max_num_seqs, "--max-num-seqs", MOST_SLOTS)
    if from_run is not None:
        if (qps, out_tokens, tpot, classes, trace) != (None, None, None, None, None):
            raise UsageError("--from-run takes the load from the run.", "Leave the rate, length and TPOT out.")
        unused = {
            "--burstiness": burstiness is not None,
            "--out-cv": out_cv is not None,
            "--out-law": out_law != "gamma",
            "--num-prompts": num_prompts is not None,
            "--vllm-arrivals": normalised,
            "--model": model is not None,
            "--model-config": model_config is not None,
            "--hbm": hbm is not None,
            "--kv-tokens": kv_tokens is not None,
            "--prompt-len": prompt_len is not None,
            "--kv-dtype": kv_dtype != "auto",
            "--tp": tp != 1,
            "--staging": staging != 1,
            "--tpot-at-batch without --tpot-slope": tpot_at_batch is not None and tpot_slope is None,
        }
        if given_too := [name for name, is_given in unused.items() if is_given]:
            raise UsageError(f"--from-run does not use {', '.join(given_too)}.", "Leave it out, or give --qps instead.")
        slope = None if tpot_slope is None else (tpot_slope, tpot_at_batch)
        return show(_of_run(from_run, slo_s, max_num_seqs, decoders, slope, html), as_json=json, html=html)
    given, requests = classed(classes), traced(trace)
    rate, mean_tokens, values, weights = mean_load(qps, out_tokens, given, requests)
    lengths = lengths_of(out_cv, out_law, values, weights)
    spread = burstiness_of(1.0 if burstiness is None else burstiness)
    demand = Demand(rate, mean_tokens, tpot_of(tpot, tpot_slope, tpot_at_batch), lengths, spread)
    question = Question(
        demand,
        max_num_seqs,
        slo_s,
        decoders,
        given,
        requests if burstiness is None else (),  # with a named process only the trace's lengths count
        pooled(mean_tokens, model, model_config, kv_dtype, tp, hbm, kv_tokens, prompt_len, staging),
        tpot_at_batch,
        whole(num_prompts, "--num-prompts", MOST_PROMPTS),
        normalised,
    )
    show([_answered(question, html)], as_json=json, html=html)


def _of_run(
    path: Path,
    slo_s: float,
    max_num_seqs: int | None,
    decoders: int,
    slope: tuple[float, float | None] | None,
    html: Path | None,
) -> list[dict[str, Any]]:
    from pdbench.littles_law.slots_from_run import as_reported, questions_of_run

    asked = questions_of_run(path, slo_s, max_num_seqs, decoders, slope)
    return [as_reported({**cell, **_answered(question, html)}) for cell, question in asked]


def _answered(question: Question, html: Path | None) -> dict[str, Any]:
    document = answer(question, fine=html is not None)
    return document if html is None else {**document, "slots_curve": slots_curve(question)}


def show(documents: list[dict[str, Any]], *, as_json: bool, html: Path | None) -> None:
    """JSON or text on stdout, and the page where one is asked for. Several documents are the cells of a run."""
    if html is not None:
        from pdbench.littles_law.slots_html import page

        try:
            html.write_text(page(documents), encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"--html {html}: {error.strerror or error}.", "Name a file that can be written."
            ) from None
    if as_json:
        whole_run = documents[0] if len(documents) == 1 else {**fullest(documents), "cells": documents}
        jsonlib.dump(whole_run, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        return
    from pdbench.littles_law.slots_text import print_answers

    print_answers(documents, None if html is None else html.resolve())
