"""report.html: it escapes what it did not write itself, says what is missing, and fetches nothing."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib import resources
from types import SimpleNamespace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from pdbench.probe.sampler import Edge
from pdbench.report import html, measured, page, series, time_figures
from pdbench.report.figures import plain
from pdbench.report.markup import Markup, script_json, tag
from pdbench.report.material import material
from pdbench.report.series import Line, thinned
from pdbench.sweep import measure
from tests.report_views.made_run import bare_summary, cell_summary, grid_summary, run_of

PACKED = page._library  # before the tests put a word in its place
HOSTILE = "<img src=x onerror=boom()> </script><script>boom()</script> \" ' & %{y} \x1b[31m"
ALLOWED_TAGS = {
    *("html", "head", "meta", "title", "style", "script", "body", "header", "main", "section", "h1", "h2", "h3", "p"),
    *("b", "i", "a", "ul", "li", "dl", "dt", "dd", "div", "span", "small", "code", "article", "details", "summary"),
    *("label", "select", "option"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "button"),
}


class Tags(HTMLParser):
    """The elements of a page, the text outside scripts, and every attribute."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, name: str, attributes: Any) -> None:
        self.found.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] not in ("script", "style"):
            self.text.append(data)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [attributes for found, attributes in self.found if found == name]


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    """The megabyte of the drawing library is tested in the browser."""
    monkeypatch.setattr(page, "_library", lambda: "library")


def page_of(tmp_path, summary, **run: Any) -> str:
    return html.render_html(summary, run_of(tmp_path / "run", summary, requests_a_cell=5, **run))


def figures_of(page: str) -> list[dict[str, Any]]:
    text = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert text
    found: list[dict[str, Any]] = json.loads(text[1])
    return found


def test_the_legend_explains_the_signs_that_are_there(tmp_path):
    some = {**grid_summary(), "cells": [cell_summary(0, 2, 1024)]}
    bounded = {f"{metric}_ms_interval": {} for metric in ("ttft", "tpot", "itl", "e2el")}
    none = {**some, "cells": [cell_summary(0, 2, 1024, **bounded)]}
    open_ended = {"ttft_ms_interval": {"p50": [20.0, None]}}
    unbounded = {**some, "cells": [cell_summary(0, 2, 1024, **open_ended)]}
    for name, summary, signs in (("a", some, {"\u00b1 is"}), ("b", none, set()), ("c", unbounded, {"+? means"})):
        text = "".join(Tags(page_of(tmp_path / name, summary)).text)
        assert {sign for sign in ("\u00b1 is", "+? means", "\u201cneeds N", ">x is") if sign in text} == signs, name


def test_the_legend_has_the_rate_that_slots_were_counted_with(tmp_path):
    """A closed loop is asked no rate."""
    loops = {"open": [2.0], "closed": [None], "both": [2.0, None]}
    for name, rates in loops.items():
        cells = [
            cell_summary(i, 2, 1024, request_rate=rate, loop=None, max_concurrency=4) for i, rate in enumerate(rates)
        ]
        text = "".join(Tags(page_of(tmp_path / name, {**grid_summary(), "cells": cells})).text)
        said = re.findall(r"needed = ([a-z() ]+ rate) ", text)
        assert said == [{"open": "asked rate", "closed": "achieved rate", "both": "asked (achieved) rate"}[name]]


def test_a_page_that_is_missing_all_along_is_told_once():
    run, cell = SimpleNamespace(document={"notes": []}), SimpleNamespace(cell=0)
    for missing in (("decode-0: refused",), ("decode-0: refused", "prefill-0: refused")):
        measure._note(run, cell, Edge(missing, 0.1))
    told = run.document["notes"]
    assert told == ["cell 0: no metrics from decode-0: refused", "cell 0: no metrics from prefill-0: refused"]
    page = measured.measured(grid_summary(), {"notes": [told[0], told[0], told[1]]})
    assert [str(page).count(note) for note in told] == [1, 1], "an older run has it twice"


def test_a_flag_is_no_place_for_a_new_line(tmp_path):
    advice = "Raise --max-num-seqs on decode, not - or a--b."
    page = page_of(tmp_path, {**grid_summary(), "verdict": advice})
    assert 'Raise <span class="flag">--max-num-seqs</span> on decode, not - or a--b.' in page
    assert advice in "".join(Tags(page).text), "what is copied is what was said"
    assert "<span" not in tag("option", advice) + tag("title", advice)


def test_a_void_code_is_not_said_again_as_its_cause(tmp_path):
    void = {"code": "decode-recomputed", "severity": "void", "evidence": "all of it"}
    cause = {"cause": "decode-recomputed", "evidence": ["all of it"], "advice": "Look."}
    cell = cell_summary(0, 2, 1024, validity=[void], diagnosis=[cause], verdict="")
    page = page_of(tmp_path, {**grid_summary(), "cells": [cell]})
    spoken = page.partition('<ul class="cells">')[2].partition("</ul>")[0]
    assert spoken.count("decode-recomputed") == 1


def test_the_frame_has_its_colour_from_the_diagnosis_and_a_badge_judges_the_measurement(tmp_path):
    cause = {"cause": "decode-slots", "share": 0.9, "evidence": ["full"], "advice": "Look."}
    for tone, found in (("ok", []), ("warn", [cause])):
        cells = [cell_summary(0, 2, 1024, diagnosis=found)]
        page = page_of(tmp_path / tone, {**grid_summary(), "cells": cells})
        assert f'class="verdict {tone}"' in page and '<span class="mark ok">valid</span>' in page
        assert ("decode-slots (90% of TTFT)" in page) == bool(found)


def test_one_value_alone_has_no_colour_and_a_needed_number_says_of_what(tmp_path):
    few = cell_summary(0, 1, 1024)
    del few["median_ttft_ms"]
    few["needs"] = {"p99_ttft_ms": 299, "p90_ttft_ms": 29}
    one, other = cell_summary(1, 2, 1024), cell_summary(2, 4, 1024)
    hot = [
        page_of(tmp_path / str(n), {**grid_summary(), "cells": cells})
        .partition('class="heat latency"')[2]
        .partition("</table>")[0]
        .count('class="hot')
        for n, cells in enumerate(([few, one], [few, one, other]))
    ]
    assert hot == [0, 2]
    page = page_of(tmp_path / "few", {**grid_summary(), "cells": [few, one]})
    assert "needs 299 requests" in "".join(Tags(page).text) and "<b>needs" not in page


def test_the_verdict_comes_first_and_the_sections_in_order(tmp_path):
    page = page_of(tmp_path, grid_summary())
    names = [attributes["id"] for attributes in Tags(page).named("h2")]
    assert names[:6] == ["verdict", "grid", "split", "latency", "capacity", "time"]
    assert names[6:] == ["itl", "each", "validity", "diagnosis", "measured"]
    assert page.index("Decode has too few slots above 6 req/s") < page.index("SIMULATED</b>") < page.index("The grid")


def test_what_was_not_written_here_is_text(tmp_path):
    summary = grid_summary(targets=(HOSTILE, "b"))
    summary |= {"verdict": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    for cell in summary["cells"]:
        cell["verdict"] = HOSTILE
        cell["validity"] = [{"code": HOSTILE, "severity": "void", "evidence": HOSTILE}]
        cell["diagnosis"] = [
            {"cause": HOSTILE, "share": 0.5, "evidence": [HOSTILE], "advice": HOSTILE, "confirm": HOSTILE}
        ]
    facts = {"version": HOSTILE, "models": [HOSTILE], "notes": [HOSTILE]}
    server = {"name": HOSTILE, "role": "decode", "url": HOSTILE, "facts": facts}
    target = {"target": HOSTILE, "model": HOSTILE, "source": HOSTILE, "servers": [server]}
    page = page_of(tmp_path, summary, command=HOSTILE, notes=[HOSTILE], deployments=[target], host={"python": HOSTILE})
    tags = Tags(page)
    assert {name for name, _ in tags.found} <= ALLOWED_TAGS
    assert not [a for _, attributes in tags.found for a in attributes if a.startswith("on") or a in ("src", "srcset")]
    scripts = [attributes.get("id") for attributes in tags.named("script")]
    assert scripts == ["requests", None, "library", "figures", None]  # the explorer and its data, the library, the page
    assert "boom()" in "".join(tags.text)
    assert "\x1b" not in page
    assert "<img" not in json.dumps(figures_of(page))


def test_a_policy_forbids_everything_from_outside(tmp_path):
    page = page_of(tmp_path, grid_summary())
    policies = [a["content"] for a in Tags(page).named("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"]
    assert not re.search(r"(?:src|href)=[\"']?(?!#)", page.replace('href="#', ""))


def test_missing_data_is_said_and_draws_no_figure(tmp_path):
    page = page_of(tmp_path, bare_summary(), metrics=False, plan={})
    assert page.count("Not measured: ") >= 6
    assert 'id="library"' not in page
    assert figures_of(page) == []


@pytest.mark.parametrize("key", sorted(cell_summary(0, 8, 16384)))
def test_any_key_of_a_cell_may_be_absent(tmp_path, key):
    cell = cell_summary(0, 8, 16384)
    run = run_of(tmp_path / "run", {"simulated": False, "cells": [dict(cell)]}, requests_a_cell=2, metrics=False)
    del cell[key]
    page = html.render_html({"schema": 1, "simulated": False, "cells": [cell]}, run)
    assert "None" not in "".join(Tags(page).text)


def test_runs_without_cells_servers_or_facts(tmp_path):
    summary = {"schema": 1, "simulated": False, "cells": []}
    page = page_of(tmp_path, summary, deployments=[], host=None, notes=None, interrupted=True)
    assert "No cell was measured." in page and "INTERRUPTED" in page


def test_a_void_cell_is_hatched_struck_and_hollow(tmp_path):
    page = page_of(tmp_path, grid_summary())
    tags = Tags(page)
    assert len([a for a in tags.named("td") if a.get("class") == "voided"]) == 3  # one field in each map
    assert not [
        a for a in tags.named("td") if "hot" in (a.get("class") or "") and "8 req/s x 16,384" in a.get("title", "")
    ]
    assert [a for a in tags.named("tr") if a.get("class") == "voided"]
    latencies = [f for f in figures_of(page) if ", ms" in f["layout"]["yaxis"]["title"].get("text", "")]
    symbols = {t["marker"].get("symbol") for f in latencies[:-1] for t in f["data"] if t.get("mode") == "markers"}
    assert symbols and all(symbol.endswith("-open") for symbol in symbols)


def test_a_negative_unexplained_part_is_drawn_left_of_zero(tmp_path):
    bars = [
        trace
        for figure in figures_of(page_of(tmp_path, grid_summary()))
        for trace in figure["data"]
        if trace["type"] == "bar"
    ]
    unexplained = next(trace for trace in bars if trace["name"] == "unexplained")
    assert unexplained["x"][0] == -1.7
    assert unexplained["marker"]["pattern"]["shape"] == ["x"] * 8


def test_tables_name_their_rows_and_columns_and_take_focus(tmp_path):
    tags = Tags(page_of(tmp_path, grid_summary()))
    assert all(attributes.get("scope") in ("col", "row", "colgroup") for attributes in tags.named("th"))
    assert len(tags.named("caption")) == len(tags.named("table"))
    for attributes in tags.named("div"):
        if {"scroll", "plot"} & set((attributes.get("class") or "").split()):
            assert attributes["tabindex"] == "0" and attributes["aria-label"] and attributes["role"]


def test_closed_loop_has_streams_on_its_axis(tmp_path):
    summary = grid_summary()
    for cell in summary["cells"]:
        cell |= {"loop": "closed", "max_concurrency": int(cell.pop("request_rate"))}
    page = page_of(tmp_path, summary)
    assert "CLOSED LOOP" in page
    assert any("streams (closed loop)" in json.dumps(figure) for figure in figures_of(page))
    assert "requests/s asked" not in page


def test_long_series_keep_their_peaks_and_few_points():
    t = np.arange(100_000.0)
    value = np.zeros(100_000)
    value[77_777] = 42
    few_t, few = thinned(t, value)
    assert len(few) <= series.MAX_POINTS
    assert few.max() == 42 and few_t[few.argmax()] == 77_777
    assert (np.diff(few_t) > 0).all()


def test_servers_of_a_role_add_up_though_scraped_at_different_times(tmp_path):
    summary = grid_summary(rates=(1,), lens=(1024,))
    run = run_of(tmp_path / "run", summary, requests_a_cell=2, metrics=False)
    rows = [
        ["vllm:num_requests_waiting", "waiting", "gauge", "0", "{}", 1.0],
        ["x", "waiting", "gauge", "1", "{}", 2.0],
    ]
    with run.live_path("metrics", 1, 0).open("w") as file:
        for t, name in ((0.0, "a"), (0.2, "b"), (1.0, "a")):
            file.write(json.dumps({"t": t, "target": "testbed", "server": name, "role": "decode", "rows": rows}) + "\n")
    (line,) = series.gauge_lines(material(run).metrics)
    assert (line.servers, line.t_s.tolist(), line.value.tolist()) == (2, [0.2, 1.0], [6.0, 6.0])
    assert isinstance(line, Line)


def test_gap_curves_are_small_and_exact_where_they_are(tmp_path):
    summary = grid_summary(rates=(1,), lens=(1024,))
    run = run_of(tmp_path / "run", summary, requests_a_cell=30)
    curve = series.gap_curves((read := material(run)).requests["cell"], read.events)[0]
    gaps = np.concatenate([np.diff(np.asarray(o)) * 1000 for o in run.table("chunks")["offset_s"]])
    assert curve.gaps == len(gaps) == 30 * 127
    assert len(curve.ms) <= series.CURVE_POINTS
    for ms, longer in zip(curve.ms, curve.longer, strict=True):
        assert (gaps > ms + 1e-9).mean() <= longer <= (gaps >= ms - 1e-9).mean() + 1e-9


def test_json_cannot_end_its_script():
    text = script_json({"a": "</script><!-- \u2028 &"})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": "</script><!-- \u2028 &"}
    with pytest.raises(ValueError):
        script_json(float("nan"))


def test_markup_escapes_all_but_itself():
    assert tag("p", "<b>", Markup("<i>"), title='"<') == '<p title="&quot;&lt;">&lt;b&gt;<i></p>'
    assert tag("p", "a ", tag("b", "c"), " d") == "<p>a <b>c</b> d</p>"


def test_every_figure_is_one_that_plotly_knows(tmp_path):
    """Figures are written as plotly.js reads them; plotly's own package knows every name and value there is."""
    summary = grid_summary(rates=(1, 2, 8), lens=(1024, 16384))
    shown = figures_of(page_of(tmp_path, {**summary, "plan": {**summary["plan"], "goodput_ms": {"ttft": 900.0}}}))
    assert {trace["type"] for figure in shown for trace in figure["data"]} == {"bar", "scatter"} and len(shown) > 8
    for figure in shown:
        go.Figure(figure["data"], figure["layout"])
        for choice in figure["choices"]:
            go.Figure(choice["data"], choice["layout"])
    with pytest.raises(ValueError, match="colour"):
        go.Figure([{**shown[0]["data"][0], "colour": "red"}], shown[0]["layout"])


def test_plotly_gets_no_markup_and_no_template():
    assert not set(plain("<a href='x'>%{y}</a>")) & set("<>")
    assert "%{" not in plain("%{y}")


def test_gaps_of_one_read_are_left_of_the_axis_and_counted(tmp_path):
    summary = grid_summary(rates=(1,), lens=(1024,))
    run = run_of(tmp_path / "run", summary, requests_a_cell=10, metrics=False)
    found = series.gap_curves((read := material(run)).requests["cell"], read.events)
    curve = dataclasses.replace(found[0], ms=np.maximum(found[0].ms * 1e-3, 1e-3), in_one_read=0.25)
    (figure,) = time_figures.gap_figures({0: curve}, summary["cells"])
    assert 10 ** figure.document["layout"]["xaxis"]["range"][0] >= 0.0999
    assert "25.0% of them are below 0.1 ms" in figure.note
    gaps = np.concatenate([np.diff(np.asarray(o)) * 1000 for o in run.table("chunks")["offset_s"]])
    assert found[0].in_one_read == (gaps < 0.1).mean()


def test_the_title_says_what_was_measured_and_when(tmp_path):
    page = page_of(tmp_path, grid_summary(targets=("default",)))
    assert "<title>SIMULATED \u00b7 pdbench \u00b7 qwen3-32b \u00b7 pull \u00b7 2026-09-21</title>" in page
    assert "good: TTFT &lt;= 2,000 ms and TPOT &lt;= 30 ms." in page


def test_with_several_targets_every_row_names_its_target(tmp_path):
    page = page_of(tmp_path, grid_summary(targets=("pull", "push")))
    rows = [row for row in re.findall("<tr.*?</tr>", page) if re.search('scope="row">#', row)]
    assert len(rows) > 24
    assert all("pull" in row or "push" in row for row in rows)


def test_a_long_attribute_is_not_cut_and_a_hostile_one_is_escaped():
    path = "M" + ",".join(f"{x},{x}" for x in range(20_000))
    assert tag("path", d=path) == f'<path d="{path}"></path>'
    assert tag("p", title='a"\x1b[31m\u202eb') == '<p title="a&quot;b"></p>'


def test_the_library_is_the_published_bundle_with_its_licence():
    folder = resources.files("pdbench.report").joinpath("vendor")
    packed = folder.joinpath("plotly-basic.min.js.gz").read_bytes()
    library = gzip.decompress(packed)
    assert hashlib.sha256(library).hexdigest() == "99784e3abfb07b142a15e521a439e6d9addceadb3f79553fd24c72774f0649ba"
    assert b"</script" not in library
    assert "MIT License" in folder.joinpath("plotly-basic.LICENSE").read_text()
    assert re.search(rb"plotly.js \(basic - minified\) v4\.1\.1", library[:300])
    assert base64.b64decode(PACKED()) == packed
