"""Response bodies: the JSON of vLLM 0.32, one server-sent event for each token."""

import json
import time
from typing import Any

from pdbench.testbed.body import Body
from pdbench.testbed.request import Request

VERSION = "0.32.0+pdbench.testbed"  # the suffix is how a client knows that this is SIMULATED
FINGERPRINT = f"vllm-{VERSION}-simulated"
DONE_EVENT = b"data: [DONE]\n\n"
_WORDS = (" alder", " birch", " cedar", " elm", " fir", " hazel", " larch", " maple", " oak", " pine", " rowan", " yew")


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def error_event(body: dict[str, Any]) -> bytes:
    """An error after the 200 has gone out, as vLLM sends it."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Events:
    """The events of one stream; everything but the changing parts is encoded once."""

    def __init__(self, request: Request, body: Body, chat: bool, model: str, thinking: int = 0) -> None:
        self._prompt_tokens = request.prompt_tokens
        self._continuous = body.continuous_usage and body.include_usage
        self._chat = chat
        self._thinking = thinking if chat else 0  # so many tokens come as reasoning
        kind = "chat.completion.chunk" if chat else "text_completion"
        common = {"id": request.api_id, "object": kind, "created": int(time.time()), "model": model}
        self._common = _json(common)[:-1]
        if chat:
            self._head = f'data: {self._common},"choices":[{{"index":0,"delta":{{"content":"'
            self._middle = '"},"logprobs":null,"finish_reason":'
        else:
            self._head = f'data: {self._common},"choices":[{{"index":0,"text":"'
            self._middle = '","logprobs":null,"finish_reason":'

    def _usage(self, tokens: int) -> str:
        total = self._prompt_tokens + tokens
        return f'"usage":{{"prompt_tokens":{self._prompt_tokens},"total_tokens":{total},"completion_tokens":{tokens}}}'

    def role(self) -> bytes:
        """Chat only: the event before the first token, which names the role and carries no text."""
        choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        usage = f",{self._usage(0)}" if self._continuous else ""
        end = ',"prompt_token_ids":null,"prompt_text":null}'
        return f'data: {self._common},"choices":[{choice}]{usage}{end}\n\n'.encode()

    def token(self, number: int, finish_reason: str | None) -> bytes:
        """The event of token `number` (1 is the first)."""
        reason = f'"{finish_reason}"' if finish_reason else "null"
        if self._chat:
            tail = ',"stop_reason":null,"token_ids":null}]' if finish_reason else ',"token_ids":null}]'
        else:
            tail = ',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        usage = f",{self._usage(number)}" if self._continuous else ""
        head = self._head
        if number <= self._thinking:
            head = head.replace('"delta":{"content":', '"delta":{"reasoning":')
        return f"{head}{_WORDS[number % 12]}{self._middle}{reason}{tail}{usage}}}\n\n".encode()

    def usage(self, tokens: int) -> bytes:
        """The last event before [DONE], when usage was asked for."""
        text = f'{self._common},"choices":[],{self._usage(tokens)},"system_fingerprint":"{FINGERPRINT}"}}'
        return f"data: {text}\n\n".encode()


def complete(request: Request, chat: bool, model: str) -> dict[str, Any]:
    """The body of a request that did not stream."""
    text = "".join(_WORDS[number % 12] for number in range(1, request.generated + 1))
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": request.status, "stop_reason": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text, "prompt_logprobs": None}
    return {
        "id": request.api_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{**choice, "token_ids": None, "prompt_token_ids": None, "routed_experts": None}],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {
            "prompt_tokens": request.prompt_tokens,
            "total_tokens": request.prompt_tokens + request.generated,
            "completion_tokens": request.generated,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "kv_transfer_params": request.kv_out,
        "ec_transfer_params": None,
        "metrics": None,
    }
