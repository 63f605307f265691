"""What holds for all tests.

Property tests draw the same examples in every run; PDBENCH_FUZZ=1 draws new ones.

Most of what is tested here waits: `pytest -n 3` runs three tests side by side. Those marked `alone` hold times against
each other and have the machine to themselves.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("fuzz" if os.environ.get("PDBENCH_FUZZ") else "fixed")
# A shell starts what runs in its background deaf to Ctrl-C, and all that is started there inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that are `alone` come last: each would make all others wait for the tests under way to end."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.fixture(scope="session")
def locks(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> tuple[Path, Path]:
    """A turnstile and the machine; the same files for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    folder = base if worker_id == "master" else base.parent
    return folder / "turnstile", folder / "machine"


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, locks: tuple[Path, Path]) -> Iterator[None]:
    """The machine, shared with the other tests or for one alone, who waits at the turnstile before all later ones."""
    alone = request.node.get_closest_marker("alone") is not None
    with locks[0].open("w") as turnstile, locks[1].open("w") as machine:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield
