"""A transfer run as a page of text: the answer first, tables of 80 columns, then what to doubt and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.littles_law.plan_text import Plan, Table, ms, number, percent, size
from pdbench.report.transfer.cut import sentence
from pdbench.report.transfer.predict import WITHHELD

Result = Mapping[str, Any]
VERBS = {"READ": "pull", "WRITE": "push"}
SHORT = {"scattered": "scat.", "contiguous": "cont."}
ROUGH = 0.25  # a relative miss of the fit that is worth a remark
REFERENCES = ("memcpy", "process_vm", "tcp", "ucx_perftest")


def view(summary: Mapping[str, Any]) -> Plan:
    """The same content for the terminal and for the page."""
    results = summary["results"]
    tables = [_times(results), *_speeds(results), _carriers(results)]
    tables += [_polls(results), _fits(summary["fits"]), *_predictions(summary["predictions"])]
    kept = tuple(table for table in tables if table.rows)
    return Plan(_answer(summary), kept, tuple(_remarks(summary)), dict(summary), tuple(_charts(summary)))


def _answer(summary: Mapping[str, Any]) -> str:
    if summary.get("cut_short"):
        return f"{sentence(summary['cut_short'])}\nSo far: {summary['answer']}"
    refused = [each["evidence"] for each in summary["validity"] if each["severity"] == "void"]
    refused += [each["evidence"] for each in summary["validity"] if each["code"] == "machine-loaded"]
    if refused and summary["results"]:
        return f"NO VERDICT: {refused[0]}\nAs measured: {summary['answer']}"
    return f"{summary['answer']} {summary['verdict'] or ''}".strip()


def _name(result: Result, results: Sequence[Result]) -> str:
    """What tells this result from the others: pull scattered, and whatever else differs between them."""
    words = [VERBS[result["op"]], SHORT[result["ids"]]]
    if len({each["block_tokens"] for each in results}) > 1:
        words.append(f"b{result['block_tokens']}")
    if len({each["in_flight"] for each in results}) > 1:
        words.append(f"x{result['in_flight']}")
    for key in ("backend", "memory"):
        if len({each[key] for each in results}) > 1:
            words.append(str(result[key]))
    return " ".join(words)


def _times(results: Sequence[Result]) -> Table:
    rows = []
    for each in results:
        merged = each["descriptors_merged"]
        rows.append(
            (_name(each, results), size(each["nbytes"]), f"{each['descriptors']:,}", f"{merged:,}" if merged else "-",
             *(_short(each[f"{phase}_ms"]["p50"]) for phase in ("prep", "make", "post", "move")),
             _short(each["total_ms"]["p50"]), _short(each["total_ms"]["p99"]))
        )  # fmt: skip
    heads = ("", "bytes", "asked", "merged", "prep", "make", "post", "move", "p50", "p99")
    return Table(
        "Descriptors (block ids scattered, contiguous); ms a transfer, p50; the whole without prep", heads, tuple(rows)
    )


def _speeds(results: Sequence[Result]) -> list[Table]:
    """GB/s of NIXL, of what else moved the same bytes and of the link; then NIXL as a share of each."""
    names = [name for name in REFERENCES if any(name in each["reference_gb_s"] for each in results)]
    speeds, shares = [], []
    for each in results:
        found = [each["reference_gb_s"].get(name) for name in names]
        speeds.append((_name(each, results), *map(number, [each["gb_s"], *found, each.get("theory_gb_s")])))
        parts = [each["of_reference"].get(name) for name in names]
        shares.append((_name(each, results), *map(percent, [*parts, each.get("theory_fraction")])))
    theory = any(each.get("theory_gb_s") for each in results)
    heads = (*names, "link") if theory else tuple(names)
    if not theory:
        speeds, shares = [row[:-1] for row in speeds], [row[:-1] for row in shares]
    return [
        Table(
            "GB/s (1e9 bytes): NIXL, and what else moved the same bytes beside it", ("", "NIXL", *heads), tuple(speeds)
        ),
        Table("NIXL as a share of each", ("", *heads), tuple(shares) if heads else ()),
    ]


def _carriers(results: Sequence[Result]) -> Table:
    marks = {True: "yes", False: "NO", None: "open"}
    seen: dict[tuple[str, ...], list[str]] = {}
    for each in results:
        proof = each["transport_proof"]
        seen.setdefault((str(proof["says"]), marks[proof["agree"]], _verified(each)), []).append(_name(each, results))
    rows = [
        ("all" if len(names) == len(results) else ", ".join(names), proven, verified, says)
        for (says, proven, verified), names in seen.items()
    ]
    return Table("What carried the bytes", ("", "proven", "verified", ""), tuple(rows))


def _verified(result: Result) -> str:
    return {True: "yes", False: "NO", None: "-"}[result["verified"]]


def _rough(fits: Sequence[Mapping[str, Any]]) -> list[str]:
    if not fits:
        return ["No fit: these shapes do not tell t0, bytes and descriptors apart; scattered and contiguous ids do."]
    worst = max(float(each["worst_miss"]) for each in fits)
    if worst < ROUGH:
        return []
    said = "so predictions are rough" if worst <= WITHHELD else "so nothing is predicted from it"
    return [f"The fit misses a shape by {percent(worst)}: t is no straight line here, {said}."]


def _polls(results: Sequence[Result]) -> Table:
    polled = [each for each in results if "poll" in each]
    rows = tuple(
        (_name(each, results), _short(each["total_ms"]["p50"]), _short(each["poll"]["seen_ms"]["p50"]),
         _short(each["poll"]["added_ms"]), _short(each["poll"]["nixl_xfer_ms"]["p50"]))
        for each in polled
    )  # fmt: skip
    every = ms(polled[0]["poll"]["interval_ms"]) if polled else ""
    heads = ("", "done", "seen", "added", "as NIXL tells it")
    return Table(f"Looked at only every {every}, as between decode steps: ms", heads, rows)


def _fits(fits: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for each in fits:
        spans = [each[f"{part}_interval"] for part in ("t0_ms", "gb_s", "us_per_descriptor")]
        values = [each["t0_ms"], each["gb_s"], each["us_per_descriptor"]]
        told = [
            word
            for value, (low, high) in zip(values, spans, strict=True)
            for word in (number(value), f"{number(low)}..{number(high)}")
        ]
        where = f"{VERBS[each['op']]} {each['backend']} {each['memory']}"
        rows.append((where, *told, percent(each["worst_miss"])))
    heads = ("", "t0 ms", "95%", "GB/s", "95%", "d us", "95%", "misses")
    return Table("Fit: t0 + bytes/bandwidth + descriptors x d (misses: the worst shape's)", heads, tuple(rows))


def _predictions(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    tables = []
    for block in dict.fromkeys(row["block_tokens"] for row in rows):
        mine = [row for row in rows if row["block_tokens"] == block]
        ways = [way for way in mine[0]["ways"]]
        if not ways:
            continue
        several = len({(way["backend"], way["memory"]) for way in ways}) > 1
        heads = ["prompt", "a rank", "blocks"]
        heads += [_way(way, several) for way in ways]
        theory = mine[0]["at_theory_ms"] is not None
        heads += ["at link"] if theory else []
        lines = []
        for row in mine:
            cells = [f"{row['tokens']:,}", size(row["nbytes"]), f"{row['descriptors']:,}"]
            cells += [("~" if way["extrapolated"] else "") + _short(way["ms"]) for way in row["ways"]]
            lines.append((*cells, *([_short(row["at_theory_ms"])] if theory else [])))
        title = (
            f"What that predicts for this model's handoff, ms (blocks of {block} tokens; ~: beyond what was measured)"
        )
        tables.append(Table(title, tuple(heads), tuple(lines)))
    return tables


def _way(way: Mapping[str, Any], several: bool) -> str:
    return f"{VERBS[way['op']]} {SHORT[way['ids']]}" + (f" {way['backend']} {way['memory']}" if several else "")


def _remarks(summary: Mapping[str, Any]) -> list[str]:
    remarks = [f"{each['cause']}: {each['evidence']}. {each['advice']}" for each in summary["diagnosis"]]
    remarks += [f"{each['severity']}: {each['code']}: {each['evidence']}" for each in summary["validity"]]
    missing: dict[str, str] = {}
    for each in summary["results"]:
        missing |= each["reference_missing"]
    remarks += _rough(summary["fits"])
    remarks += [f"Reference {name} was not run: {why}." for name, why in missing.items()]
    loads = [each["backend"] for each in summary["backends"] if each["loads"]]
    rest = [f"{each['backend']} ({each['why']})" for each in summary["backends"] if not each["loads"]]
    if summary["backends"]:
        remarks.append(f"Backends that load: {', '.join(loads) or 'none'}. The others: {'; '.join(rest) or 'none'}.")
    for each in summary["setup"]:
        steps = ", ".join(f"{name} {ms(value)}" for name, value in each["setup_ms"].items())
        remarks.append(f"Once, and in none of the times: {each['backend']} {each['memory']}: {steps}.")
    return remarks + list(summary["notes"])


def _charts(summary: Mapping[str, Any]) -> list[LineChart]:
    charts = []
    rows = summary["predictions"]
    for block in dict.fromkeys(row["block_tokens"] for row in rows):
        mine = [row for row in rows if row["block_tokens"] == block]
        if not mine[0]["ways"]:
            continue
        lines = []
        for place, way in enumerate(mine[0]["ways"]):
            points = tuple((float(row["tokens"]), max(1e-3, float(row["ways"][place]["ms"]))) for row in mine)
            lines.append(Line(f"{VERBS[way['op']]}, {way['ids']} ({way['backend']}, {way['memory']})", points))
        if mine[0]["at_theory_ms"]:
            lines.append(
                Line("at the link's theory", tuple((float(r["tokens"]), float(r["at_theory_ms"])) for r in mine))
            )
        title = f"Predicted handoff of one rank, blocks of {block} tokens"
        charts.append(LineChart(title, "prompt tokens", "ms", tuple(lines), log_x=True, log_y=True))
    return charts


def _short(value: float | None) -> str:
    return number(value)
