"""The frame of every HTML page of pdbench: one file with its style, its figures and the library that draws them.

Nothing is fetched, and the page's own policy forbids it. The library is plotly.js' basic bundle (`vendor/`), which is a
quarter as large as the one in plotly's Python package, and packed: as text it would be three quarters of every report.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib import resources

from pdbench.report.figures import Figure
from pdbench.report.markup import Child, Markup, joined, script_json, tag

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
LIBRARY = "vendor/plotly-basic.min.js.gz"


def page(
    title: str,
    heading: Child,
    subtitle: str,
    body: Sequence[Child],
    drawn: Sequence[Figure] = (),
    style: str = "",
) -> str:
    """A whole document. `drawn` are the figures that `placed` put into `body`; `style` is what one view adds."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(part("page.css") + style)),
    )
    top = tag(
        "header", tag("h1", tag("span", "pdbench", class_="brand"), " ", heading), tag("p", subtitle, class_="note")
    )
    skip = tag("a", "Skip to the verdict", href="#verdict", class_="skip")
    whole = tag("body", skip, top, tag("main", body), _figures(drawn), tag("script", Markup(part("page.js"))))
    return f'<!doctype html>\n<html lang="en">{joined([head, whole])}</html>\n'


def section(identity: str, title: str, parts: Sequence[Child]) -> Markup:
    return tag("section", tag("h2", title, id=identity), parts, aria_labelledby=identity)


def missing(what: str) -> Markup:
    """Where something would stand that was not measured."""
    return tag("p", f"Not measured: {what}.", class_="note missing")


def placed(figure: Figure, drawn: list[Figure]) -> Markup:
    """The place of a figure, which joins `drawn`; the page's script draws it there."""
    drawn.append(figure)
    name = f"figure-{len(drawn) - 1}"
    height = figure.document["layout"].get("height", 330)
    plot = tag(
        "div",
        class_="plot",
        id=name,
        tabindex="0",
        role=figure.role,
        aria_label=figure.spoken,
        style=f"height:{height}px",
    )
    controls: list[Child] = []
    if figure.choices:
        options = [
            tag("option", choice, value=place, selected=place == figure.chosen)
            for place, (choice, _) in enumerate(figure.choices)
        ]
        controls.append(tag("label", f"{figure.choice_of} ", tag("select", options, data_figure=name)))
    if figure.other:
        controls.append(tag("button", figure.other[0], type="button", aria_pressed="false", data_figure=name))
    caption = tag("figcaption", figure.title, controls) if figure.title or controls else None
    keys = [tag("li", tag("i", style=f"background:{colour}"), key) for colour, key in figure.keys]
    note = tag("p", figure.note, class_="note") if figure.note else None
    return tag("figure", caption, tag("ul", keys, class_="keys") if keys else None, plot, note)


def part(name: str) -> str:
    """A file that comes with this package."""
    return resources.files("pdbench.report").joinpath(name).read_text(encoding="utf-8")


def _figures(drawn: Sequence[Figure]) -> list[Markup]:
    data = [
        {
            **shown.document,
            "other": shown.other and shown.other[1],
            "choices": [document for _, document in shown.choices],
        }
        for shown in drawn
    ]
    library = [tag("script", Markup(_library()), type="application/gzip", id="library")] if drawn else []
    return [*library, tag("script", script_json(data), type="application/json", id="figures")]


def _library() -> str:
    """The library in gzip and base64, which page.js unpacks."""
    return base64.b64encode(resources.files("pdbench.report").joinpath(LIBRARY).read_bytes()).decode()
