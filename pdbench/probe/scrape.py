"""One metrics page as rows: filter the lines first, then identify the few that matter.

A page of 5,000 lines holds some 150 of interest. A line is thrown away by one look-up of its name; of a line that
stays, prometheus_client parses name and labels once per process (they are the same at every scrape), after that only
the number is read. Rows carry the engine's own name beside the canonical one, so that a report needs no engine tables.

From scrape to scrape a page differs in its numbers alone, as a rule. `Reader` looks whether each sample that matters
stands in its line of a page of as many lines, and reads the number; where anything differs, and where the server was
started anew, it looks at every line. (While a server runs it adds series; none turns into another in its place.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
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
    rows_json: str = ""  # the rows as JSON, without the brackets around them


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

    @property
    def family(self) -> tuple[str, str]:
        """The same for all names that a family has had."""
        return self.meaning.series.canonical, self.meaning.series.before or self.meaning.series.names[0]


@dataclass(frozen=True, slots=True)
class _Found:
    """A sample that matters: the number of its line, and that up to its number, with the blank before it."""

    identity: _Identity
    value: float
    line: int
    head: bytes


@cache
def _meanings(engine: str | None, edge: bool) -> Mapping[bytes, tuple[_Meaning, ...]]:
    """Every sample name worth reading: as the engine writes it, and as Ray does (with `ray_`, or `_` for `:`)."""
    found: dict[bytes, tuple[_Meaning, ...]] = {}
    for vocabulary in vocabularies(engine):
        for series in vocabulary.series:
            if series.edge_only and not edge:
                continue
            for age, family in enumerate(series.names, start=1 if series.before else 0):
                flat = family.replace(":", "_")
                for suffix, kind in _suffixes(series.kind, edge).items():
                    for name in {family, flat, f"ray_{flat}", f"ray_{family}"}:
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
    copies = () if series.shares else words.copy_labels
    unsaid = {*words.rank_labels, *copies, *(name for name, _ in series.where)}
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
        copy=tuple(int(labels[n]) if labels.get(n, "").isdecimal() else 0 for n in copies),
    )


def _json(labels: Mapping[str, str]) -> str:
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def read_page(engine: str | None, page: bytes, *, model: str | None = None, edge: bool = False) -> Page:
    """The rows of a page. `edge`: with buckets and with what cannot change while a cell runs.

    Raises BadPage when the page is cut (its last line has no end) or a line that matters is no sample.
    """
    layout, values = _read(engine, page, model, edge=edge)
    return layout.page(values)


def _lines(page: bytes) -> list[bytes]:
    if page and not page.endswith(b"\n"):
        raise BadPage("the page is cut: its last line has no end")
    return page.splitlines()


def _samples(engine: str | None, lines: list[bytes], edge: bool) -> tuple[list[_Found], set[int]]:
    """The samples that matter, and the lines of those that are no finite numbers."""
    names = _meanings(engine, edge)
    found: list[_Found] = []
    dropped: set[int] = set()
    for number, line in enumerate(lines):
        name, brace, _ = line.partition(b"{")
        if (name if brace else line.partition(b" ")[0]) not in names:
            continue
        head, value = _split(line)
        identity = _identify(engine, head)
        if identity is None:
            continue
        if math.isfinite(value):
            found.append(_Found(identity, value, number, line[: len(head) + 1]))
        else:
            dropped.add(number)
    return found, dropped


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
        return [one for one in found if one.identity.model in (None, wanted)], False
    return found, True


def _newest(found: list[_Found]) -> list[_Found]:
    """Without the old names of families that are also there under a newer one."""
    best: dict[tuple[str, str], int] = {}
    for one in found:
        age, family = one.identity.meaning.age, one.identity.family
        best[family] = min(age, best.get(family, age))
    return [one for one in found if one.identity.meaning.age == best[one.identity.family]]


def _without_copies(found: list[_Found]) -> list[_Found]:
    """Of a figure that several tensor- or pipeline-parallel ranks repeat, the lowest rank's."""
    if not any(one.identity.copy for one in found):
        return found
    lowest: dict[tuple[str, ...], _Found] = {}
    for one in found:
        key = (one.identity.metric, one.identity.engine, one.identity.model_labels)
        if key not in lowest or one.identity.copy < lowest[key].identity.copy:
            lowest[key] = one
    return list(lowest.values())


@dataclass(frozen=True, slots=True)
class _Column:
    """How a sample becomes a row: which sample, the columns before the value, the same as JSON, the unit."""

    sample: int
    columns: tuple[str, str, str, str, str]
    json: str
    scale: float


@dataclass(frozen=True, slots=True)
class _Layout:
    """A page but for its numbers. Of each sample that matters: its line, that line up to the number, and how long that
    is. `constant`: the lines that matter and have no finite number."""

    lines: int
    places: list[int]
    heads: list[bytes]
    starts: list[int]
    constant: dict[int, bytes]
    columns: list[_Column]
    started: int | None  # which sample tells when the server was started
    models: tuple[str, ...]

    def page(self, values: list[float]) -> Page:
        scaled = [values[one.sample] * one.scale for one in self.columns]
        rows = [(*one.columns, value) for one, value in zip(self.columns, scaled, strict=True)]
        text = ",".join([f"{one.json}{value!r}]" for one, value in zip(self.columns, scaled, strict=True)])
        return Page(tuple(rows), len(self.constant), self.models, text)


class Reader:
    """Reads the pages of one server, one after the other; between the edges of a cell only."""

    def __init__(self, engine: str | None, model: str | None) -> None:
        self._engine, self._model = engine, model
        self._last: tuple[_Layout, list[float]] | None = None

    def read(self, page: bytes) -> Page:
        """The rows of a page. Raises BadPage as `read_page` does."""
        if self._last is not None and (values := _numbers(page, *self._last)) is not None:
            self._last = self._last[0], values
        else:
            self._last = _read(self._engine, page, self._model, edge=False)
        layout, values = self._last
        return layout.page(values)


def _read(engine: str | None, page: bytes, model: str | None, *, edge: bool) -> tuple[_Layout, list[float]]:
    lines = _lines(page)
    found, dropped = _samples(engine, lines, edge)
    models = tuple(sorted({one.identity.model for one in found if one.identity.model is not None}))
    kept, by_model = _of_model(found, models, model)
    place = {one.line: number for number, one in enumerate(found)}
    columns = [_column(place[one.line], one.identity, by_model) for one in _without_copies(_newest(kept))]
    layout = _Layout(
        lines=len(lines),
        places=[one.line for one in found],
        heads=[one.head for one in found],
        starts=[len(one.head) for one in found],
        constant={number: lines[number] for number in dropped},
        columns=columns,
        started=next((one.sample for one in columns if one.columns[1] == "process_start_s"), None),
        models=models,
    )
    return layout, [one.value for one in found]


def _numbers(page: bytes, layout: _Layout, former: list[float]) -> list[float] | None:
    """The numbers of a page that differs in nothing else; None when it does, or when the server was started anew."""
    lines = _lines(page)
    if len(lines) != layout.lines or any(lines[number] != line for number, line in layout.constant.items()):
        return None
    mine = [lines[number] for number in layout.places]
    if not all(map(bytes.startswith, mine, layout.heads)):
        return None
    texts = [line[start:] for line, start in zip(mine, layout.starts, strict=True)]
    try:
        values = list(map(float, texts))
    except ValueError:  # a timestamp behind it, or no number at all
        return None
    if not all(map(math.isfinite, values)) or b"_" in b"".join(texts):
        return None
    same = layout.started is None or values[layout.started] == former[layout.started]
    return values if same else None


def _column(sample: int, one: _Identity, by_model: bool) -> _Column:
    labels = one.model_labels if by_model else one.labels
    columns = (one.metric, one.meaning.series.canonical, one.meaning.kind, one.engine, labels)
    scale = 1.0 if one.meaning.kind in ("count", "bucket") else one.meaning.series.scale
    return _Column(sample, columns, json.dumps(columns, separators=(",", ":"))[:-1] + ",", scale)


# The seam: a page of each engine as rows. `any` is for an engine that is not known.
SCRAPES: dict[str, Callable[..., Page]] = {
    "any": partial(read_page, None),
    **{engine: partial(read_page, engine) for engine in ENGINES},
}


def scrape_of(engine: str | None) -> Callable[..., Page]:
    return SCRAPES.get(engine or "any", SCRAPES["any"])
