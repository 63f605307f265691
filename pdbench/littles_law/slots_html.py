"""The answer of `pdbench slots` as a page that needs no network: the verdict, two curves, the figures, the doubts."""

from __future__ import annotations

from importlib import resources
from typing import Any

from pdbench.littles_law.plan_charts import Line, LineChart
from pdbench.littles_law.plan_svg import line_chart
from pdbench.littles_law.slots_text import figure, figures, headline, ms, validity
from pdbench.report.markup import Child, Markup, table, tag

Document = dict[str, Any]

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(documents: list[Document]) -> str:
    """One page for one question, or for all cells of a run."""
    style = resources.files("pdbench.littles_law").joinpath("plan.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", "pdbench slots"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("header", tag("h1", tag("span", "pdbench", class_="brand"), " slots")),
        tag("main", [_part(document, len(documents) > 1) for document in documents]),
        tag("footer", "Computed, not measured."),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _part(document: Document, named: bool) -> Child:
    title = None
    if named:
        prompt = document.get("prompt_len")
        title = tag("h2", f"{figure(document['qps'])} req/s" + (f", prompts of {prompt} tokens" if prompt else ""))
    return tag(
        "section",
        title,
        tag("p", doubt) if "request_rate" in document and (doubt := validity(document)) else None,
        tag("p", headline(document), class_="answer"),
        [tag("div", tag("h3", chart.title), line_chart(chart)) for chart in charts(document)],
        table(("what", "figure", "how"), figures(document), caption="The figures"),
        tag("ul", [tag("li", warning["text"]) for warning in document["warnings"]]),
    )


def charts(document: Document) -> list[LineChart]:
    found = []
    slo = document["slo_wait_p99_ms"]
    if document.get("curve"):
        points = document["curve"]
        p99 = tuple((100 * point["utilisation"], point["p99_ms"]) for point in points)
        mean = tuple((100 * point["utilisation"], point["mean_ms"]) for point in points)
        here = 100 * document["utilisation"]
        top = max(wait for _, wait in p99)
        found.append(
            LineChart(
                title=f"Wait against utilisation ({document['curve_method']})",
                x_name="utilisation, %",
                y_name="wait, ms",
                lines=(Line("p99", p99), Line("mean", mean), Line("you are here", ((here, 0.0), (here, top)))),
                marks=((f"SLO {ms(slo)}", slo),),
            )
        )
    if document.get("slots_curve"):
        p99 = tuple((float(point["max_num_seqs"]), point["p99_ms"]) for point in document["slots_curve"])
        found.append(
            LineChart(
                title="p99 wait against max-num-seqs at this rate (by formula)",
                x_name="max-num-seqs",
                y_name="p99 wait, ms",
                lines=(Line("p99", p99),),
                marks=((f"SLO {ms(slo)}", slo),),
            )
        )
    return found
