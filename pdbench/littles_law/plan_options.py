"""Options that several `plan` verbs share, and what their values mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pdbench.errors import UsageError
from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.costs import PREFILL_FITS, prefill_cost
from pdbench.littles_law.kv import LAYOUTS, KvShape
from pdbench.littles_law.links import Link, known_link, own_link
from pdbench.littles_law.models import known_model, shape_from_config
from pdbench.littles_law.ratio import ROUTINGS, Site, Slo
from pdbench.quantities import milliseconds, several

LOAD, GOAL = "The load", "What must hold"
ENGINES, HANDOFF = "The engines", "The model, its KV cache and the link"

Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="A model of the built-in table.", rich_help_panel=HANDOFF)
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--model-config", metavar="FILE", help="The config.json of any other model.", rich_help_panel=HANDOFF),
]
KvDtype = Annotated[
    str,
    typer.Option(
        "--kv-dtype", metavar="TYPE", help="auto, bf16, fp16, fp32, fp8, int8 or fp8_ds_mla.", rich_help_panel=HANDOFF
    ),
]
Tp = Annotated[int, typer.Option("--tp", min=1, help="Tensor-parallel GPUs of each instance.", rich_help_panel=HANDOFF)]
BlockSize = Annotated[int, typer.Option("--block-size", min=1, help="Tokens in a KV block.", rich_help_panel=HANDOFF)]
LinkName = Annotated[
    str | None,
    typer.Option(
        "--link", metavar="NAME", help="A link of the built-in table; see docs/plan.md.", rich_help_panel=HANDOFF
    ),
]
LinkSpeed = Annotated[
    float | None,
    typer.Option(
        "--link-gb-s", metavar="GB/S", help="One GPU's link, one way, in 1e9 bytes/s.", rich_help_panel=HANDOFF
    ),
]
Layout = Annotated[
    str,
    typer.Option(
        "--layout", metavar="LAYOUT", help="per-layer (vLLM >= 0.30), k-v-apart or all-layers.", rich_help_panel=HANDOFF
    ),
]
Prefill = Annotated[
    str,
    typer.Option(
        "--prefill",
        metavar="COST",
        help="One instance's speed: tokens/s (50000), ms a token and token squared (0.019,5e-8), or as measured"
        f" elsewhere: {', '.join(PREFILL_FITS)}.",
        rich_help_panel=ENGINES,
    ),
]
Qps = Annotated[float, typer.Option("--qps", help="Requests a second in all.", rich_help_panel=LOAD)]
OptionalQps = Annotated[float | None, typer.Option("--qps", help="Requests a second in all.", rich_help_panel=LOAD)]
OutTokens = Annotated[
    float, typer.Option("--out-tokens", min=1, help="Mean output tokens of a request.", rich_help_panel=LOAD)
]
TpotMs = Annotated[
    float, typer.Option("--tpot", help="Time of a decode step with one stream, ms.", rich_help_panel=ENGINES)
]
TpotSlope = Annotated[
    float,
    typer.Option("--tpot-slope", help="What each further running stream adds to it, ms.", rich_help_panel=ENGINES),
]
Goodput = Annotated[
    list[str] | None,
    typer.Option(
        "--goodput",
        help="SLOs, in ms or with a unit: ttft:2000 tpot:50 (default); itl:50 is p99 of gaps.",
        rich_help_panel=GOAL,
    ),
]
SloShare = Annotated[
    float, typer.Option("--slo-share", help="Share of requests for which the SLOs must hold.", rich_help_panel=GOAL)
]
HandoffMs = Annotated[
    float, typer.Option("--handoff-ms", help="Handoff of a prompt beside its bytes on --link.", rich_help_panel=HANDOFF)
]
MaxNumSeqs = Annotated[
    int,
    typer.Option("--max-num-seqs", min=1, max=4096, help="Slots of an instance that decodes.", rich_help_panel=ENGINES),
]
Routing = Annotated[
    str,
    typer.Option("--routing", help="split: each instance its part; shared: one queue a role.", rich_help_panel=ENGINES),
]
PromptLen = Annotated[int, typer.Option("--prompt-len", min=1, help="Tokens of a prompt.", rich_help_panel=LOAD)]
OutCv = Annotated[float, typer.Option("--out-cv", min=0, max=10, help="CV of output lengths.", rich_help_panel=LOAD)]
TurnTo = Annotated[
    list[str] | None,
    typer.Option(
        "--turn-to",
        metavar="PROMPT:OUT@QPS",
        help="What the load turns to; simulates a controller.",
        rich_help_panel=LOAD,
    ),
]
MeasuredTtft = Annotated[
    float | None,
    typer.Option(
        "--measured-ttft-ms", help="A measured TTFT of that percentile: what is unexplained?", rich_help_panel=GOAL
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the curves.")]


def assumed(context: typer.Context, **values: object) -> list[str]:
    """Which of these options the command line left at their defaults, for the reader to judge: none or one remark."""

    def was_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    left = [f"--{name.replace('_', '-')} {value}" for name, value in values.items() if not was_given(name)]
    return [f"Not given, so taken as: {', '.join(left)}."] if left else []


def constant_tpot(tpot: Tpot) -> str:
    """What an answer rests on where TPOT is one number: with more streams each token takes longer on any engine."""
    return "" if tpot.slope_ms else f" This takes TPOT for {tpot.alone_ms:g} ms at any batch (--tpot-slope)."


def shape_of(model: str | None, config_path: Path | None, kv_dtype: str, tp: int = 1) -> KvShape:
    """The KV cache of the model that the command line names, checked against its TP."""
    if (model is None) == (config_path is None):
        raise UsageError("give either --model or --model-config.", "For example --model Qwen3-32B.")
    shape = known_model(model, kv_dtype) if model else _read_config(config_path, kv_dtype)
    try:
        shape.rank_bytes_per_token(tp)
    except ValueError as error:
        raise UsageError(
            f"--tp {tp}: {error}.", "Use a TP that divides the KV heads or is a multiple of them."
        ) from None
    return shape


def _read_config(path: Path | None, kv_dtype: str) -> KvShape:
    assert path is not None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--model-config {path}: {error.strerror}.", "Name a model's config.json.") from None
    except ValueError:
        raise UsageError(f"--model-config {path}: not JSON.", "Name a model's config.json.") from None
    if not isinstance(config, dict):
        raise UsageError(f"--model-config {path}: not a JSON object.", "Name a model's config.json.")
    try:
        return shape_from_config(config, str(config.get("_name_or_path") or path.parent.resolve().name), kv_dtype)
    except UsageError as error:
        raise UsageError(f"--model-config {path}: {error}", error.hint) from None


def link_of(name: str | None, gb_s: float | None) -> Link | None:
    """The link that the command line names, or none."""
    if name is not None and gb_s is not None:
        raise UsageError("give either --link or --link-gb-s, not both.", "They name the same thing.")
    if gb_s is not None:
        return own_link(above_zero(gb_s, "--link-gb-s"))
    return known_link(name) if name is not None else None


def above_zero(value: float, option: str) -> float:
    """A number above 0 that is finite, as every rate, speed and time must be."""
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} wants a number above 0, not {value:g}.", "Units are in the option's name or help.")
    return value


def not_negative(value: float, option: str) -> float:
    if not 0 <= value < float("inf"):
        raise UsageError(f"{option} wants 0 or more, not {value:g}.", "Units are in the option's name or help.")
    return value


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        known = "; ".join(f"{name} ({what})" for name, what in LAYOUTS.items())
        raise UsageError(f"--layout {layout}: not known.", f"Known: {known}.")


def tpot_of(tpot_ms: float, slope_ms: float) -> Tpot:
    return Tpot(above_zero(tpot_ms, "--tpot"), not_negative(slope_ms, "--tpot-slope"))


def slo_of(goodput: list[str] | None, share: float) -> Slo:
    """`--goodput ttft:2000 tpot:30`: the SLOs, in ms; itl is p99 of the gaps."""
    limits: dict[str, float | None] = {"ttft": 2000.0, "tpot": 50.0, "itl": None}
    for word in several([part for value in goodput or [] for part in value.split()], "--goodput", str):
        metric, _, limit = word.partition(":")
        if metric not in limits:
            raise UsageError(
                f"--goodput wants ttft:, tpot: or itl: with a limit such as 2000, 500ms or 2s, not {word!r}."
            )
        limits[metric] = milliseconds(limit, "--goodput")
    if not 0.5 <= share <= 0.999:
        raise UsageError(f"--slo-share wants 0.5 to 0.999, not {share:g}.", "Goodput is usually stated for 0.9.")
    assert limits["ttft"] is not None and limits["tpot"] is not None
    return Slo(limits["ttft"], limits["tpot"], share, limits["itl"])


def handoff_ms_per_token(
    model: str | None, config_path: Path | None, kv_dtype: str, tp: int, link: Link | None
) -> float:
    """What a token adds to a handoff; 0 where no link is named."""
    if link is None:
        return 0.0
    shape = shape_of(model, config_path, kv_dtype, tp)
    return shape.rank_bytes_per_token(tp) / link.practical_gb_s / 1e6


def site_of(
    prefill: str, tpot: float, tpot_slope: float, slots: int, per_token_ms: float, handoff_ms: float, routing: str
) -> Site:
    if routing not in ROUTINGS:
        raise UsageError(f"--routing {routing}: not known.", f"Known: {', '.join(ROUTINGS)}.")
    fixed_ms = not_negative(handoff_ms, "--handoff-ms")
    return Site(prefill_cost(prefill), tpot_of(tpot, tpot_slope), slots, per_token_ms, fixed_ms, routing)
