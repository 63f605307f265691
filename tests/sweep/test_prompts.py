"""Prompts: exact length, fresh in every cell and repeat, the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdbench.errors import UsageError
from pdbench.sweep.prompts import (
    FIRST_ID,
    WORDS,
    ChatCalibration,
    asked_ids,
    calibrate,
    ids_json,
    prompt_source,
    text_json,
    token_ids,
    word_numbers,
)
from pdbench.sweep.schedule import Ask


@pytest.mark.parametrize("vocab_size", [257, 1000, 4000, 152_064])
def test_ids_survive_json_and_stay_in_their_range(vocab_size):
    ids = token_ids(1, 2, 5000, vocab_size)
    assert json.loads(ids_json(ids, vocab_size)) == ids.tolist()
    assert ids.min() >= FIRST_ID and ids.max() < vocab_size


def test_ids_are_uniform():
    counts = np.bincount(token_ids(3, 0, 400_000, 4000))[FIRST_ID:]
    expected = 400_000 / (4000 - FIRST_ID)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - len(counts)) < 5 * np.sqrt(2 * len(counts))


def test_prompts_depend_on_seed_and_index_alone():
    assert np.array_equal(token_ids(1, 5, 64, 4000), token_ids(1, 5, 64, 4000))
    firsts = {tuple(token_ids(seed, index, 16, 4000)) for seed in range(50) for index in range(50)}
    assert len(firsts) == 2500  # no two prompts share even their first cache block


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(UsageError, match="vocab-size"):
        token_ids(0, 0, 1, FIRST_ID)


def test_text_is_one_json_string_of_words():
    text = json.loads(text_json(word_numbers(1, 1, 300)))
    assert len(text.split(" ")) == 300 and text.isascii()
    assert text != json.loads(text_json(word_numbers(1, 2, 300)))
    counts = Counter(json.loads(text_json(word_numbers(1, 1, 2 * len(WORDS)))).split(" "))
    assert set(counts.values()) == {2} and len(counts) == len(WORDS)


def test_calibration_finds_template_and_words():
    chat = calibrate((64, 64 * 1.25 + 12), (320, 320 * 1.25 + 12))
    assert chat == ChatCalibration(12.0, 1.25)
    assert chat.words(1012) == 800
    with pytest.raises(UsageError, match="template alone takes 12"):
        chat.words(12)
    with pytest.raises(UsageError, match="10 for 320"):
        calibrate((64, 10), (320, 10))


CHAT = ChatCalibration(12.0, 2.0)


def spoken(messages: bytes) -> list[str]:
    (message,) = json.loads(messages)
    assert message["role"] == "user"
    words: list[str] = message["content"].split()
    return words


def test_prompt_source_by_endpoint():
    ids = prompt_source("completions", 9, 4000, None)
    assert len(json.loads(ids(0, Ask(33, 1)))) == 33 and ids(0, Ask(33, 1)) != ids(1, Ask(33, 1))
    assert len(spoken(prompt_source("chat", 9, 4000, CHAT)(0, Ask(112, 1)))) == 50
    with pytest.raises(UsageError, match="calibration"):
        prompt_source("chat", 9, 4000, None)


@given(
    st.integers(1, 3000), st.lists(st.integers(0, 9), max_size=6), st.integers(1, 600), st.sampled_from((None, CHAT))
)
@settings(deadline=None)
def test_prompts_share_their_pieces_and_nothing_else(length, pieces, piece_len, chat):
    """Any length and any pieces: the length is exact, two prompts with the same pieces differ only after them."""
    prompt = prompt_source("chat" if chat else "completions", 5, 4000, chat)
    ask = Ask(length, 1, pieces=tuple(pieces), piece_len=piece_len)
    one, other, alone = (prompt(3, ask), prompt(4, ask), prompt(3, Ask(length, 1)))
    read = spoken if chat else json.loads
    words, others = read(one), read(other)
    whole = max(1, CHAT.room(length)) if chat else length
    shared = min(whole, len(pieces) * (round(piece_len / CHAT.tokens_per_word) if chat else piece_len))
    assert len(words) == len(others) == len(read(alone)) == whole
    assert words[:shared] == others[:shared]
    if whole - shared >= 8:
        assert words[shared : shared + 8] != others[shared : shared + 8]
        assert words[shared : shared + 8] == read(alone)[:8], "what is a prompt's own does not depend on its pieces"


def test_ids_of_pieces_are_uniform_and_of_their_own():
    ids = asked_ids(3, 0, Ask(400_000, 1, pieces=tuple(range(800)), piece_len=500), 4000)
    counts = np.bincount(ids)[FIRST_ID:]
    assert len(ids) == 400_000 and ids.min() == FIRST_ID and ids.max() == 3999
    expected = 400_000 / (4000 - FIRST_ID)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - len(counts)) < 5 * np.sqrt(2 * len(counts))
    rows = ids.reshape(800, 500)
    assert len({tuple(row[:8]) for row in rows}) == 800
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.01
