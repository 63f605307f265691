"""The flat arrivals: pieces hold every gap once, and are as small as they are said to be."""

from __future__ import annotations

import numpy as np

from pdbench.report.events import AT_ONCE, Events, of_offsets


def events_of(counts: list[int]) -> Events:
    offsets = {str(i): np.arange(n + 1) * 0.01 + i for i, n in enumerate(counts)}
    return of_offsets(list(offsets), offsets)


def test_pieces_are_whole_requests_and_hold_each_gap_once() -> None:
    """One request alone may have more gaps than a piece should."""
    counts = [3, AT_ONCE + 5, 0, *[AT_ONCE // 3] * 7, 1]
    events = events_of(counts)
    places = np.flatnonzero(events.count)
    pieces = list(events.pieces(places))
    assert np.concatenate([some for some, _ in pieces]).tolist() == places.tolist()
    assert [len(gaps) for _, gaps in pieces] == [sum(counts[i] for i in some) for some, _ in pieces]
    assert all(len(gaps) <= AT_ONCE or len(some) == 1 for some, gaps in pieces)
    gathered = np.concatenate([gaps for _, gaps in pieces])
    assert np.array_equal(gathered, np.concatenate([events.gaps(i) for i in places]))
