"""The process that holds the deployment: it opens all ports, forks one process for each server, and ends them.

`python -m pdbench.testbed.group SETTINGS_JSON` prints one JSON line when all servers answer, and ends when its standard
input does, so nothing is left behind by a parent that dies.  Forking pays for the imports once, and opening the ports
first means that everybody knows them and that a taken one is reported in one place.
"""

import asyncio
import contextlib
import ctypes
import errno
import functools
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from pdbench.testbed import proxy, server
from pdbench.testbed.settings import Place, Settings, url_of

_PR_SET_PDEATHSIG = 1


def _listen(host: str, port: int, flag: str) -> socket.socket:
    if not 0 <= port <= 65535:
        raise SystemExit(f"--{flag} {port} is no port: it wants 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise SystemExit(f"port {port} on {host} {why}; give another one with --{flag}, or --port 0") from error
    sock.listen(1024)
    sock.setblocking(False)
    return sock


class Group:
    """Ports first, processes second."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pids: dict[str, int] = {}
        self._mine, self._theirs = socket.socketpair()
        self._sockets: dict[str, list[socket.socket]] = {}

    def place(self, role: str, index: int, first_port: int, transfer: str) -> Place:
        """Open the ports of one engine server: HTTP, and on prefill the one for handoffs."""
        host = self.settings.host
        opened = [_listen(host, first_port + index if first_port else 0, f"{role}-port")]
        if role == "prefill":
            opened.append(_listen(host, 0, "port"))
        ports = [sock.getsockname()[1] for sock in opened]
        made = Place(role, index, host, ports[0], ports[-1] if role == "prefill" else 0, transfer)
        self._sockets[made.name] = opened
        return made

    def fork(self, name: str, main: Callable[[list[socket.socket], int], Coroutine[Any, Any, None]]) -> None:
        """Start one server; Ctrl-C of the terminal is left to the parent, and the death of this process ends it."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.pids[name] = pid
            return
        with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux the group's end still ends it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # only the group may watch the parent's pipe
        self._close_all_but(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(self._sockets[name], self._theirs.fileno()))
        os._exit(0)

    def _close_all_but(self, name: str) -> None:
        """A port must stop answering when its owner dies, so nobody else may hold it."""
        for owner, opened in self._sockets.items():
            for sock in opened if owner != name else ():
                sock.close()

    def start(self) -> dict[str, Any]:
        """Open, fork, wait until all answer; returns what the parent is told."""
        s = self.settings
        told: dict[str, Any] = {"mode": s.mode, "proxy_url": None, "log_dir": s.log}
        if s.mode == "colocated":
            places = [self.place("colocated", 0, s.colocated_port, "")]
        else:
            prefills = [self.place("prefill", i, s.prefill_port, s.mode) for i in range(s.prefills)]
            decodes = [self.place("decode", i, s.decode_port, s.decode_mode or s.mode) for i in range(s.decodes)]
            places = prefills + decodes
            front = _listen(s.host, s.proxy_port, "proxy-port")
            self._sockets["proxy"] = [front]
            told["proxy_url"] = url_of(s.host, front.getsockname()[1])
            self.fork("proxy", lambda opened, ready: proxy.serve(s, prefills, decodes, opened[0], ready))
        for made in places:
            self.fork(made.name, functools.partial(server.serve, s, made))
        self._close_all_but("")
        for role, key in (("prefill", "prefill_urls"), ("decode", "decode_urls"), ("colocated", "server_urls")):
            told[key] = [made.url for made in places if made.role == role]
        told["pids"] = self.pids
        for _ in self.pids:
            if not select.select([self._mine], [], [], 30)[0]:
                raise SystemExit("a SIMULATED server did not come up within 30 s; see testbed.stderr in the log folder")
            self._mine.recv(1)
        return told

    def end(self) -> None:
        """End all servers."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def main() -> None:
    """Start what the argument says, report, and wait for the parent to close standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(
        OSError
    ):  # where allowed: real GPUs do not wait for the client's CPU, and this needs little
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a server that is killed on purpose leaves no zombie
    group = Group(Settings.from_json(sys.argv[1]))
    try:
        print(json.dumps(group.start()), flush=True)
        sys.stdin.buffer.read()
    except SystemExit as error:
        print(json.dumps({"error": str(error)}), flush=True)
    finally:
        group.end()


if __name__ == "__main__":
    main()
