"""Does the deployment answer? A real completion with a deadline, then small requests until every pair of servers knows
each other, so that the first cell does not measure handshakes and compilation."""

from __future__ import annotations

import time
from dataclasses import replace

from pdbench.deployment import Deployment
from pdbench.errors import PdbenchError, Unreachable, UsageError
from pdbench.run import RequestRow
from pdbench.sweep.client import Client, Request
from pdbench.sweep.delayed_ack import holds_back
from pdbench.sweep.drive import DRIVES, OPENS
from pdbench.sweep.fit import longest_prompt
from pdbench.sweep.plan import Plan
from pdbench.sweep.prompts import (
    WORDS,
    ChatCalibration,
    calibrate,
    ids_json,
    text_json,
    token_ids,
    user_message,
    word_numbers,
)
from pdbench.sweep.rows import CellContext, read_row
from pdbench.sweep.schedule import Ask

DEADLINE_S = 120.0  # of one warm-up request: the first one may compile kernels and shake hands
ROUNDS = 2  # requests per prefill x decode pair: round robin meets each pair once in P*D, the second pass is the spare
_PROMPT_LEN = 32
_OUTPUT_LEN = 2
_FEW_WORDS, _MANY_WORDS = 8, len(WORDS)  # every word once: their exact mean, but for the few
_SEED_SALT = 0x5EED  # warm-up prompts are never those of a cell


async def warm_up(
    deployment: Deployment, plan: Plan, *, deadline_s: float = DEADLINE_S, notes: list[str] | None = None
) -> ChatCalibration | None:
    """Warm every prefill x decode pair, try the longest prompt, and for chat learn how long a word is.

    Where `notes` are wanted, what is odd about the way to the server is added to them. Raises UsageError when the
    deployment refuses what the plan asks for, Unreachable when it does not answer.
    """
    drives = drives_of(plan, deployment)
    calibrated = [await _warm(deployment, plan, drive, deadline_s, notes) for drive in drives]
    return calibrated[-1]


def drives_of(plan: Plan, deployment: Deployment) -> list[str]:
    """The ways in which the plan sends to this deployment."""
    return list(dict.fromkeys(cell.drive for cell in plan.cells if cell.target == deployment.target)) or ["proxy"]


async def _warm(
    deployment: Deployment, plan: Plan, drive: str, deadline_s: float, notes: list[str] | None
) -> ChatCalibration | None:
    pairs = max(1, len(deployment.of("prefill"))) * max(1, len(deployment.of("decode")))
    async with OPENS[drive](deployment, plan.connections) as client:
        scout = _Scout(client, drive, deployment, replace(plan, timeout_s=min(plan.timeout_s, deadline_s)))
        chat = await (_warm_chat if plan.endpoint == "chat" else _warm_ids)(scout, plan, pairs)
    if notes is not None and chat is not None and not chat.conversation_id:
        notes.append(f"{deployment.front.url} refuses conversation_id: turns are sent without it.")
    if notes is not None and drive == "proxy" and scout.first is not None:
        odd = await holds_back(deployment, scout.first)
        notes += [odd] if odd else []
    return chat


async def _warm_chat(scout: _Scout, plan: Plan, pairs: int) -> ChatCalibration:
    few = await scout.words(_FEW_WORDS)
    chat = calibrate((_FEW_WORDS, few), (_MANY_WORDS, await scout.words(_MANY_WORDS)))
    if plan.session_turns:
        chat = replace(chat, conversation_id=await scout.takes_conversation_id())
    for cell in plan.cells if plan.trace is None else ():
        chat.words(cell.prompt_len)
    for _ in range(pairs * ROUNDS - 2):
        await scout.words(_FEW_WORDS)
    await scout.words(chat.words(longest_prompt(plan)))
    return chat


async def _warm_ids(scout: _Scout, plan: Plan, pairs: int) -> None:
    longest = longest_prompt(plan)
    for _ in range(pairs * ROUNDS):
        await scout.ids(min(_PROMPT_LEN, longest))
    if longest > _PROMPT_LEN:
        await scout.ids(longest)


class _Scout:
    """Sends one request at a time and turns what goes wrong into an error that says what to do."""

    def __init__(self, client: Client, drive: str, deployment: Deployment, plan: Plan) -> None:
        self._client, self._drive, self._deployment, self._plan = client, drive, deployment, plan
        self._context = CellContext(0, 0, deployment.target, time.monotonic_ns(), deployment.credentials)
        self._seed = plan.seed ^ time.time_ns()  # warmed servers must not know these prompts from an earlier run
        self._asked = 0
        self.first: Request | None = None

    async def ids(self, length: int) -> None:
        vocab_size = self._plan.vocab_size
        ids = token_ids(self._seed ^ _SEED_SALT, self._asked, length, vocab_size)
        await self._ask(ids_json(ids, vocab_size), length)

    async def words(self, words: int) -> int:
        """Ask with so many words; returns the tokens that the server counted."""
        text = text_json(word_numbers(self._seed ^ _SEED_SALT, self._asked, words))
        row = await self._ask(b"[" + user_message(text) + b"]", words)
        if row.prompt_tokens is None:
            raise UsageError(
                f"{self._deployment.front.url} sends no usage, so the length of a chat prompt cannot be known.",
                "Use --endpoint completions, which takes token ids.",
            )
        return row.prompt_tokens

    async def takes_conversation_id(self) -> bool:
        """Whether a request may name its conversation: vLLM passes over what it does not know, Dynamo refuses it."""
        text = text_json(word_numbers(self._seed ^ _SEED_SALT, self._asked, _FEW_WORDS))
        try:
            await self._ask(b"[" + user_message(text) + b"]", _FEW_WORDS, session=0)
        except UsageError as error:
            if "conversation_id" not in str(error):
                raise
            return False
        return True

    async def _ask(self, prompt: bytes, length: int, session: int | None = None) -> RequestRow:
        ask = DRIVES[self._drive](self._deployment, self._plan, f"warmup-{self._seed & 0xFFFFFFFF:08x}")
        request = ask(self._asked, Ask(length, _OUTPUT_LEN, session=session), prompt)
        self._asked += 1
        self.first = self.first or request
        raw = await self._client.start(request, time.monotonic_ns(), self._plan.timeout_s)
        row, _ = read_row(raw, self._context)
        if row.status != "ok":
            raise refusal(row, self._deployment)
        return row


def refusal(row: RequestRow, deployment: Deployment) -> PdbenchError:
    """What a warm-up request that failed means for the run: an error with the next thing to do."""
    url, said = deployment.front.url, row.error or "nothing"
    asked = f"a prompt of {row.prompt_len} tokens"
    match row.error_kind:
        case "http-401" | "http-403":
            return UsageError(
                f"{url} refuses the credentials (HTTP {row.http_status}): {said}",
                "Set PDBENCH_API_KEY, or --api-key-env / --api-key-file.",
            )
        case "http-404" if "model" not in said.lower():
            return UsageError(
                f"{url} knows no such address (HTTP 404): {said}",
                "Is this the server that takes clients' requests? An engine behind a router may not.",
            )
        case "http-404":
            return UsageError(
                f"{url} does not serve the model {deployment.model!r} there (HTTP 404): {said}",
                f"See what it serves: curl {url}/v1/models, then give --model.",
            )
        case "http-400" | "http-413" | "http-422":
            return UsageError(f"{url} refuses {asked} (HTTP {row.http_status}): {said}", _refusal_hint(said))
        case "not-sse":
            return UsageError(f"{url} answers with no event stream: {said}", "Is this the port of the API?")
        case "redirect":
            return UsageError(f"{url} is {said}.", "Give the address that it redirects to.")
        case "timeout":
            return Unreachable(
                f"{url} did not finish {asked} and {row.output_len} tokens of output: {said}.",
                "Look at the servers' logs; a pair that mixes push and pull can hang so.",
            )
        case "connect" | "dns" | "tls":
            return Unreachable(
                f"{url} cannot be reached ({row.error_kind}): {said}.", "Is it up? Try without one: --testbed pull"
            )
        case "http-429" | "http-503":
            return Unreachable(f"{url} turns requests away (HTTP {row.http_status}): {said}", "Wait until it is ready.")
    hint = "See the server's log; if the prompt may be too long for the model, choose shorter --prompt-lens."
    if deployment.front.role in ("proxy", "prefill"):
        hint = (
            "The handoff may be what fails: prefill and decode must agree on push or pull, version and KV layout. "
            "Look for 'NIXL compatibility hash mismatch' in decode's log."
        )
    return Unreachable(f"{url} failed on {asked} ({row.error_kind}): {said}", hint)


def _refusal_hint(said: str) -> str:
    words = said.lower()
    if "vocab" in words or "token id" in words or "token_id" in words:
        return "Give --vocab-size: ids are drawn from 256 up to it."
    if "context length" in words or "max_model_len" in words or "maximum" in words or "too long" in words:
        return "Choose shorter --prompt-lens or --output-len, or serve with a larger --max-model-len."
    return "See the server's log."
