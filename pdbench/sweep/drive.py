"""What is asked, of whom? The body and the headers of one request: the seam `DRIVES`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pdbench.deployment import Deployment
from pdbench.sweep.client import Request
from pdbench.sweep.plan import Cell, Plan

MakeRequest = Callable[[int], Request]
Drive = Callable[[Deployment, Plan, Cell, str, Callable[[int], bytes]], MakeRequest]

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def through_proxy(
    deployment: Deployment, plan: Plan, cell: Cell, id_prefix: str, prompt: Callable[[int], bytes]
) -> MakeRequest:
    """Requests to the deployment's entry, the way its clients ask; `prompt` gives the JSON value of each prompt."""
    url = deployment.entry.url + _PATHS[plan.endpoint]
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # a compressor may hold events back
        **deployment.credentials.headers(url),
    }
    fields: dict[str, Any] = {
        "model": deployment.model,
        "max_tokens": cell.output_len,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    if plan.endpoint == "chat":
        fields["max_completion_tokens"] = cell.output_len
        before, after = b'"messages":[{"role":"user","content":', b"}]}"
    else:
        before, after = b'"prompt":', b"}"
    head = json.dumps(fields, separators=(",", ":")).encode()[:-1] + b"," + before

    def make(index: int) -> Request:
        request_id = f"{id_prefix}-{index}"
        return Request(
            index=index,
            request_id=request_id,
            url=url,
            headers={**headers, "X-Request-Id": request_id},
            body=head + prompt(index) + after,
            prompt_len=cell.prompt_len,
            output_len=cell.output_len,
        )

    return make


DRIVES: dict[str, Drive] = {"proxy": through_proxy}
