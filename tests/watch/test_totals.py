"""Running totals and their windows, against sums done by hand."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pdbench.deployment import build
from pdbench.probe.scrape import Row
from pdbench.probe.watch.frame import Watch
from pdbench.probe.watch.sampled import Looks, in_words
from pdbench.probe.watch.totals import Watched, by_role
from pdbench.probe.watch.view import picture
from pdbench.probe.watch.window import History


def counter(value: float, name: str = "generation_tokens", engine: str = "0") -> Row:
    return (f"vllm:{name}_total", name, "counter", engine, "{}", value)


def gauge(value: float, name: str = "running", labels: str = "{}", engine: str = "0") -> Row:
    return (f"vllm:{name}", name, "gauge", engine, labels, value)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(0, 10**9))
def test_a_counter_counts_what_was_added_after_the_first_look(steps: list[int], before: int) -> None:
    server, value = Watched("d", "decode"), float(before)
    server.take(0.0, [counter(value)])
    for t, step in enumerate(steps, 1):
        value += step
        server.take(float(t), [counter(value)])
    assert server.totals["generation_tokens:counter"] == pytest.approx(sum(steps))
    assert server.restarts == 0


def test_a_restart_goes_on_from_zero_and_is_counted() -> None:
    server = Watched("d", "decode")
    for t, value in enumerate([100.0, 150.0, 20.0, 30.0]):
        server.take(float(t), [counter(value)])
    assert server.totals["generation_tokens:counter"] == 50 + 20 + 10
    assert server.restarts == 1


def test_a_restart_is_flagged_while_its_window_lasts() -> None:
    """An alert on the flag must end; how often there was one is counted elsewhere."""
    view = Watch(build("t", [("decode", "http://d:1")]), 1.0)
    flagged = []
    for t in range(40):
        view.servers[0].take(float(t), [counter(100.0 + t if t < 5 else float(t))])
        flagged.append("server-restarted" in view.step(float(t)).now.flags)
    assert flagged[5] and not any(flagged[:5]) and not any(flagged[20:]) and view.servers[0].restarts == 1


def test_a_series_that_is_born_later_began_at_zero() -> None:
    server = Watched("d", "decode")
    server.take(0.0, [gauge(1.0)])
    server.take(1.0, [gauge(1.0), counter(7.0)])
    assert server.totals["generation_tokens:counter"] == 7.0


def test_gauges_have_areas_and_a_gap_has_none() -> None:
    server = Watched("d", "decode")
    server.take(0.0, [gauge(2.0)])
    server.take(2.0, [gauge(4.0)])
    server.lost(3.0, "refused")
    assert not server.up and server.now == {}
    server.take(10.0, [gauge(4.0)])
    server.take(11.0, [gauge(4.0)])
    assert server.totals["running:area"] == pytest.approx(6.0 + 4.0)


@pytest.mark.parametrize(
    ("running", "not_started", "loaded", "waits"),
    [(8, 5, 3, 8), (6, 0, 3, 1), (6, 0, 2, 0), (0, 2, 0, 2)],
)
def test_who_waits_for_a_slot(running: int, not_started: int, loaded: int, waits: int) -> None:
    """Of loaded requests those beyond the free slots; the others wait to be noticed."""
    server = Watched("d", "decode", slots=8)
    stages = [
        gauge(not_started, "kv_fetch_stage", '{"stage":"waiting_to_start"}'),
        gauge(loaded, "kv_fetch_stage", '{"stage":"completed_waiting"}'),
    ]
    server.take(0.0, [gauge(running), *stages])
    assert server.now["slot_wait"] == waits


def test_ranks_are_summed_but_the_fullest_cache_counts() -> None:
    server = Watched("d", "decode")
    server.take(0.0, [gauge(v, "kv_cache_usage", engine=e) for v, e in ((0.2, "0"), (0.9, "1"))])
    server.take(1.0, [gauge(1.0, engine="0"), gauge(2.0, engine="1")])
    assert server.now == {"running": 3.0, "slot_wait": 0.0}
    server.take(2.0, [gauge(v, "kv_cache_usage", engine=e) for v, e in ((0.2, "0"), (0.9, "1"))])
    assert server.now["kv_cache_usage"] == 0.9


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50)), min_size=1, max_size=60), st.integers(1, 40))
def test_a_window_is_what_was_added_in_it(steps: list[tuple[int, int]], length_s: int) -> None:
    server, history = Watched("d", "decode"), History(1000.0)
    times, added, t, value = [0.0], [0.0], 0.0, 0.0
    server.take(t, [counter(value)])
    history.add(t, by_role([server]))
    for step_s, step in steps:
        t, value = t + step_s, value + step
        server.take(t, [counter(value)])
        history.add(t, by_role([server]))
        times.append(t)
        added.append(float(step))
    found = history.window(float(length_s))
    start = max((one for one in times if one <= t - length_s), default=0.0)
    assert found.length_s == t - start
    expected = sum(step for when, step in zip(times, added, strict=True) if when > start)
    assert found.delta("decode", "generation_tokens:counter") == pytest.approx(expected)


def test_history_keeps_no_more_than_the_longest_window_needs() -> None:
    history = History(10.0)
    for t in range(1000):
        history.add(float(t), {})
    assert len(history.kept) <= 12 and history.window(10.0).length_s == 10.0


def test_what_stores_move_is_said_apart_from_handoffs() -> None:
    """Ten seconds: 30 loads of 100 MB from host memory, 5 puts into Mooncake's store and 50 looks, two handoffs."""
    view = Watch(build("t", [("prefill", "http://p:1"), ("decode", "http://d:1")]), 1.0)

    def store(name: str, kind: str, value: float, operation: str) -> Row:
        return (f"vllm:{name}", name, kind, "0", f'{{"operation": "{operation}", "status": "ok"}}', value)

    for t_s, done in ((0.0, 0), (10.0, 1)):
        view.servers[0].take(
            t_s,
            [
                *(
                    store("store_operation_s", "count", n * done, of)
                    for n, of in ((5, "save_put"), (50, "save_exists"))
                ),
                store("store_nbytes", "counter", 5e8 * done, "save_put"),
                ("vllm:kv_offload_load_size_count", "offload_load_each_nbytes", "count", "0", "{}", 30.0 * done),
                counter(3e9 * done, "offload_load_nbytes"),
            ],
        )
        rows: list[Row] = [("x_count", "nixl_xfer_s", "count", "0", "{}", 2.0 * done)]
        view.servers[1].take(t_s, [*rows, ("x_sum", "nixl_nbytes", "sum", "0", "{}", 4e6 * done)])
        frame = view.step(t_s)
    assert frame.now.stores == {
        "offload load": {"operations_per_s": 3.0, "nbytes_per_s": 3e8},
        "Mooncake store save": {"operations_per_s": 0.5, "nbytes_per_s": 5e7},
    }
    assert (frame.now.transfers_per_s, frame.now.transfer_nbytes_per_s) == (0.2, 4e5)
    console = Console(width=80, file=io.StringIO())
    console.print(picture(frame, "name", paused=False, height=24, keys=False))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert "no handoff: offload load 3.00/s, 300 MB/s" in lines
    assert "no handoff: Mooncake store save 0.50/s, 50.0 MB/s" in lines


@pytest.mark.parametrize("wait_s", [0.03, 0.4, 2.5])
def test_what_looks_miss_of_a_wait_is_known(wait_s: float) -> None:
    """Requests at random, each in a gauge for so long, seen once a second for ten: the truth lies between."""
    rng = np.random.default_rng(7)
    held = []
    for _ in range(400):
        begins = rng.uniform(0.0, 10.0, 40)
        seen = sum(float(np.sum((begins < t) & (t <= begins + wait_s))) for t in rng.uniform(0, 1) + np.arange(14))
        low, high = Looks(1000 / 40, 40).between(seen * 1000 / 40)
        held.append(low <= 1000 * wait_s <= high)
    assert np.mean(held) > 0.95


@pytest.mark.parametrize(
    ("value", "between", "said"),
    [(583.0, (420.0, 750.0), "~580"), (1389.0, (900.0, 2400.0), "~1,400"), (0.0, (0.0, 68.7), "<69"),
     (34.2, (32.0, 36.0), "~34"), (4.9, (4.3, 5.5), "~4.9"), (0.0, (0.0, 0.0), "0")],
)  # fmt: skip
def test_no_digit_is_printed_that_looks_do_not_know(value: float, between: tuple[float, float], said: str) -> None:
    assert in_words(value, between) == said


@pytest.mark.parametrize("absurd", [1e308, 1.7e308, -1e308, -3.0, 1e31])
def test_a_value_that_is_no_count_is_left_out(absurd: float) -> None:
    """Each is a finite number, and two ranks' sum is none; a frame of them is still JSON."""
    view = Watch(build("t", [("decode", "http://d:1")]), 1.0)
    for t in range(5):
        counted = [counter(absurd, engine=e) for e in "01"]
        view.servers[0].take(float(t), [*(gauge(absurd, engine=e) for e in "01"), *counted, gauge(2.0, "waiting")])
        frame = view.step(float(t))
    assert view.servers[0].now["waiting"] == 2.0 and "running" not in view.servers[0].now
    json.dumps(frame.document(), allow_nan=False)
