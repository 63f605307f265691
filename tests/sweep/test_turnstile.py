"""Streams that would all send at once take turns, and whoever reads is not kept waiting by them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
import uvloop

from pdbench.sweep.turnstile import Turnstile

LOOPS = pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


async def through(count: int, *, work_s: float = 0.0, cancelled: range = range(0)) -> list[tuple[int, int]]:
    """So many tasks pass: the number of each, and its turn of the loop. Other work takes `work_s` of a turn."""
    turnstile, loop = Turnstile(), asyncio.get_running_loop()
    passed: list[tuple[int, int]] = []
    turn = 0

    def turned() -> None:
        nonlocal turn, ticking
        turn += 1
        time.sleep(work_s)
        ticking = loop.call_soon(turned)

    async def one(number: int) -> None:
        await turnstile.passed()
        passed.append((number, turn))

    tasks = [loop.create_task(one(number)) for number in range(count)]
    ticking = loop.call_soon(turned)
    await asyncio.sleep(0)
    for number in cancelled:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ticking.cancel()
    return passed


@LOOPS
def test_a_few_pass_in_a_turn_and_in_their_order(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed = runner.run(through(1000))
    assert [number for number, _ in passed] == list(range(1000))
    assert max(Counter(turn for _, turn in passed).values()) == 8


@LOOPS
def test_one_passes_in_a_turn_while_the_loop_is_busy(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed = runner.run(through(40, work_s=0.003))
    assert [number for number, _ in passed] == list(range(40))
    later = Counter(turn for number, turn in passed if number >= 16)
    assert max(later.values()) == 1


@LOOPS
def test_who_gives_up_takes_no_place(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed = runner.run(through(200, cancelled=range(20, 180)))
    assert [number for number, _ in passed] == [*range(20), *range(180, 200)]


def test_the_next_comer_waits_behind_those_who_wait():
    async def scene() -> list[int]:
        turnstile = Turnstile()
        passed: list[int] = []

        async def one(number: int) -> None:
            await turnstile.passed()
            passed.append(number)
            if number < 30:
                await one(number + 100)

        await asyncio.gather(*(one(number) for number in range(30)))
        return passed

    passed = asyncio.run(scene())
    assert [number for number in passed if number < 30] == list(range(30))
    assert all(passed.index(29) < place for place, number in enumerate(passed) if number >= 108)
