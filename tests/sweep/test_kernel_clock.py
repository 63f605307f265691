"""The wall clock is set while requests are under way: no stamp may show it."""

from __future__ import annotations

import time
from array import array

import pytest

from pdbench.sweep import exchange, kernel_clock
from pdbench.sweep.client import USER_STAMP
from pdbench.sweep.kernel_clock import KernelClock, LagHistogram
from tests.sweep.scripted import CHUNKED, DONE, FINISH, TOKEN, ask, chunk, request_of, scripted


class FakeTime:
    """Two clocks with a constant between them; reading takes `cost_ns`, and the wall clock can be set."""

    def __init__(self, offset_ns: int, costs_ns: list[int]) -> None:
        self.now_ns, self.offset_ns, self._costs, self._turn = 10**9, offset_ns, costs_ns, 0

    def _pass(self) -> None:
        self._turn += 1
        self.now_ns += self._costs[self._turn % len(self._costs)]

    def monotonic_ns(self) -> int:
        self._pass()
        return self.now_ns

    def time_ns(self) -> int:
        self._pass()
        return self.now_ns + self.offset_ns


@pytest.mark.parametrize("step_ns", [-3_600_000_000_000, -20_000, 20_000, 250_000_000])
def test_a_step_is_found_and_noise_is_none(monkeypatch, step_ns):
    fake = FakeTime(1_700_000_000 * 10**9, [40, 60, 55, 70, 45, 3_000, 61])
    monkeypatch.setattr(kernel_clock, "time", fake)
    clock = KernelClock()
    for _ in range(1000):
        clock.sample()
        assert abs(clock.offset_ns - fake.offset_ns) < 100 and clock.steps == 0
    before_ns = fake.now_ns
    fake.offset_ns += step_ns
    clock.sample()
    assert clock.steps == 1 and abs(clock.offset_ns - fake.offset_ns) < 5000
    assert clock.in_doubt(before_ns, fake.now_ns) and not clock.in_doubt(0, before_ns - 10**6)
    for _ in range(100):
        clock.sample()
    assert clock.steps == 1 and abs(clock.offset_ns - fake.offset_ns) < 100


def test_a_sample_that_took_long_proves_nothing(monkeypatch):
    fake = FakeTime(0, [40])
    monkeypatch.setattr(kernel_clock, "time", fake)
    clock = KernelClock()
    offset_ns = clock.offset_ns
    fake._costs = [2_000_000, 5]  # the machine took this process off its core in every bracket
    for _ in range(50):
        clock.sample()
    assert clock.steps == 0 and clock.offset_ns == offset_ns


def test_a_step_is_dated_from_the_last_sample_that_would_have_shown_it(monkeypatch):
    """A process that is taken off its core within a bracket cannot tell a step from its own absence."""
    fake = FakeTime(0, [40])
    monkeypatch.setattr(kernel_clock, "time", fake)
    clock = KernelClock()
    clock.sample()
    before_ns = fake.now_ns
    fake.offset_ns += 2_000_000
    fake._costs = [5_000_000]
    clock.sample()
    assert clock.steps == 0
    fake._costs = [40]
    clock.sample()
    assert clock.steps == 1 and clock.in_doubt(before_ns, before_ns + 1)


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_stamps_around_a_step_are_right(monkeypatch, step_s):
    """The wall clock is set by an hour in the middle of a stream, and with it the kernel's stamps."""
    wrote_ns = []

    def answers(conn):
        request_of(conn)
        conn.sendall(CHUNKED)
        for _ in range(10):
            time.sleep(0.1)
            wrote_ns.append(time.monotonic_ns())
            conn.sendall(chunk(TOKEN))
        conn.sendall(chunk(FINISH + DONE) + b"0\r\n\r\n")

    begun = time.monotonic()
    real_ns = time.time_ns
    timespec = exchange._TIMESPEC

    def step() -> int:
        return step_s if time.monotonic() - begun > 0.73 else 0

    class SteppedClock:
        monotonic_ns = staticmethod(time.monotonic_ns)

        @staticmethod
        def time_ns() -> int:
            return real_ns() + step() * 10**9

    class SteppedStamps:
        @staticmethod
        def unpack(data: bytes) -> tuple[int, int]:
            seconds, ns = timespec.unpack(data)
            return seconds + step(), ns

    with scripted(answers) as url:
        monkeypatch.setattr(kernel_clock, "time", SteppedClock)
        monkeypatch.setattr(exchange, "_TIMESPEC", SteppedStamps)
        row, raw, health = ask(url)
    assert row.status == "ok" and health["offset_steps"] == 1 and row.stamp == "user"
    assert health["stamps"]["kernel"] > health["stamps"]["user"] > 0
    stamps = [stamp_ns for stamp_ns, _ in raw.reads][:10]
    assert all(0 < ours - theirs < 50_000_000 for ours, theirs in zip(stamps, wrote_ns, strict=True))
    assert 0.9 < row.done_s - row.sent_s < 3 and row.sent_s < row.first_byte_s <= row.first_token_s


def test_percentiles_of_lags():
    lags = LagHistogram()
    assert lags.percentile_ms(50) is None
    for begin in range(0, 100_000, 100):
        lags.add(array("q", [USER_STAMP, *(1000 * (i + 1) for i in range(begin, begin + 100))]))
    assert lags.percentile_ms(50) == pytest.approx(50.0, rel=0.04)
    assert lags.percentile_ms(99) == pytest.approx(99.0, rel=0.04)
