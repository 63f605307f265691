"""Request bodies of the OpenAI API: from JSON to token counts, or to the error that vLLM answers."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdbench.testbed.settings import Settings


class ApiError(Exception):
    """A request that is refused, with the status and the JSON that vLLM gives."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400."""
    return ApiError(400, message, "BadRequestError", param)


INTERNAL = ApiError(500, "Internal server error", "InternalServerError")


@dataclass(frozen=True)
class Body:
    """What a request asks for, after defaults and limits."""

    tokens: Sequence[int]
    max_tokens: int
    output_tokens: int
    finish: str  # length, or stop when the simulated model ends first
    stream: bool
    include_usage: bool
    continuous_usage: bool
    kv: dict[str, Any]
    conversation_id: str | None  # of a session, for a proxy that keeps them together


def parse(body: object, chat: bool, request_id: str, settings: Settings) -> Body:
    """Check a decoded body as vLLM does; raises ApiError."""
    if not isinstance(body, dict):
        raise bad_request("The request body must be a JSON object.")
    model = body.get("model")
    if model not in (None, "", settings.model):
        message = f"The model `{model}` does not exist. Valid aliases: {settings.model}."
        raise ApiError(404, message, "NotFoundError", "model")
    if body.get("n") not in (None, 1):
        raise bad_request("The SIMULATED testbed generates one choice a request.", "n")
    tokens = _chat_tokens(body, settings) if chat else _prompt_tokens(body.get("prompt"), settings)
    limit = settings.max_model_len
    if len(tokens) >= limit:
        raise bad_request(
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(tokens)} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={len(tokens)})",
            "input_tokens",
        )
    asked = body.get("max_completion_tokens") if chat else None
    asked = body.get("max_tokens") if asked is None else asked
    default = limit if chat else 16
    if asked is not None and (not isinstance(asked, int) or asked < 1):
        raise bad_request(f"max_tokens must be at least 1, got {asked}.", "max_tokens")
    max_tokens = min(asked or default, limit - len(tokens))  # vLLM shortens silently, and so does this
    options = body.get("stream_options") or {}
    kv = body.get("kv_transfer_params") or {}
    if not isinstance(options, dict) or not isinstance(kv, dict):
        raise bad_request("stream_options and kv_transfer_params must be JSON objects.")
    output_tokens, finish = max_tokens, "length"
    if not body.get("ignore_eos"):
        drawn = max(_drawn_length(request_id, settings.eos_mean_tokens), int(body.get("min_tokens") or 0))
        if drawn < max_tokens:
            output_tokens, finish = drawn, "stop"
    return Body(
        tokens=tokens,
        max_tokens=max_tokens,
        output_tokens=output_tokens,
        finish=finish,
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        kv=kv,
        conversation_id=body.get("conversation_id"),
    )


def _prompt_tokens(prompt: object, settings: Settings) -> Sequence[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _words(prompt, settings)
    if not isinstance(prompt, list) or not prompt:
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    try:
        distinct = set(prompt)  # a few thousand ids, whatever the length of the prompt
    except TypeError:
        distinct = set()
    if set(map(type, distinct)) != {int}:
        raise bad_request("The SIMULATED testbed takes one prompt a request: a text or a list of token ids.", "prompt")
    for worst in (max(distinct), min(distinct)):
        if not 0 <= worst < settings.vocab_size:
            raise bad_request(f"Token id {worst} is out of vocabulary", "prompt")
    return prompt


def _chat_tokens(body: dict[str, Any], settings: Settings) -> Sequence[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a non-empty list.", "messages")
    parts: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if settings.keep_thinking and isinstance(message, dict) and isinstance(message.get("reasoning"), str):
            parts.append(message["reasoning"])
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, list):
            parts += [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
    return _words(" ".join(parts), settings)


def _words(text: str, settings: Settings) -> Sequence[int]:
    """One token for each word between white space; no tokenizer, no chat template."""
    words = text.split()
    if not words:
        raise bad_request("The prompt is empty.", "prompt")
    return [zlib.crc32(word.encode()) % settings.vocab_size for word in words]


def _drawn_length(request_id: str, mean: float) -> int:
    """A geometric length that depends on the request's id only, so that a run can be repeated."""
    if mean <= 1:
        return 1
    uniform = (zlib.crc32(request_id.encode()) + 0.5) / 2**32
    return 1 + int(math.log(uniform) / math.log(1 - 1 / mean))
