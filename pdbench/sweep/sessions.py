"""Chats of several turns: each turn carries what was asked and what the server answered before it.

A client leads one conversation after the other. What it asks and how long it thinks is a function of (seed, session,
turn) alone, so it does not matter which process leads it; what the server answers is not, and neither is the history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdbench.errors import UsageError
from pdbench.run import RequestRow
from pdbench.sweep.client import Request
from pdbench.sweep.drive import AskRequest
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.prompts import ChatCalibration, asked_words, text_json, user_message
from pdbench.sweep.said import Said
from pdbench.sweep.schedule import PREFIXES, THINKING, Ask, Schedule, generator


@dataclass(frozen=True, slots=True)
class Script:
    """What all conversations of a cell have in common."""

    plan: Plan
    cell: Cell
    seed: int  # of the cell
    prompt_seed: int
    chat: ChatCalibration
    ask: AskRequest
    schedule: Schedule  # of whose requests each turn has the answer's length

    @property
    def turns(self) -> int:
        return self.plan.session_turns or 1

    def prefix_of(self, session: int) -> int:
        """Which shared beginning a session has; -1: none."""
        plan = self.plan
        return int(generator(self.seed, PREFIXES, session).integers(0, plan.num_prefixes)) if plan.prefix_len else -1

    def led(self, client: int) -> Iterator[Conversation]:
        """The conversations of one of the cell's clients, until its requests are used up."""
        session, most = client, self.plan.num_prompts
        while most is None or session * self.turns < most:
            yield Conversation(
                self, session, self.turns if most is None else min(self.turns, most - session * self.turns)
            )
            session += self.cell.max_concurrency or 1


def planned(plan: Plan, cell: Cell, clients: range) -> int | None:
    """How many requests these clients send, where their number is limited."""
    most, turns, beside = plan.num_prompts, plan.session_turns or 1, cell.max_concurrency or 1
    if most is None:
        return None
    return sum(
        min(turns, most - session * turns) for client in clients for session in range(client, -(-most // turns), beside)
    )


class Conversation:
    """One session: `think_s`, then `request`, then `hear`, and so on while there are `turns_left`."""

    def __init__(self, script: Script, session: int, turns: int) -> None:
        self._script, self._session, self._turns = script, session, turns
        self._thinks_s = generator(script.seed, THINKING, session).exponential(script.plan.think_s, script.turns)
        self._prefix = script.prefix_of(session)
        self._messages: list[bytes] = []
        self._known = 0  # tokens of the history, as the server counted them
        self._turn = 0

    @property
    def turns_left(self) -> int:
        return self._turns - self._turn

    @property
    def think_s(self) -> float:
        """The pause before the next turn. The first one too: clients don't begin all at once."""
        return float(self._thinks_s[self._turn])

    def request(self) -> Request:
        """The next turn: the history, and a new message of the user's."""
        script, turn = self._script, self._turn
        index = self._session * script.turns + turn
        first = turn == 0 and self._prefix >= 0
        own = Ask(
            prompt_len=script.cell.prompt_len,
            output_len=script.schedule.ask(index).output_len,
            pieces=(self._prefix,) if first else (),
            piece_len=script.plan.prefix_len,
        )
        text = text_json(asked_words(script.prompt_seed, index, own, script.chat))
        self._messages.append(user_message(text))
        shared = self._known
        if first and any(script.prefix_of(earlier) == self._prefix for earlier in range(self._session)):
            shared = script.plan.prefix_len
        ask = Ask(
            prompt_len=self._known + own.prompt_len,
            output_len=own.output_len,
            shared_len=shared,
            session=self._session,
            turn=turn + 1,
            tell_session=script.chat.conversation_id,
        )
        self._turn += 1
        return script.ask(index, ask, b"[" + b",".join(self._messages) + b"]")

    def hear(self, row: RequestRow, said: Said) -> None:
        """Take the answer into the history. Raises UsageError when the server does not count its tokens."""
        if row.prompt_tokens is None or row.output_tokens is None:
            raise UsageError(
                "the server sends no usage with its answers, so the length of a conversation cannot be known.",
                "Use --endpoint completions with a closed loop: --max-concurrency 8.",
            )
        self._messages.append(said.message())
        self._known = row.prompt_tokens + row.output_tokens
