"""Deployments for these tests: real processes on ports that the kernel picks."""

import itertools
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pdbench.testbed.launch import Running, running
from pdbench.testbed.settings import Settings

Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Any) -> Iterator[Start]:
    """`start(mode=..., ...)` starts a deployment that ends with the test."""
    with ExitStack() as stack:
        logs = (str(tmp_path / str(number)) for number in itertools.count())
        yield lambda **fields: stack.enter_context(running(Settings(log=next(logs), **fields).on_free_ports()))


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def page(url: str) -> str:
    """The text of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text: str = response.read().decode()
        return text


def value(url: str, name: str, label: str = "") -> float:
    """One sample of /metrics, by its name and optionally one `name="value"` label."""
    for line in page(url).splitlines():
        match = re.match(r"([\w:]+)(?:\{(.*)\})? (\S+)$", line)
        if match and match[1] == name and label in (match[2] or ""):
            return float(match[3])
    raise AssertionError(f"{name} {label} is not on the page of {url}")
