"""`ucx_perftest`, where it is installed: UCX without NIXL, on the same sizes.

It polls as busily as NIXL's threads do, so it runs when the workers have ended and not in their rounds. Its server
listens on 0.0.0.0: both of its ends run in a network namespace of their own, which nothing else reaches; where none can
be had, or the ends would be on two hosts, it is not run.
"""

from __future__ import annotations

import csv
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

TOOL = "ucx_perftest"
TESTS = {"READ": "ucp_get", "WRITE": "ucp_put_bw"}
MOVED_BYTES, FEWEST, MOST = 128 << 20, 3, 4000
LIMIT_S = 20.0
_MIB_IN_GB = (1 << 20) / 1e9  # its "MB" are MiB
_CLONE_NEWUSER, _CLONE_NEWNET, _SIOCSIFFLAGS, _IFF_UP = 0x10000000, 0x40000000, 0x8914, 1


def installed() -> bool:
    return shutil.which(TOOL) is not None


def perftest(op: str, nbytes: int) -> dict[str, Any]:
    """GB/s of host memory in pieces of `nbytes`: {"gb_s": ...}, or {"why": ...} where it cannot be run."""
    asked = json.dumps({"op": op, "nbytes": nbytes})
    command = [sys.executable, "-m", __name__, asked]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S + 10, env=environment())
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError, OSError):
        return {"why": f"{TOOL} did not answer"}
    return answer


def environment() -> dict[str, str]:
    """The settings of UCX that the workers use, in a namespace whose only interface is lo."""
    quiet = ("UCX_LOG_FILE", "UCX_PROTO_INFO", "UCX_LOG_LEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in quiet}
    return {**kept, "UCX_NET_DEVICES": _with_lo(kept.get("UCX_NET_DEVICES")), "UCX_WARN_UNUSED_ENV_VARS": "n"}


def _with_lo(devices: str | None) -> str:
    ports = [name for name in (devices or "").split(",") if ":" in name]
    return ",".join(["lo", *ports])


def iterations(nbytes: int) -> int:
    return max(FEWEST, min(MOST, MOVED_BYTES // max(1, nbytes)))


def gb_s(output: str) -> float | None:
    """The overall bandwidth of its CSV output (`-v -f`)."""
    rows = [row for row in csv.reader(output.splitlines()) if len(row) >= 7 and row[0].strip().isdigit()]
    return float(rows[-1][5]) * _MIB_IN_GB if rows else None


def _alone() -> None:
    """Move this process into a network namespace of its own, with lo up. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNET | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked.fileno(), _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _listening(port: int, deadline: float) -> bool:
    while time.monotonic() < deadline:
        with socket.socket() as caller:
            caller.settimeout(0.2)
            # Not a connection: the server takes the first caller for its client. A port that cannot be bound is taken.
            try:
                caller.bind(("127.0.0.1", port))
            except OSError:
                return True
        time.sleep(0.02)
    return False


def _main(asked: Mapping[str, Any]) -> dict[str, Any]:
    try:
        _alone()
    except OSError as error:
        return {"why": f"its server listens on every address, and no network namespace can be had ({error.strerror})"}
    nbytes, port = int(asked["nbytes"]), 13337
    words = ["-t", TESTS[str(asked["op"])], "-s", str(nbytes), "-n", str(iterations(nbytes)), "-w", "2", "-e"]
    words += ["-f", "-v", "-p", str(port)]
    server = subprocess.Popen([TOOL, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if not _listening(port, time.monotonic() + LIMIT_S):
            return {"why": f"{TOOL} did not start"}
        client = subprocess.run([TOOL, "127.0.0.1", *words], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"why": f"{TOOL} did not end within {LIMIT_S:.0f} s"}
    finally:
        server.kill()
        server.wait()
    found = gb_s(client.stdout)
    return {"gb_s": found} if found else {"why": f"{TOOL} failed: {(client.stderr.strip().splitlines() or ['?'])[-1]}"}


if __name__ == "__main__":
    print(json.dumps(_main(json.loads(sys.argv[1]))))
