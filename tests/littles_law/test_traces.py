"""Traces as they are published, read; broken ones refused with what is wrong."""

from __future__ import annotations

import contextlib
import math
import random
from pathlib import Path

import pytest

from pdbench.errors import UsageError
from pdbench.littles_law.day import dispersion, played, windows
from pdbench.traces import TracedRequest, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:06.9799600,110,27
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 4000, "input_length": 7322, "output_length": 490, "hash_ids": [0]}
"""


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    found = read_trace(path).requests
    assert [(each.prompt_tokens, each.output_tokens) for each in found] == [(4808, 10), (3180, 8), (110, 27)]
    assert [each.at_s for each in found] == pytest.approx([0, 0.052, 3.0])


def test_mooncake(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    first, second = TracedRequest(0.0, 6758, 500, (0, 1)), TracedRequest(3.0, 7322, 490, (0,))
    found = read_trace(path)
    assert (found.kind, found.requests, found.left_out) == ("mooncake", (first, second), 0)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", '{"timestamp": 1}\n', "{broken\n", AZURE.replace("4808", "many"), AZURE[:80]]
)
def test_broken_traces(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert "Mooncake" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MOONCAKE.replace(', "output_length": 490', ""), "line 2: it has no key output_length"),
        (AZURE.replace(",GeneratedTokens", ""), "line 1: it has no column GeneratedTokens"),
        (AZURE.replace("3180", "many"), "line 3: ContextTokens 'many' is no number of tokens"),
        (AZURE.replace(",8\n", "\n"), "line 3: GeneratedTokens None is no number of tokens"),
        (AZURE.replace("3180", "1" + "0" * 30), "line 3: ContextTokens '1000"),
        (AZURE.replace("18:17:04.0319600", "noon"), "line 3: Invalid isoformat"),
        (AZURE.replace("4808", '"4808') + AZURE[40:] * 3, "line 2: a quotation mark is not closed"),
        (AZURE.replace(",4808", ',"4808') + AZURE[40:] * 3000, "line 2: a quotation mark is not closed"),
        (MOONCAKE + "[1, 2]\n", "line 3: it is no JSON object"),
        (MOONCAKE + "7\n", "line 3: it is no JSON object"),
        (MOONCAKE + "[" * 9000 + "]" * 9000, "line 3: its brackets are nested too deeply"),
        (MOONCAKE.replace("[0]", "[" * 9000 + "]" * 9000), "line 2: its brackets are nested too deeply"),
        (MOONCAKE.replace("[0]", "[1e999]"), "line 2: cannot convert float infinity"),
        (MOONCAKE.replace("7322", "Infinity"), "line 2: input_length inf is no number of tokens"),
        *(
            (MOONCAKE.replace(was, damaged), f"line 2: {key} {damaged[:18].lower()}")
            for damaged in ("NaN", "1" + "0" * 30, "-1" + "0" * 400)
            for key, was in (("input_length", "7322"), ("output_length", "490"), ("timestamp", "4000"))
        ),
    ],
)
def test_what_is_wrong_with_a_trace_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_trace(path)
    assert said in str(caught.value) and "GeneratedTokens" in caught.value.hint


@pytest.mark.parametrize("text", [AZURE, MOONCAKE])
def test_a_damaged_trace_is_read_or_refused(tmp_path: Path, text: str) -> None:
    """Whatever a few bytes were turned into: never another exception."""
    path, rng = tmp_path / "trace", random.Random(1)
    spoils = [b'"', b"\0", b"\xff", b"\r", b"\n", b",", b"9" * 400, b"9" * 5000, b"Infinity", b"-", b"[", b"{}", b""]
    for _ in range(300):
        spoilt = bytearray(text.encode())
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(spoilt))
            spoilt[place : place + rng.randint(0, 4)] = rng.choice(spoils)
        path.write_bytes(spoilt)
        with contextlib.suppress(UsageError):
            assert all(math.isfinite(each.at_s) for each in read_trace(path).requests)


@pytest.mark.parametrize("text", [AZURE, MOONCAKE])
def test_how_a_file_was_saved_does_not_matter(tmp_path: Path, text: str) -> None:
    """A byte order mark, as spreadsheets write it, and their line ends."""
    path = tmp_path / "trace"
    path.write_text(text)
    plain = read_trace(path).requests
    for saved in (text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode("utf-8-sig"), text.rstrip().encode()):
        path.write_bytes(saved)
        assert read_trace(path).requests == plain


def test_a_trace_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(AZURE.encode() + b"\xe9,1,1\n")
    with pytest.raises(UsageError, match="line 5: byte 0xe9 is no UTF-8"):
        read_trace(path)


def test_further_columns_and_keys_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(AZURE.replace("Tokens\n", "Tokens,Note\n").replace(",10\n", ',10,"two\nlines"\n'))
    assert len(read_trace(path).requests) == 3
    path.write_text(MOONCAKE.replace('"hash_ids"', '"note": "\u2028\x85", "hash_ids"'))
    assert len(read_trace(path).requests) == 2


def test_no_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_trace(tmp_path / "none")


def test_windows() -> None:
    trace = [TracedRequest(index * 0.5, 100 + index, 10) for index in range(240)]
    cut = windows(trace, 30)
    assert [window.requests for window in cut] == [60] * 4
    assert all(window.workload.qps == pytest.approx(2, rel=0.05) for window in cut)
    assert [window.dispersion for window in cut] == pytest.approx([0] * 4)
    assert windows(played(trace, 2), 30)[0].workload.qps == pytest.approx(4)


def test_dispersion() -> None:
    assert dispersion([0.5, 0.6], 5) is None, "too few bins to tell"
    assert dispersion([index / 10 for index in range(100) if index < 10], 10) == pytest.approx(9)
