"""What is asked, of whom? The body and the headers of one request: the seam `DRIVES`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pdbench.deployment import Deployment
from pdbench.sweep.client import Request
from pdbench.sweep.plan import Plan
from pdbench.sweep.schedule import Ask

MakeRequest = Callable[[int], Request]
AskRequest = Callable[[int, Ask, bytes], Request]  # its index, what it asks for, the JSON of its prompt or messages
Drive = Callable[[Deployment, Plan, str], AskRequest]

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def through_proxy(deployment: Deployment, plan: Plan, id_prefix: str) -> AskRequest:
    """Requests to the deployment's entry, the way its clients ask."""
    url = deployment.entry.url + _PATHS[plan.endpoint]
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # a compressor may hold events back
        **deployment.credentials.headers(url),
    }
    fields: dict[str, Any] = {
        "model": deployment.model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    chat = plan.endpoint == "chat"
    head = json.dumps(fields, separators=(",", ":")).encode()[:-1]

    def request(index: int, ask: Ask, prompt: bytes) -> Request:
        request_id = f"{id_prefix}-{index}"
        body = head + b',"max_tokens":%d' % ask.output_len
        if chat:
            body += b',"max_completion_tokens":%d' % ask.output_len
        if ask.session is not None:
            body += b',"conversation_id":"%s-s%d"' % (id_prefix.encode(), ask.session)
        return Request(
            index=index,
            request_id=request_id,
            url=url,
            headers={**headers, "X-Request-Id": request_id},
            body=body + (b',"messages":' if chat else b',"prompt":') + prompt + b"}",
            prompt_len=ask.prompt_len,
            output_len=ask.output_len,
            request_class=ask.request_class,
            session=ask.session,
            turn=ask.turn,
            shared_len=ask.shared_len,
        )

    return request


DRIVES: dict[str, Drive] = {"proxy": through_proxy}
