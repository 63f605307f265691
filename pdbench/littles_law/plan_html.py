"""A plan as one page that needs no network: the answer, its charts as inline SVG, its tables and remarks."""

from __future__ import annotations

from importlib import resources

from pdbench.littles_law.plan_charts import StateMap
from pdbench.littles_law.plan_svg import line_chart
from pdbench.littles_law.plan_text import Plan
from pdbench.report.markup import Child, Markup, table, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# What each state of a map is called, and the mark that tells it without colour.
STATES = {
    "both": ("\N{CHECK MARK}", "both SLOs hold"),
    "ttft": ("T", "TTFT fails"),
    "tpot": ("D", "TPOT fails"),
    "neither": ("\N{MULTIPLICATION SIGN}", "both fail"),
    "overload": ("\N{INFINITY}", "overload: a queue grows without end"),
}


def page(plan: Plan, name: str = "plan", origin: str = "Computed, not measured.") -> str:
    """A whole document; `origin` says where its figures come from."""
    drawn: list[Child] = []
    for chart in plan.charts:
        drawn.append(
            tag("section", tag("h2", chart.title), _map(chart) if isinstance(chart, StateMap) else line_chart(chart))
        )
    tables = [table(each.heads, each.rows, caption=each.title) for each in plan.tables]
    remarks = tag("ul", [tag("li", remark) for remark in plan.remarks]) if plan.remarks else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"pdbench {name}"),
        Markup(f"<style>{_style()}</style>"),
    )
    body = tag(
        "body",
        tag("header", tag("h1", tag("span", "pdbench", class_="brand"), f" {name}")),
        tag("main", tag("p", plan.answer, class_="answer"), drawn, tag("section", tables), remarks),
        tag("footer", origin),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _style() -> str:
    return resources.files("pdbench.littles_law").joinpath("plan.css").read_text(encoding="utf-8")


def _map(chart: StateMap) -> Markup:
    head = tag("tr", tag("th", chart.y_name, scope="col"), [tag("th", label, scope="col") for label in chart.x_labels])
    top = tag("tr", tag("td"), tag("th", chart.x_name, scope="colgroup", colspan=len(chart.x_labels)))
    rows = []
    for label, states, words in zip(chart.y_labels, chart.states, chart.words, strict=True):
        cells = [
            tag("td", tag("b", STATES[state][0]), tag("small", word) if word else None, class_=f"state {state}",
                title=f"{label}, {column}: {STATES[state][1]}")
            for column, state, word in zip(chart.x_labels, states, words, strict=True)
        ]  # fmt: skip
        rows.append(tag("tr", tag("th", label, scope="row"), cells))
    whole = tag("table", tag("thead", top, head), tag("tbody", rows), class_="map")
    used = {state for row in chart.states for state in row}
    keys = [
        tag("li", tag("i", mark, class_=f"state {state}"), f" {word}")
        for state, (mark, word) in STATES.items()
        if state in used
    ]
    frame = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=chart.title)
    return tag("div", tag("ul", keys, class_="keys"), frame)
