"""What is asked? Fresh prompts: token ids of an exact length, or chat text of about that length.

A prompt is a function of (seed, index) and of the shared pieces that it begins with, so it does not matter in which
order or by which process prompts are made. It comes as the bytes of its JSON value, made by one table lookup: a list of
16,384 ids takes some 0.1 ms this way and over 1 ms through a JSON encoder, which would hold up every stream that the
client is stamping meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pdbench.errors import UsageError
from pdbench.sweep.schedule import Ask

FIRST_ID = 256  # below are the byte and special tokens of the usual vocabularies
_PIECES = 0x9E3779B97F4A7C15  # shared pieces are drawn apart from what follows them
_MASK = (1 << 64) - 1

# Words of one length, so that a row of the lookup table is one word and its blank.
_TEXT = """
able acid area army away baby back ball band bank base bath bear beat been bell belt best bird blow blue boat body bold
bone book born both bowl bulk burn bush busy cake call calm came camp card care case cash cast cell chat chip city club
coal coat code cold come cook cool cope copy core cost crew crop dark data date dawn days dead deal dear debt deep deny
desk dial diet disc dish does done door dose down draw drew drop drug dual duke dust duty each earn ease east easy edge
else even ever evil exit face fact fail fair fall farm fast fate fear feed feel feet fell felt file fill film find fine
fire firm fish five flat flow food foot ford form fort four free from fuel full fund gain game gate gave gear gene gift
girl give glad goal goes gold golf gone good gray grew grey grow gulf hair half hall hand hang hard harm hate have head
hear heat held help here hero high hill hire hold hole holy home hope host hour huge hung hunt hurt idea inch into iron
item join jump jury just keen keep kept kick kill kind king knee knew know lack lady laid lake land lane last late lead
left less life lift like line link list live load loan lock logo long look lord lose loss lost love luck made mail main
make male many mark mass meal mean meat meet menu mere mile milk mill mind mine miss mode mood moon more most move much
must name navy near neck need news next nice nine none nose note okay once only onto open oral over pace pack page paid
"""
WORDS = tuple(dict.fromkeys(_TEXT.split()))


@dataclass(frozen=True, slots=True)
class ChatCalibration:
    """How many tokens the server counts for a chat prompt: overhead_tokens + words * tokens_per_word.

    And whether it takes a `conversation_id` (of a server that was not asked it is not known).
    """

    overhead_tokens: float
    tokens_per_word: float
    conversation_id: bool = True

    def room(self, prompt_len: int) -> int:
        """Words that make a prompt of about `prompt_len` tokens; below 1 where the template takes it all."""
        return round((prompt_len - self.overhead_tokens) / self.tokens_per_word)

    def words(self, prompt_len: int) -> int:
        """Words that make a prompt of about `prompt_len` tokens. Raises UsageError when the template is longer."""
        words = self.room(prompt_len)
        if words < 1:
            raise UsageError(
                f"a chat prompt of {prompt_len} tokens has no room for words: "
                f"the chat template alone takes {self.overhead_tokens:.0f}.",
                "Choose longer --prompt-lens, or --endpoint completions.",
            )
        return words


def calibrate(few: tuple[int, int], many: tuple[int, int]) -> ChatCalibration:
    """The calibration from two (words, prompt tokens) pairs as the server counted them."""
    per_word = (many[1] - few[1]) / (many[0] - few[0])
    if not per_word > 0:
        raise UsageError(
            f"the server counts {few[1]} tokens for {few[0]} words and {many[1]} for {many[0]}.",
            "Its usage does not tell the prompt's length: use --endpoint completions.",
        )
    return ChatCalibration(few[1] - few[0] * per_word, per_word)


def _generator(seed: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index])))


def token_ids(seed: int, index: int, length: int, vocab_size: int) -> NDArray[np.int64]:
    """`length` ids, uniform from FIRST_ID to vocab_size - 1."""
    if vocab_size <= FIRST_ID:
        raise UsageError(f"--vocab-size {vocab_size}: ids are drawn from {FIRST_ID} up, so it must be larger.")
    return _generator(seed, index).integers(FIRST_ID, vocab_size, length)


@lru_cache(maxsize=2)
def _id_table(vocab_size: int) -> NDArray[np.bytes_]:
    width = len(str(vocab_size - 1))
    return np.array([f"{number:>{width}}," for number in range(vocab_size)], dtype=f"S{width + 1}")


def ids_json(ids: NDArray[np.int64], vocab_size: int) -> bytes:
    """The ids as a JSON array; short numbers carry leading blanks, which JSON allows."""
    text: bytes = _id_table(vocab_size)[ids].tobytes()
    return b"[" + text[:-1] + b"]"


@lru_cache(maxsize=1)
def _word_table() -> NDArray[np.bytes_]:
    return np.array([f"{word} " for word in WORDS], dtype="S5")


def word_numbers(seed: int, index: int, words: int) -> NDArray[np.int64]:
    """Random words by their place in WORDS: the whole list shuffled, again and again, so that texts of one length
    differ little in tokens."""
    rng = _generator(seed, index)
    rounds = -(-words // len(WORDS))
    shuffled: list[NDArray[np.int64]] = [rng.permutation(len(WORDS)) for _ in range(rounds)]
    return np.concatenate(shuffled)[:words] if shuffled else np.empty(0, dtype=np.int64)


def text_json(numbers: NDArray[np.int64]) -> bytes:
    """The words with these numbers as a JSON string."""
    text: bytes = _word_table()[numbers].tobytes()
    return b'"' + text[:-1] + b'"'


def user_message(text: bytes) -> bytes:
    """A JSON string as the JSON of a user's message."""
    return b'{"role":"user","content":' + text + b"}"


def _piece_ids(seed: int, pieces: tuple[int, ...], length: int, vocab_size: int) -> NDArray[np.int64]:
    """The ids of all pieces, one after the other: SplitMix64 of (seed, piece, place), since a generator for each of a
    long prompt's pieces would take milliseconds."""
    starts = np.array([(seed ^ piece * _PIECES) & _MASK for piece in pieces], dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = _mixed(np.add.outer(_mixed(starts), np.arange(length, dtype=np.uint64)))
    span = np.uint64(vocab_size - FIRST_ID)
    return (FIRST_ID + ((mixed >> np.uint64(32)) * span >> np.uint64(32)).astype(np.int64)).ravel()


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014), for each element."""
    value = value + np.uint64(_PIECES)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@lru_cache(maxsize=1024)
def _piece_words(seed: int, piece: int, words: int) -> NDArray[np.int64]:
    return word_numbers(seed ^ _PIECES, piece, words)


def asked_ids(seed: int, index: int, ask: Ask, vocab_size: int) -> NDArray[np.int64]:
    """The token ids of a prompt: its pieces, then ids of its own."""
    if not ask.pieces:
        return token_ids(seed, index, ask.prompt_len, vocab_size)
    shared = _piece_ids(seed, ask.pieces, ask.piece_len, vocab_size)[: ask.prompt_len]
    return np.concatenate((shared, token_ids(seed, index, ask.prompt_len - len(shared), vocab_size)))


def asked_words(seed: int, index: int, ask: Ask, chat: ChatCalibration) -> NDArray[np.int64]:
    """The words of a chat prompt: those of its pieces, then words of its own; at least one."""
    words = max(1, chat.room(ask.prompt_len))
    each = round(ask.piece_len / chat.tokens_per_word)
    pieces = [_piece_words(seed, piece, each) for piece in ask.pieces]
    own = word_numbers(seed, index, max(0, words - len(pieces) * each))
    return np.concatenate([*pieces, own])[:words]


def prompt_source(
    endpoint: str, seed: int, vocab_size: int, chat: ChatCalibration | None
) -> Callable[[int, Ask], bytes]:
    """The JSON of a request's prompt: an array of ids, or for chat the list of messages."""
    if endpoint != "chat":
        return lambda index, ask: ids_json(asked_ids(seed, index, ask, vocab_size), vocab_size)
    if chat is None:
        raise UsageError("chat prompts need the calibration that the warm-up makes.")
    return lambda index, ask: b"[" + user_message(text_json(asked_words(seed, index, ask, chat))) + b"]"
