"""summary.json of a transfer run, from its run directory alone: the story of the judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.littles_law.plan_text import ms, number, percent, plain, size
from pdbench.report.transfer import findings, predict, results, sound
from pdbench.report.transfer.carrier import GPU_DIRECT, WITHIN_HOST
from pdbench.report.transfer.cut import cut_short
from pdbench.report.wording import clean
from pdbench.run import Run

KIND = "transfer"
MOST_WORDS = 4000  # characters of one text


def summarise(run: Run) -> dict[str, Any]:
    """Everything that `--json` prints, `report` shows and `compare` reads."""
    document, found = run.document, results.passes(run)
    sides, plan = document.get("sides") or {}, document["plan"]
    cells = results.by_cell(found)
    beside = document.get("perftest") or []
    asked = [results.result(cell, sides, plan.get("poll_interval_s"), beside) for cell in cells if cell[0]["asked"]]
    asked = [each | _theory(each, document, sides) for each in asked]
    validity = [doubt.document() for doubt in sound.doubts(found, asked, sides)]
    refused = sound.forbids_verdict(validity)
    made = predict.fits(list(results.shapes(cells)))
    cut = cut_short(document, len(found), asked)
    theory = next((each["theory_gb_s"] for each in asked if each.get("theory_gb_s")), None)
    summary = {
        "schema": document["schema"],
        "kind": KIND,
        "simulated": False,
        "created_unix_s": document.get("created_unix_s"),
        "cut_short": cut,
        "answer": answer(asked, plan.get("tp", 1)),
        "verdict": verdict(asked) if asked and not refused and cut is None else None,
        "validity": validity,
        "diagnosis": findings.causes(asked, sides, times_count=not refused),
        "results": asked,
        "fits": [predict.fit_document(key, each) for key, (each, _) in made.items()],
        "predictions": predict.predictions(made, plan.get("prompts") or [], theory),
        "link": document.get("link"),
        "backends": document.get("backends") or [],
        "setup": document.get("setup") or [],
        "others_cores": [
            {"where": where, "cores": cores, "allowed": allowed} for where, cores, allowed in sound.others(found, sides)
        ],
        "notes": document.get("notes") or [],
        "versions": {role: (sides.get(role) or {}).get("nixl") for role in sides},
        "environment": {role: (sides.get(role) or {}).get("environment") for role in sides},
    }
    cleaned: dict[str, Any] = _harmless(plain(summary))
    return cleaned


def _harmless(value: Any) -> Any:
    """What the other host and its libraries said, without anything that a terminal would act on."""
    if isinstance(value, dict):
        return {key: _harmless(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_harmless(inner) for inner in value]
    return clean(value, MOST_WORDS) if isinstance(value, str) else value


def _theory(result: Mapping[str, Any], run: Mapping[str, Any], sides: Mapping[str, Any]) -> dict[str, Any]:
    """What the link allows: as named on the command line, else what joins the two GPUs where one reaches into the
    other, else the line rates of the NICs that UCX names."""
    link, pair = run.get("link"), run.get("gpu_pair") or {}
    if link is not None:
        gb_s, name = float(link["gb_s"]), str(link["name"])
    elif pair.get("gb_s") and findings.transports(result) & GPU_DIRECT:
        gb_s, name = float(pair["gb_s"]), str(pair["connection"] or pair["path"])
    else:
        initiator = sides.get("decode" if result["op"] == "READ" else "prefill") or {}
        rates = initiator.get("nic_gb_s") or {}
        used = [word.partition("/") for word in str(result["transport"]).split()]
        devices = list(dict.fromkeys(device for transport, _, device in used if transport not in WITHIN_HOST))
        if not devices or any(device not in rates for device in devices):
            return {}
        gb_s, name = sum(rates[device] for device in devices), " + ".join(devices)
    return {"theory": name, "theory_gb_s": gb_s, "theory_fraction": result["gb_s"] / gb_s}


def answer(asked: Sequence[Mapping[str, Any]], tp: int) -> str:
    """One sentence: what was moved, by what, and how long it takes at its best and when it is fragmented."""
    if not asked:
        return "Nothing that was asked for was measured."
    one = min((each for each in asked if each["in_flight"] == 1), key=_preferred, default=asked[0])
    what = f"{one['tokens']:,} tokens of {one['name']}" if one["tokens"] else size(one["nbytes"])
    what += f" ({size(one['nbytes'])} on each of {tp} ranks)" if one["tokens"] and tp > 1 else ""
    what += f" ({size(one['nbytes'])})" if one["tokens"] and tp == 1 else ""
    flying = f", {one['in_flight']} at once," if one["in_flight"] > 1 else ""
    told = f"{what}{flying} over {one['transport']}: {ms(one['total_ms']['p50'])}, {number(one['gb_s'])} GB/s"
    if one.get("theory_fraction") is not None and not findings.beside_link(one):
        told += f", {percent(one['theory_fraction'])} of {line(one)}"
    told += f"; post {ms(one['post_ms']['p50'])} for {_counted(one)}"
    other = next((scattered for scattered, joined in findings.pairs(asked) if joined is one), None)
    if other is not None:
        told += f"; fragmented into {other['descriptors_merged']:,}: {ms(other['total_ms']['p50'])}, "
        told += f"post {ms(other['post_ms']['p50'])}"
    return told + "."


def line(result: Mapping[str, Any]) -> str:
    """`mlx5_0:1 (50.0 GB/s)`."""
    return f"{result['theory']} ({number(result['theory_gb_s'])} GB/s)"


def _counted(result: Mapping[str, Any]) -> str:
    merged = result["descriptors_merged"] or result["descriptors"]
    return f"{merged:,} descriptor{'s' if merged > 1 else ''}"


def _preferred(result: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """The headline is about a pull, out of GPU memory where there is any, with what could be merged merged."""
    return result["op"] != "READ", result["memory"] != "VRAM", result["ids"] != "contiguous"


def verdict(asked: Sequence[Mapping[str, Any]]) -> str:
    """How good that is, against the link where one is known, else against what the machine does without NIXL."""
    known = [each for each in asked if each.get("theory_fraction") is not None and not findings.beside_link(each)]
    if known:
        best = max(known, key=lambda each: float(each["theory_fraction"]))
        return f"At best {percent(best['theory_fraction'])} of {line(best)} one way, with {sound.named(best)}."
    shares = [(share, name, each) for each in asked for name, share in each["of_reference"].items() if name != "tcp"]
    shares = shares or [(share, name, each) for each in asked for name, share in each["of_reference"].items()]
    if not shares:
        return "No link is named and no reference could be run: give --link or --link-gb-s."
    lowest, highest = min(shares, key=lambda s: s[0]), max(shares, key=lambda s: s[0])
    told = f"NIXL reaches {percent(lowest[0])} to {percent(highest[0])} of what the machine does without it"
    return (
        f"{told}, from {sound.named(lowest[2])} against {lowest[1]} to {sound.named(highest[2])} against {highest[1]}."
    )


def exit_code_of(summary: Mapping[str, Any]) -> int:
    """3 when the figures mean nothing: nothing measured, bytes that differ, a speed that cannot be."""
    void = any(each["severity"] == "void" for each in summary["validity"])
    return 3 if void or not summary["results"] else 0
