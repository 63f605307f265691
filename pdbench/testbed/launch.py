"""Start and end a SIMULATED deployment from a program.

with running(Settings(mode="pull").on_free_ports()) as testbed:
    ...  # testbed.proxy_url, testbed.decode_urls, testbed.log_dir
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pdbench.testbed.settings import Settings


class TestbedError(RuntimeError):
    """The deployment could not start; the message says why and what to do."""

    __test__ = False  # not a test, whatever its name looks like to a collector


@dataclass(frozen=True)
class Running:
    """A deployment that answers."""

    mode: str
    proxy_url: str | None  # None for co-located
    prefill_urls: list[str]
    decode_urls: list[str]
    server_urls: list[str]  # the co-located server
    pids: dict[str, int]  # by server name: proxy, prefill-0, decode-0, colocated-0, ...
    log_dir: Path

    @property
    def entry_url(self) -> str:
        """Where clients send their requests: the proxy, or the co-located server."""
        return self.proxy_url or self.server_urls[0]

    def as_dict(self) -> dict[str, object]:
        """For JSON; says that it is simulated."""
        return {**vars(self), "log_dir": str(self.log_dir), "simulated": True}


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    """Start the processes, yield when all answer, and end them whatever happens."""
    if settings.log:
        log_dir = Path(settings.log).absolute()
        log_dir.mkdir(parents=True, exist_ok=True)
    else:
        log_dir = Path(tempfile.mkdtemp(prefix="pdbench-testbed-"))
    settings = replace(settings, log=str(log_dir))
    command = [sys.executable, "-m", "pdbench.testbed.group", settings.to_json()]
    with (
        (log_dir / "testbed.stderr").open("ab") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as group,
    ):
        try:
            yield _told(group, log_dir)
        finally:
            assert group.stdin is not None
            group.stdin.close()  # the group ends its servers, then itself
            try:
                group.wait(timeout=10)
            except subprocess.TimeoutExpired:
                group.kill()


def _told(group: "subprocess.Popen[bytes]", log_dir: Path) -> Running:
    assert group.stdout is not None
    line = group.stdout.readline()
    if not line:
        group.wait()
        tail = (log_dir / "testbed.stderr").read_text(errors="replace").strip().splitlines()[-1:]
        raise TestbedError(f"the SIMULATED deployment ended at once: {' '.join(tail) or 'no reason given'}")
    told = json.loads(line)
    if "error" in told:
        raise TestbedError(f"the SIMULATED deployment did not start: {told['error']}")
    told["log_dir"] = Path(told["log_dir"])
    return Running(**told)
