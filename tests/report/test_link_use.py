"""Transfers that take turns, share a link or have paths of their own, as scraped counters show them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pdbench.report.link_use import Moves, ended, is_shared
from pdbench.report.statistics import Floats
from pdbench.report.window import Gauge

ALONE_S = 0.43


def in_turns(starts: Floats, alone_s: float) -> Floats:
    ends, free = np.empty_like(starts), 0.0
    for i, start in enumerate(starts):
        ends[i] = free = max(free, start) + alone_s
    return ends


def sharing(starts: Floats, alone_s: float) -> Floats:
    """Each of n under way gets 1/n of the link; in small steps of time."""
    left, ends, step = np.full(len(starts), alone_s), np.full(len(starts), np.nan), 0.005
    for t in np.arange(0.0, starts[-1] + len(starts) * alone_s, step):
        on = (starts <= t) & (left > 0)
        left[on] -= step / max(1, on.sum())
        ends[on & (left <= 0)] = t
    return ends


def of_their_own(starts: Floats, alone_s: float) -> Floats:
    return starts + alone_s


def as_scraped(starts: Floats, ends: Floats, every_s: float = 0.5) -> Moves:
    """What two scrapes tell: each ended between them, and took as long as all of those on average."""
    slot = np.ceil(ends / every_s).astype(int)
    seconds = np.array([(ends - starts)[slot == one].mean() for one in slot])
    place = np.array([_place(ends, slot, i) for i in range(len(ends))])
    seen = (slot - 1 + place) * every_s
    order = np.argsort(seen - seconds)
    return Moves((seen - seconds)[order], seen[order], np.ones(len(ends)), every_s)


def _place(ends: Floats, slot: NDArray[np.int64], i: int) -> float:
    mine = np.sort(ends[slot == slot[i]])
    return float((np.searchsorted(mine, ends[i]) + 0.5) / len(mine))


@pytest.mark.parametrize("used", [0.6, 1.1])
@pytest.mark.parametrize(("way", "shares"), [(in_turns, True), (sharing, True), (of_their_own, False)])
def test_a_shared_link_and_what_it_carries(way: Callable[[Floats, float], Floats], shares: bool, used: float) -> None:
    starts = np.cumsum(np.random.default_rng(7).exponential(ALONE_S / used, 100))
    moves = as_scraped(starts, way(starts, ALONE_S))
    assert is_shared([moves]) == shares
    carried = len(starts) / moves.union_s()
    assert carried == pytest.approx(1 / ALONE_S, rel=0.06) if shares else carried > 1.06 / ALONE_S


def test_the_time_with_any_under_way_and_the_others_met() -> None:
    rng = np.random.default_rng(3)
    start = np.sort(rng.uniform(0, 50, 60))
    moves = Moves(start, start + rng.exponential(1.0, 60), np.ones(60), 0.5)
    fine = np.arange(0.0, 70.0, 0.001)
    on = (moves.start[:, None] <= fine) & (fine < moves.end[:, None])
    assert moves.union_s() == pytest.approx(on.any(axis=0).sum() * 0.001, abs=0.1)
    assert moves.union_s(10, 20) == pytest.approx(on[:, (fine >= 10) & (fine < 20)].any(axis=0).sum() * 0.001, abs=0.02)
    others = [on[:, mine].sum(axis=0).mean() - 1 for mine in on]
    assert moves.met() == pytest.approx(np.array(others), abs=0.2)


@pytest.mark.parametrize(
    ("scrapes", "second_s", "apart"),
    [
        ([0.0, 0.5, 1.0, 1.5, 2.0], 1.2, True),  # it began at 0.6 at the earliest: 1.0 less 0.4
        ([0.0, 0.5, 0.75, 1.25, 1.75], 1.2, False),  # and here perhaps at 0.35
        ([0.0, 0.5, 0.75, 1.25, 1.75], 1.6, True),
        ([0.0, 0.5, 1.0, 1.5, 2.0], 0.9, False),
    ],
)
def test_transfers_never_met_only_where_no_scrape_leaves_room_for_it(
    scrapes: list[float], second_s: float, apart: bool
) -> None:
    """Two of 0.4 s each; the first ended at 0.45 s, or at any other moment before 0.5."""
    t = np.array(scrapes)
    count = (t >= 0.45).astype(float) + (t >= second_s)
    found = ended(Gauge(t, count), Gauge(t, 0.4 * count), Gauge(t, 1e9 * count), 1)
    assert len(found.start) == 2 and found.apart is apart
