"""What a metrics page's names mean. An engine is a table of `Series`, not a class with behaviour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """One family of a page and the name under which every engine's rows are stored.

    `names` are the engine's own names without `_total`, `_sum`, `_count` and `_bucket`, the newest first: when a page
    shows a family under two of them, only the newest is kept, since adding both would count everything twice.
    """

    canonical: str
    kind: str  # gauge, counter or histogram (a histogram gives rows of kind sum, count and bucket)
    names: tuple[str, ...]
    where: tuple[tuple[str, str], ...] = ()  # labels that a sample must have; they are not stored
    add: tuple[tuple[str, str], ...] = ()  # labels that the engine expresses by the family's name
    scale: float = 1.0  # the engine's unit in units of the canonical name (1e-3 for ms stored as _s)
    edge_only: bool = False  # stored only at a cell's edges: it cannot change while the cell runs
    shares: bool = False  # of each rank (`copy_labels`) its own part, to be added, where others repeat a figure
    before: str = ""  # the name that has taken this one's place on newer pages; of both only that one is kept


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The names of one program. A page may hold several: a Dynamo worker shows its own and its engine's."""

    name: str
    marks: tuple[str, ...]  # a page with a name that starts so speaks this vocabulary
    series: tuple[Series, ...]
    rank_labels: tuple[str, ...] = ()  # the data-parallel rank: column `engine`
    model_labels: tuple[str, ...] = ()
    copy_labels: tuple[
        str, ...
    ] = ()  # ranks that repeat the same figure (tensor, pipeline parallel): the lowest is kept


Labels = tuple[tuple[str, str], ...]


def gauge(canonical: str, *names: str, where: Labels = (), add: Labels = (), edge_only: bool = False) -> Series:
    return Series(canonical, "gauge", names, where, add, edge_only=edge_only)


def counter(canonical: str, *names: str) -> Series:
    return Series(canonical, "counter", names)


def histogram(canonical: str, *names: str, where: Labels = (), scale: float = 1.0, shares: bool = False) -> Series:
    return Series(canonical, "histogram", names, where, scale=scale, shares=shares)
