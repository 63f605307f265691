"""What holds for all tests.

Property tests draw the same examples in every run; PDBENCH_FUZZ=1 draws new ones.

Most of what is tested here waits, so `pytest -n 3` runs three tests side by side. Those marked `alone` hold times
against each other: `-n` leaves them to a run of their own, `pytest -m alone`.
"""

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("fuzz" if os.environ.get("PDBENCH_FUZZ") else "fixed")
# A shell starts what runs in its background deaf to Ctrl-C, and all that is started there inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes of `-n`
        alone = [item for item in items if item.get_closest_marker("alone") is not None]
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]
