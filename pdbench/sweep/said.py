"""What did a chat answer say? Its text and its thinking trace, for the history that the next turn carries. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pdbench.sweep.sse import Read, parse

REASONING = ("reasoning", "reasoning_content")  # vLLM's name, and the older one that others keep
END_OF_THOUGHT = "</think>"  # in the text of a server without a reasoning parser


@dataclass(frozen=True, slots=True)
class Said:
    """An answer in words. `thought_share`: of its events, those that thought aloud; `thought_tokens` as usage says."""

    content: str = ""
    reasoning: str = ""
    key: str = REASONING[0]  # the name under which the server sent its reasoning
    thought_share: float = 0.0
    thought_tokens: int | None = None

    def message(self) -> bytes:
        """The answer as a message of the history, with the thinking trace as the server named it."""
        thought = {self.key: self.reasoning} if self.reasoning else {}
        return json.dumps({"role": "assistant", "content": self.content, **thought}).encode()


def said_in(reads: Sequence[Read]) -> Said:
    """The words of a stream of chat completions. Never raises, whatever the bytes are."""
    content: list[str] = []
    reasoning: list[str] = []
    key, tokens, events, thought = REASONING[0], None, 0, 0
    for event in parse(reads):
        try:
            message = json.loads(event.data)
        except (ValueError, RecursionError):
            continue
        if not isinstance(message, dict):
            continue
        tokens = _thought_tokens(message.get("usage"), tokens)
        delta = _delta(message)
        named = next((name for name in REASONING if _text(delta.get(name))), None)
        if named is not None:
            key = named
            reasoning.append(_text(delta[named]))
        if text := _text(delta.get("content")):
            content.append(text)
        if named is None and not text:
            continue
        events += 1
        thought += named is not None
    said = "".join(content)
    if not reasoning and END_OF_THOUGHT in said:
        end = said.index(END_OF_THOUGHT)
        thought = sum(so_far <= end for so_far in accumulate(map(len, content))) + 1
    return Said(said, "".join(reasoning), key, thought / events if events else 0.0, tokens)


def _delta(message: dict[str, Any]) -> dict[str, Any]:
    choices = message.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    return delta if isinstance(delta, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _thought_tokens(usage: Any, before: int | None) -> int | None:
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else before
