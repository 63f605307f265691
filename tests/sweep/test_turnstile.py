"""Streams that would all send at once take turns, and whoever reads is not kept waiting by them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import uvloop

from pdbench.sweep.turnstile import Turnstile, a_turn

LOOPS = pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])


async def through(count: int, most: int, cancelled: range = range(0)) -> list[tuple[int, int]]:
    """So many tasks pass: the number of each, and its turn of the loop."""
    turnstile, loop = Turnstile(most), asyncio.get_running_loop()
    passed: list[tuple[int, int]] = []
    turn = 0

    def turned() -> None:
        nonlocal turn, ticking
        turn += 1
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
@pytest.mark.parametrize("most", [2, 10])
def test_a_few_pass_in_a_turn_and_in_their_order(new_loop, most):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed = runner.run(through(1000, most))
    assert [number for number, _ in passed] == list(range(1000))
    assert max(Counter(turn for _, turn in passed).values()) == most
    assert len({turn for _, turn in passed}) == 1000 / most


def test_the_more_streams_the_fewer_in_a_turn_and_some_always():
    turns = [a_turn(streams) for streams in (1, 64, 256, 512, 1024, 10_000, 1_000_000)]
    assert turns == sorted(turns, reverse=True) and turns[-1] > 0
    # A turn's sends, 0.1 ms each, and its 96 reads: all streams have been read within an ITL of 20 ms.
    assert all(streams / 96 * (a_turn(streams) * 0.1 + 1.3) < 20 for streams in (64, 256, 512, 1024))


@LOOPS
def test_who_gives_up_takes_no_place(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        passed = runner.run(through(200, 2, cancelled=range(20, 180)))
    assert [number for number, _ in passed] == [*range(20), *range(180, 200)]


def test_who_comes_again_waits_behind_those_who_wait():
    async def scene() -> tuple[list[int], list[int]]:
        turnstile = Turnstile(2)
        came: list[int] = []
        passed: list[int] = []

        async def twice(number: int) -> None:
            for each in (number, number + 100):
                came.append(each)
                await turnstile.passed()
                passed.append(each)

        await asyncio.gather(*(twice(number) for number in range(30)))
        return came, passed

    came, passed = asyncio.run(scene())
    assert passed == came and len(came) == 60
