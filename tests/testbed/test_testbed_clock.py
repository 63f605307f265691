"""Waiting for an instant, with the kernel's timer and without."""

import asyncio
import sys
import time

import pytest

from pdbench.testbed.clock import Alarm

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("platform", [sys.platform, "elsewhere"])
def test_until_returns_at_the_instant_whatever_wakes(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    async def go() -> list[float]:
        alarm, late = Alarm(), []
        for i in range(20):
            instant = time.monotonic() + 0.0057
            asyncio.get_running_loop().call_later(0.002, alarm.wake)
            await alarm.until(instant)
            late.append(time.monotonic() - instant)
            assert late[i] >= 0
        return sorted(late)

    assert asyncio.run(go())[10] < 0.003


def test_wait_ends_with_a_wake_even_an_earlier_one() -> None:
    async def go() -> None:
        alarm = Alarm()
        begun = time.monotonic()
        alarm.wake()
        await alarm.wait(None)
        asyncio.get_running_loop().call_later(0.05, alarm.wake)
        await alarm.wait(begun + 60)
        assert 0.05 <= time.monotonic() - begun < 5
        await alarm.wait(time.monotonic() + 0.01)  # nobody wakes: the instant ends it

    asyncio.run(go())
