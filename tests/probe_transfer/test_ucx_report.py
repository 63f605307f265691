"""UCX's protocol report: captured from UCX 1.23 on this kind of machine, and in the form that older ones print."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdbench.probe.transfer.ucx_report import Row, boxes, chosen

CAPTURES = Path(__file__).parent / "captures"


def old_form(agent: str, operation: str, rows: list[tuple[str, str, str]]) -> str:
    """A box of UCX before 1.23: agent and operation share its first line."""
    rule = "+----+----+----+"
    lines = [rule, f"| {agent} | {operation} |", rule, *(f"| {' | '.join(row)} |" for row in rows), rule]
    return "\n".join(f"[1722588785.780923] [host:655046:0]   {line}" for line in lines)


@pytest.mark.parametrize(
    ("capture", "op", "how", "carriers"),
    [
        ("cma", "READ", "zero-copy", [("cma", "memory")]),
        ("cma", "WRITE", "zero-copy", [("cma", "memory")]),
        ("tcp", "READ", "software emulation", [("tcp", "lo")]),
        ("tcp", "WRITE", "zero-copy", [("tcp", "lo")]),
        ("posix", "READ", "software emulation", [("posix", "memory")]),
        ("posix", "WRITE", "software emulation", [("posix", "memory")]),
    ],
)
@pytest.mark.parametrize("nbytes", [1, 4096, 1 << 30])
def test_captures(capture: str, op: str, how: str, carriers: list[tuple[str, str]], nbytes: int) -> None:
    found = boxes((CAPTURES / f"ucx-1.23-{capture}.log").read_text())
    box = chosen(found, op, "initiator")
    assert box is not None and box.place == "intra-node" and "(multi)" in box.operation
    row = box.row(nbytes)
    if capture == "tcp" and op == "WRITE" and nbytes == 1:
        assert row is not None and row.carriers == carriers  # small ones are not copied without a copy
    else:
        assert row is not None and (row.how, row.carriers) == (how, carriers)
    assert chosen(found, op, "somebody else") is None


def test_every_box_of_a_capture_is_read() -> None:
    text = (CAPTURES / "ucx-1.23-cma.log").read_text()
    assert len(boxes(text)) == text.count("cfg#")


def test_the_form_of_older_versions() -> None:
    read = "remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda"
    several = "50% on rc_mlx5/mlx5_1:1/path0 and 50% on rc_mlx5/mlx5_2:1/path0"
    rows = [("0", "copy-out", "rc_mlx5/mlx5_1:1/path0"), ("1..64", "software emulation", "rc_mlx5/mlx5_1:1/path0")]
    rows += [("65..8K", "zero-copy", "rc_mlx5/mlx5_1:1/path0"), ("8193..inf", "zero-copy", several)]
    box = chosen(boxes(old_form("decode inter-node cfg#2", read, rows)), "READ", "decode")
    assert box is not None and (box.agent, box.place) == ("decode", "inter-node")
    assert [box.row(nbytes) for nbytes in (0, 64, 8192)] == list(box.rows[:3])
    last = box.row(1 << 20)
    assert last == Row(8193, None, "zero-copy", several)
    assert last is not None and last.carriers == [("rc_mlx5", "mlx5_1:1"), ("rc_mlx5", "mlx5_2:1")]


def test_the_last_box_holds_and_threads_do_not_mix() -> None:
    get = "remote memory read by ucp_get*(multi) into host memory from host"
    first = old_form("d intra-node cfg#1", get, [("0..inf", "software emulation", "tcp/lo")])
    second = old_form("d intra-node cfg#2", get, [("0..inf", "zero-copy", "cma/memory")])
    other = second.replace(":655046:0]", ":655046:7]").splitlines()
    mixed = "\n".join(line for pair in zip(first.splitlines(), other, strict=True) for line in pair)
    for text in (f"{first}\n{second}", mixed):
        box = chosen(boxes(text), "READ")
        assert box is not None and box.rows[0].carriers == [("cma", "memory")]
    assert len(boxes(mixed)) == 2


def test_a_log_that_was_cut_off() -> None:
    text = (CAPTURES / "ucx-1.23-tcp.log").read_text()
    whole = len(boxes(text))
    for cut in range(0, len(text), 997):
        assert len(boxes(text[:cut])) <= whole
