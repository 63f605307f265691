"""Deltas and integrals of pages, from rows written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pdbench.report.window import Gauge, Metrics, Segment, Window
from pdbench.tables import Columns
from tests.report.answered import columns

NAMES = ["t", "target", "server", "role", "engine", "metric", "canonical", "kind", "labels", "value"]


def frame(*rows: tuple[float, str, str, str, str, float], role: str = "decode", server: str = "decode-0") -> Columns:
    """Rows of (t, canonical, kind, engine, labels, value)."""
    made = [(t, "default", server, role, e, f"vllm:{c}", c, k, lab, v) for t, c, k, e, lab, v in rows]
    return columns("metrics", [dict(zip(NAMES, row, strict=True)) for row in made])


def window(data: Columns, start: float = 1.0, send_end: float = 8.0, end: float = 9.0) -> Window:
    return Window((Metrics(data, [(start, end)]).segment("default", start, send_end, end),))


def counters(
    *values: float, canonical: str = "prompt_tokens", engine: str = "0"
) -> list[tuple[float, str, str, str, str, float]]:
    return [(float(t * 5), canonical, "counter", engine, "{}", value) for t, value in enumerate(values)]


def test_delta_runs_from_the_scrape_before_to_the_scrape_after() -> None:
    rows = [(t, "queue_s", "count", "0", "{}", v) for t, v in [(0.0, 7), (0.9, 10), (2.0, 11), (9.2, 30), (11.0, 99)]]
    assert window(frame(*rows)).delta("decode", "queue_s", "count") == 20


def test_another_cell_is_not_read() -> None:
    rows = [(t, "queue_s", "count", "0", "{}", v) for t, v in [(0.5, 3.0), (9.5, 5.0), (20.0, 50.0)]]
    metrics = Metrics(frame(*rows), [(1.0, 9.0), (12.0, 19.0)])
    assert Window((metrics.segment("default", 1.0, 8.0, 9.0),)).delta("decode", "queue_s", "count") == 2


def test_engines_and_servers_add_up_and_means_weigh_by_count() -> None:
    rows = []
    for engine, total, count in (("0", 10.0, 10.0), ("1", 90.0, 30.0)):
        rows += [(0.0, "queue_s", "sum", engine, "{}", 0.0), (0.0, "queue_s", "count", engine, "{}", 0.0)]
        rows += [(9.5, "queue_s", "sum", engine, "{}", total), (9.5, "queue_s", "count", engine, "{}", count)]
    seen = window(frame(*rows))
    assert seen.mean_s("decode", "queue_s") == pytest.approx(2.5)
    assert seen.mean_s("prefill", "queue_s") is None


def test_a_counter_that_goes_back_is_a_reset_and_counts_from_zero() -> None:
    page = window(frame(*counters(100.0, 40.0, 60.0)), 0.0, 9.0, 9.5).segments[0].pages[0]
    assert page.resets == ("prompt_tokens",) and page.deltas.popitem()[1] == 60.0  # type: ignore[attr-defined]


def test_a_sum_that_falls_by_rounding_is_no_reset() -> None:
    rows = [(0.0, "queue_s", "sum", "0", "{}", 0.3), (5.0, "queue_s", "sum", "0", "{}", 0.3 - 1e-16)]
    seen = window(frame(*rows, (9.5, "queue_s", "sum", "0", "{}", 0.5)), 0.0, 9.0, 9.5)
    assert seen.delta("decode", "queue_s", "sum") == pytest.approx(0.2)
    assert seen.segments[0].pages[0].resets == ()


def test_a_series_born_in_the_window_starts_at_zero_but_a_page_never_read_is_nothing() -> None:
    born = [(0.0, "running", "gauge", "0", "{}", 0.0), (5.0, "prompt_tokens", "counter", "0", "{}", 40.0)]
    end = [(9.5, "running", "gauge", "0", "{}", 0.0), (9.5, "prompt_tokens", "counter", "0", "{}", 70.0)]
    assert window(frame(*born, *end)).delta("decode", "prompt_tokens") == 70.0
    down = [(t, "up", "gauge", "", "{}", 0.0) for t in (0.0, 5.0, 9.5)]
    assert window(frame(*down)).roles() == [] and window(frame(*down)).delta("decode", "prompt_tokens") is None


def test_labels_select() -> None:
    rows = [
        (t, "prompt_tokens_by_source", "counter", "0", f'{{"source": "{s}"}}', v)
        for t, s, v in [(0.0, "a", 0.0), (0.0, "b", 0.0), (9.5, "a", 5.0), (9.5, "b", 8.0)]
    ]
    seen = window(frame(*rows))
    assert seen.delta("decode", "prompt_tokens_by_source", source="b") == 8.0
    assert seen.delta("decode", "prompt_tokens_by_source", source="c") is None


def test_gauge_area_over_uneven_samples() -> None:
    gauge = Gauge(*(np.array(v, float) for v in ([0, 1, 4, 10], [2, 2, 8, 8])))
    assert gauge.integral(0, 10) == pytest.approx(2 + 15 + 48)
    assert gauge.integral(2, 4) == pytest.approx((4 + 8) / 2 * 2)
    assert gauge.integral(10, 12) == pytest.approx(16) and gauge.integral(3, 3) == 0.0


def test_means_and_maxima_are_of_the_send_window_and_areas_of_all() -> None:
    rows = [(float(t), "waiting", "gauge", "0", "{}", 4.0 if t <= 8 else 20.0) for t in range(0, 11)]
    seen = window(frame(*rows), 1.0, 8.0, 10.0)
    assert seen.send_mean("decode", "waiting") == pytest.approx(4.0) and seen.send_max("decode", "waiting") == 4.0
    assert seen.integral("decode", "waiting") == pytest.approx(28 + 12 + 20)


def test_repeats_pool_by_adding() -> None:
    one = Metrics(frame(*counters(0.0, 5.0, 8.0)), []).segment("default", 0.0, 9.0, 9.5)
    two = Metrics(frame(*counters(8.0, 9.0, 18.0)), []).segment("default", 0.0, 9.0, 9.5)
    pooled = Window((one, two))
    assert pooled.delta("decode", "prompt_tokens") == 18.0 and pooled.duration_s == 19.0
    assert Window((Segment(0, 1, 2),)).send_mean("decode", "running") is None
