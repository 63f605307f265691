"""Files with one value changed into anything: they are imported, or refused in one sentence. Nothing else happens."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.errors import PdbenchError
from pdbench.report.html import render_html
from pdbench.report.imports.formats import read_one
from pdbench.report.imports.write import write_run
from pdbench.report.markdown import render_markdown
from pdbench.report.summary import summarise
from tests.imports.test_import import FILES

SMALL = {
    "vllm": "vllm-detailed-1.json",
    "plain": "vllm-plain.json",
    "sglang": "sglang.jsonl",
    "guidellm": "guidellm.json",
}
SMALL |= {"aiperf": "aiperf/profile_export_aiperf.json", "stage": "inference-perf/stage_0_lifecycle_metrics.json"}
SMALL |= {"per-request": "inference-perf/per_request_lifecycle_metrics.json"}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
    st.just({}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document; of a long list its first items."""
    if isinstance(value, dict):
        return [path, *(place for key, item in value.items() for place in places(item, (*path, key)))]
    if isinstance(value, list):
        return [path, *(place for key, item in enumerate(value[:3]) for place in places(item, (*path, key)))]
    return [path]


def put(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), value=ANYTHING)
def test_one_changed_value_is_imported_or_refused(tmp_path_factory, name, seed, value):
    document = json.loads((FILES / SMALL[name]).read_text())
    path = random.Random(seed).choice(places(document))
    folder: Path = tmp_path_factory.mktemp("mutated")
    try:
        file = folder / "file.json"
        file.write_text(json.dumps(put(document, path, value)))
        try:
            run = write_run(read_one(file), folder / "run", [file], "pdbench import")
            summary = summarise(run)
            assert render_html(summary, run) and render_markdown(summary, run)
        except PdbenchError as error:
            assert str(error)
            return
        json.dumps(summary, allow_nan=False)
    finally:
        shutil.rmtree(folder)
