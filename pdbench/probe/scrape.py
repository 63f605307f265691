"""One metrics page as rows: filter the lines first, then identify the few that matter.

A page of 5,000 lines holds some 150 of interest. A line is thrown away by one look-up of its name; of a line that
stays, prometheus_client parses name and labels once per process (they are the same at every scrape), after that only
the number is read. Rows carry the engine's own name beside the canonical one, so that a report needs no engine tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from prometheus_client.parser import text_string_to_metric_families

from pdbench.probe.vocabulary import ENGINES, Series, Vocabulary, vocabularies

Row = tuple[str, str, str, str, str, float]  # metric, canonical, kind, engine, labels as JSON, value


class BadPage(Exception):
    """The page is cut or is no metrics page: the scrape failed, and nothing of it is kept."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one scrape said. `dropped` samples were NaN or infinite; `models` are the names on the page."""

    rows: tuple[Row, ...]
    dropped: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a sample name stands for, by one vocabulary."""

    vocabulary: Vocabulary
    series: Series
    kind: str
    age: int  # 0: the newest name of the series


@dataclass(frozen=True, slots=True)
class _Identity:
    """A sample's name and labels, understood."""

    metric: str
    meaning: _Meaning
    engine: str
    model: str | None
    labels: str  # as JSON
    model_labels: str  # the same with the model's label, for a page where only that tells two series apart
    copy: tuple[int, ...]  # tensor and pipeline ranks that repeat a figure


_Found = tuple[_Identity, float]


@cache
def _meanings(engine: str | None, edge: bool) -> Mapping[bytes, tuple[_Meaning, ...]]:
    """Every sample name worth reading: as the engine writes it, and as Ray does (`:` becomes `_`, `ray_` before it)."""
    found: dict[bytes, tuple[_Meaning, ...]] = {}
    for vocabulary in vocabularies(engine):
        for series in vocabulary.series:
            if series.edge_only and not edge:
                continue
            for age, family in enumerate(series.names):
                flat = family.replace(":", "_")
                for suffix, kind in _suffixes(series.kind, edge).items():
                    for name in {family, flat, f"ray_{flat}"}:
                        key = (name + suffix).encode()
                        found[key] = (*found.get(key, ()), _Meaning(vocabulary, series, kind, age))
    return found


def _suffixes(kind: str, edge: bool) -> Mapping[str, str]:
    if kind == "histogram":
        return {"_sum": "sum", "_count": "count"} | ({"_bucket": "bucket"} if edge else {})
    return {"": kind, "_total": kind} if kind == "counter" else {"": kind}


@lru_cache(maxsize=50_000)
def _identify(engine: str | None, head: bytes) -> _Identity | None:
    """Name and labels of a sample line, parsed by prometheus_client. None: not a sample we keep. Raises BadPage."""
    try:
        (family,) = text_string_to_metric_families(head.decode("utf-8", "replace") + " 0\n")
        (sample,) = family.samples
        labels = sample.labels
        for meaning in _meanings(engine, True).get(sample.name.encode(), ()):
            if all(labels.get(name) == value for name, value in meaning.series.where):
                return _identity(sample.name, labels, meaning)
    except (ValueError, KeyError, IndexError):
        raise BadPage("a line that is no sample") from None
    return None


def _identity(metric: str, labels: Mapping[str, str], meaning: _Meaning) -> _Identity:
    words, series = meaning.vocabulary, meaning.series
    unsaid = {*words.rank_labels, *words.copy_labels, *(name for name, _ in series.where)}
    kept = {name: value for name, value in labels.items() if name not in unsaid} | dict(series.add)
    if meaning.kind == "bucket":
        kept["le"] = repr(float(kept["le"]) * series.scale) if series.scale != 1.0 else kept["le"]
    return _Identity(
        metric=metric,
        meaning=meaning,
        engine=next((labels[name] for name in words.rank_labels if name in labels), ""),
        model=next((labels[name] for name in words.model_labels if name in labels), None),
        labels=_json({name: value for name, value in kept.items() if name not in words.model_labels}),
        model_labels=_json(kept),
        copy=tuple(int(labels[n]) if labels.get(n, "").isdecimal() else 0 for n in words.copy_labels),
    )


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def read_page(engine: str | None, page: bytes, *, model: str | None = None, edge: bool = False) -> Page:
    """The rows of a page. `edge`: with buckets and with what cannot change while a cell runs.

    Raises BadPage when the page is cut (its last line has no end) or a line that matters is no sample.
    """
    if page and not page.endswith(b"\n"):
        raise BadPage("the page is cut: its last line has no end")
    names = _meanings(engine, edge)
    found: list[_Found] = []
    dropped = 0
    for line in page.splitlines():
        name, brace, _ = line.partition(b"{")
        if (name if brace else line.partition(b" ")[0]) not in names:
            continue
        head, value = _split(line)
        identity = _identify(engine, head)
        if identity is None:
            continue
        if math.isfinite(value):
            found.append((identity, value))
        else:
            dropped += 1
    models = tuple(sorted({one.model for one, _ in found if one.model is not None}))
    kept, by_model = _of_model(found, models, model)
    return Page(tuple(_rows(_without_copies(_newest(kept)), by_model)), dropped, models)


def _split(line: bytes) -> tuple[bytes, float]:
    """`name{labels} value [timestamp]` as (name{labels}, value)."""
    end = line.rfind(b"}") + 1 or line.find(b" ")
    numbers = line[end:].split() if end > 0 else []
    try:
        if len(numbers) > 2 or b"_" in numbers[0]:
            raise ValueError
        return line[:end], float(numbers[0])
    except (ValueError, IndexError):
        raise BadPage("a sample without a number") from None


def _of_model(found: list[_Found], models: tuple[str, ...], wanted: str | None) -> tuple[list[_Found], bool]:
    """The samples of the wanted model, when a page tells of several; True when only the model tells some apart."""
    if len(models) < 2:
        return found, False
    if wanted in models:
        return [one for one in found if one[0].model in (None, wanted)], False
    return found, True


def _newest(found: list[_Found]) -> list[_Found]:
    """Without the old names of families that are also there under a newer one."""
    best: dict[tuple[str, str], int] = {}
    for one, _ in found:
        family = (one.meaning.series.canonical, one.meaning.series.names[0])
        best[family] = min(one.meaning.age, best.get(family, one.meaning.age))
    return [
        (one, value)
        for one, value in found
        if one.meaning.age == best[(one.meaning.series.canonical, one.meaning.series.names[0])]
    ]


def _without_copies(found: list[_Found]) -> list[_Found]:
    """Of a figure that several tensor- or pipeline-parallel ranks repeat, the lowest rank's."""
    if not any(one.copy for one, _ in found):
        return found
    lowest: dict[tuple[str, ...], _Found] = {}
    for one, value in found:
        key = (one.metric, one.engine, one.model_labels)
        if key not in lowest or one.copy < lowest[key][0].copy:
            lowest[key] = (one, value)
    return list(lowest.values())


def _rows(found: list[_Found], by_model: bool) -> Iterator[Row]:
    for one, value in found:
        meaning = one.meaning
        scaled = value if meaning.kind in ("count", "bucket") else value * meaning.series.scale
        labels = one.model_labels if by_model else one.labels
        yield one.metric, meaning.series.canonical, meaning.kind, one.engine, labels, scaled


# The seam: a page of each engine as rows. `any` is for an engine that is not known.
SCRAPES: dict[str, Callable[..., Page]] = {
    "any": partial(read_page, None),
    **{engine: partial(read_page, engine) for engine in ENGINES},
}


def scrape_of(engine: str | None) -> Callable[..., Page]:
    return SCRAPES.get(engine or "any", SCRAPES["any"])
