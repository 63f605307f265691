"""Transfer times against published tables, and the overlap formula against a simulation of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.littles_law.links import LINKS
from pdbench.littles_law.models import known_model
from pdbench.littles_law.transfer import Transfer, exposures, layer_wise, streaming_pays

# Prompt tokens and transfer ms, Mooncake's documentation: Qwen3-8B TP8 H800, Qwen3-235B-A22B TP8 H20.
LENS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
QWEN3_8B = (0.54, 0.92, 1.50, 2.51, 4.75, 8.84, 16.43, 31.65)
QWEN3_235B = (2.07, 2.98, 3.96, 6.43, 10.95, 20.31, 39.14, 76.78)


@pytest.mark.parametrize(
    ("model", "fixed_ms", "gb_s", "points"),
    [("Qwen3-8B", 0.39, 146, QWEN3_8B), ("Qwen3-235B-A22B", 1.84, 171, QWEN3_235B)],
)
def test_published_transfers(model: str, fixed_ms: float, gb_s: float, points: tuple[float, ...]) -> None:
    """t0 + bytes/B explains both tables to 7%, with the second model's heads replicated at TP 8."""
    for tokens, measured_ms in zip(LENS, points, strict=True):
        one = Transfer(known_model(model).rank_bytes(tokens, 8), gb_s / 8, fixed_ms)
        assert one.total_ms == pytest.approx(measured_ms, rel=0.07)


def test_posting_cost() -> None:
    # 18,880 descriptors took 46 ms; 8,192 (2k prompts of Qwen3-32B, block 16) 14.7 ms on another backend.
    assert Transfer(0, 1, 0, 18_880).post_ms == pytest.approx(46, rel=0.02)
    descriptors = known_model("Qwen3-32B").in_blocks(2048, 16, 8).descriptors
    assert Transfer(0, 1, 0, descriptors, 1.8).post_ms == pytest.approx(14.7, rel=0.01)


def simulated(pieces: int, prefill: float, transfer: float) -> float:
    """Pieces in order over one link; each starts when it is computed and the link is free."""
    link_free = computed = 0.0
    for _ in range(pieces):
        computed += prefill
        link_free = max(link_free, computed) + transfer
    return link_free - computed


@given(st.integers(1, 200), st.floats(0, 1000), st.floats(0, 1000))
def test_overlap_is_what_happens(pieces: int, prefill: float, transfer: float) -> None:
    found = layer_wise(pieces, prefill, transfer)
    assert found.exposed_ms == pytest.approx(simulated(pieces, prefill, transfer), rel=1e-9, abs=1e-9)
    assert 0 <= found.hidden_fraction <= 1


@pytest.mark.parametrize(("ratio", "hidden"), [(0.5, 0.984), (1.0, 0.984), (1.5, 0.656), (2.0, 0.492), (4.0, 0.246)])
def test_hidden_share_of_64_layers(ratio: float, hidden: float) -> None:
    assert layer_wise(64, 1.0, ratio).hidden_fraction == pytest.approx(hidden, abs=0.001)


@given(st.integers(2, 100), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.001, 10))
def test_pieces_pay_while_they_cost_less_than_they_hide(n: int, prefill: float, transfer: float, cost: float) -> None:
    hides = layer_wise(n, prefill, transfer, cost).exposed_ms < n * transfer + cost
    assert streaming_pays(n, prefill, transfer, cost) == hides


@given(st.floats(1, 1e12), st.floats(0.1, 1000), st.floats(1.01, 10), st.floats(0, 10), st.integers(0, 100_000))
def test_a_faster_link_never_takes_longer(
    nbytes: float, gb_s: float, faster: float, t0: float, descriptors: int
) -> None:
    slow, fast = (Transfer(nbytes, speed, t0, descriptors) for speed in (gb_s, gb_s * faster))
    assert fast.total_ms <= slow.total_ms
    assert Transfer(nbytes * 2, gb_s, t0, descriptors).total_ms >= slow.total_ms


def test_what_each_way_exposes() -> None:
    one = Transfer(524e6, 50, 1.0, 1000)
    pull, push, streamed = exposures(one, 64, 500, 1, step_ms=8, proxy_ms=5)
    assert pull.exposed_ms == pytest.approx(5 + one.total_ms + 4)
    assert push.exposed_ms == pytest.approx(one.total_ms + 4)
    assert pull.stalls_decode_ms == one.post_ms
    assert push.stalls_decode_ms == 0
    assert streamed.exposed_ms == pytest.approx(1 + (one.wire_ms + one.post_ms) / 64 + 4)
    assert streamed.hidden_fraction == pytest.approx(63 / 64)
    # With chunked prefill only the last chunk's forward hides anything.
    chunked = exposures(one, 64, 500, 100, 8, 5)[2]
    assert chunked.hidden_fraction < streamed.hidden_fraction
    # Not known is not 0.
    assert exposures(Transfer(524e6, 50), 64, None, 1, 8, 5)[0].stalls_decode_ms is None


def test_links() -> None:
    for link in LINKS.values():
        assert 0 < link.practical_gb_s <= link.line_gb_s
        assert link.source
    assert LINKS["pcie4"].practical_fraction == pytest.approx(0.79, abs=0.01)
    assert LINKS["nvlink3"].practical_fraction is None
