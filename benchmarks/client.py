"""What the client costs and how far its times are off the server's own log, for ours, aiohttp and a raw floor.

    python benchmarks/client.py [--windtunnel DIR] [--only 200/s,64] [--clients socket,aiohttp,floor]

The server is the tests' ground-truth server, one Python thread and good for some thousand events a second, or, where
`--windtunnel` names its folder, a C server that this repository does not hold. Server and client get a core each, and
the highest priority that may be had. `floor` is a bare epoll loop over the same sockets that parses nothing and keeps
the kernel's stamps: what Python can do at all. CPU is that of the client's process from the begin of the schedule to
the last answer; the recorder's, which parses and writes, stands beside it. Ratios are to the floor in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
GROUND_TRUTH = HERE.parent / "tests" / "groundtruth" / "server.py"


@dataclass(frozen=True)
class Load:
    """Open loop at `rate`, or closed with `streams`."""

    name: str
    rate: float | None
    streams: int | None
    requests: int
    tokens: int
    ttft_ms: int = 50
    itl_ms: int = 20


LOADS = [
    Load("4/s x 64", 4, None, 32, 64),
    Load("50/s x 16", 50, None, 250, 16, 20, 5),
    Load("200/s x 2", 200, None, 800, 2, 10, 5),
    Load("200/s x 100", 200, None, 1000, 100),
    Load("16 streams x 2", None, 16, 4000, 2, 5, 2),
    Load("64 streams", None, 64, 192, 128),
    Load("256 streams", None, 256, 512, 128),
    Load("1024 streams", None, 1024, 1024, 64),
]


def prefer(core: int) -> None:
    """One core, and before all others, as far as this user may."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.setsid()
        os.nice(-20)
        Path("/proc/self/autogroup").write_text("-20")


@contextlib.contextmanager
def served(load: Load, directory: Path, windtunnel: Path | None) -> Iterator[tuple[int, Path]]:
    """The server on the first core: its port and its log."""
    log = directory / "server.log"
    log.touch()
    times = ["--ttft", str(load.ttft_ms), "--itl", str(load.itl_ms)]
    if windtunnel is None:
        command = [sys.executable, str(GROUND_TRUTH), "--log", str(log), *times]
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [str(windtunnel / "windtunnel"), "--port", str(port), "--log", str(log), *times]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: prefer(0),
    ) as server:
        assert server.stdout is not None
        if windtunnel is None:
            port = int(server.stdout.readline())
        time.sleep(0.5)
        try:
            yield port, log
        finally:
            server.terminate()


def truth(log: Path, windtunnel: Path | None) -> dict[str, list[int]]:
    """When the server wrote each token event, by request id."""
    if windtunnel is None:
        records = [json.loads(line) for line in log.read_text().splitlines()]
        return {record["request_id"]: record["sent_ns"] for record in records}
    sys.path.insert(0, str(windtunnel))
    import wtlog

    return {record["xid"]: record["tw"].tolist() for record in wtlog.read(str(log))["recs"]}


# One client in a process of its own: prints JSON with its stamps.
def ours(client: str, load: Load, port: int, directory: Path) -> dict[str, Any]:
    import uvloop

    from pdbench.deployment import build
    from pdbench.run import Run
    from pdbench.sweep import cell as cells
    from pdbench.sweep import clients
    from pdbench.sweep.health import Health
    from pdbench.sweep.loops import Flight
    from pdbench.sweep.plan import Cell, Plan
    from pdbench.sweep.recorder import Recorder

    clients.CLIENTS["socket"] = clients.CLIENTS[client]
    marks: list[float] = []
    health_open, land = Health.open, Flight.land

    def marked_open(self: Health, start_ns: int) -> None:
        marks.append(time.process_time())
        health_open(self, start_ns)

    async def marked_land(self: Flight) -> None:
        await land(self)
        marks.append(time.process_time())

    Health.open, Flight.land = marked_open, marked_land  # type: ignore[method-assign]
    cell = Cell(0, "default", load.rate, load.streams, 16, load.tokens)
    plan = Plan((cell,), duration_s=None, num_prompts=load.requests, timeout_s=60.0, seed=7)
    deployment = build("default", [("colocated", f"http://127.0.0.1:{port}")], model="m")

    async def go() -> tuple[dict[str, Any], Run, float]:
        run = Run.create(directory / "run", {"plan": plan.document()})
        recorder = await Recorder.start()
        os.sched_setaffinity(recorder.pid, range(os.cpu_count() or 1))
        job = cells.Job(deployment, plan, cell, 0, cells.run_tag(run))
        entry = await cells.Alone(recorder).run_cell(job, run, asyncio.Event(), lambda row: None)
        ticks = Path(f"/proc/{recorder.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        await recorder.close()
        return entry, run, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        entry, run, recorder_s = runner.run(go())
    chunks = [json.loads(line) for line in run.live_path("chunks", 0, 0).read_text().splitlines()]
    rows = {}
    for line in run.live_path("requests", 0, 0).read_text().splitlines():
        row = json.loads(line)
        rows[row["request_id"]] = row
    stamps = {
        c["request_id"]: [run.origin_ns + (rows[c["request_id"]]["sent_s"] + o) * 1e9 for o in c["offset_s"]]
        for c in chunks
    }
    failed = sum(row["status"] != "ok" for row in rows.values())
    return {
        "stamps": stamps, "cpu_s": marks[1] - marks[0], "recorder_s": recorder_s, "client": entry["client"],
        "failed": failed,
    }  # fmt: skip


def floor(load: Load, port: int) -> dict[str, Any]:
    """Sockets, epoll, recvmsg, nothing else: stamps of reads, one event each as far as the server is not late."""
    import select

    rng = np.random.default_rng(7)
    due = np.cumsum(rng.exponential(1 / load.rate, load.requests)) if load.rate else np.zeros(load.requests)
    body = json.dumps({"prompt": [1] * 16, "max_tokens": load.tokens, "stream": True}).encode()
    epoll, open_now, reads = select.epoll(), {}, {}
    offset_ns = min(time.time_ns() - time.monotonic_ns() for _ in range(1000))
    late, sent, over = [], 0, 0
    cpu, start = time.process_time(), time.monotonic() + 0.01
    while over < load.requests:
        now = time.monotonic()
        while sent < load.requests and (start + due[sent] <= now if load.rate else len(open_now) < (load.streams or 1)):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, 35, 1)
            name = f"floor-{sent}"
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\nConnection: close\r\n"
            late.append(time.monotonic() - start - due[sent])
            sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            sock.setblocking(False)
            open_now[sock.fileno()] = (sock, reads.setdefault(name, []))
            epoll.register(sock.fileno(), select.EPOLLIN)
            sent += 1
        wait_s = max(0.0, start + due[sent] - time.monotonic()) if load.rate and sent < load.requests else 1.0
        for fd, _ in epoll.poll(wait_s, 256):
            sock, kept = open_now[fd]
            data, ancillary, _, _ = sock.recvmsg(16384, 32)
            kept.append((time.monotonic_ns(), data, ancillary))
            if not data or data.endswith(b"\r\n0\r\n\r\n"):
                epoll.unregister(fd)
                del open_now[fd]
                sock.close()
                over += 1
    cpu = time.process_time() - cpu
    stamps: dict[str, list[float]] = {}
    for name, kept in reads.items():
        stamps[name] = []
        for user_ns, data, ancillary in kept:
            seconds, ns = struct.unpack("@ll", ancillary[0][2]) if ancillary else (0, 0)
            stamp_ns = seconds * 10**9 + ns - offset_ns if ancillary else user_ns
            stamps[name] += [stamp_ns] * data.count(b'"text": " tok"' if b'"text": ' in data else b'"text":"')
    lateness_ms = float(np.percentile(late, 99)) * 1e3 if load.rate else None
    return {"stamps": stamps, "cpu_s": cpu, "recorder_s": None, "client": {"lateness_p99_ms": lateness_ms}, "failed": 0}


def figures(load: Load, result: dict[str, Any], theirs: dict[str, list[int]]) -> dict[str, float | None]:
    firsts, gaps, every = [], [], []
    for request_id, stamps in result["stamps"].items():
        count = min(len(stamps), load.tokens)
        error = (np.array(stamps[:count]) - np.array(theirs[request_id][:count])) / 1e6
        if count:
            firsts.append(error[0])
            every.append(error)
            gaps.append(np.abs(np.diff(error)))
    events = np.concatenate(every)
    gap = np.concatenate(gaps)
    client = result["client"]
    return {
        "us/event": result["cpu_s"] / len(events) * 1e6,
        "ms/request": result["cpu_s"] / load.requests * 1e3,
        "recorder us/event": None if result["recorder_s"] is None else result["recorder_s"] / len(events) * 1e6,
        "first mean": float(np.mean(firsts)),
        "first p99": float(np.percentile(firsts, 99)),
        "event p50": float(np.percentile(events, 50)),
        "event p99": float(np.percentile(events, 99)),
        "gap p99": float(np.percentile(gap, 99)) if len(gap) else None,
        "late p99": client.get("lateness_p99_ms") if load.rate else None,
        "lag p99": client.get("loop_lag_p99_ms"),
        "read lag p99": client.get("kernel_to_user_p99_ms"),
        "shared reads": client.get("shared_reads_share"),
        "failed": result["failed"],
    }


def trial(client: str, load: Load, windtunnel: Path | None) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with served(load, directory, windtunnel) as (port, log):
            command = [sys.executable, __file__, "--one", client, "--load", load.name, "--port", str(port)]
            with (directory / "result").open("w") as output:
                subprocess.run(
                    [*command, "--directory", folder],
                    stdout=output,
                    check=True,
                    timeout=120,
                    preexec_fn=lambda: prefer(1),
                )
            time.sleep(0.2)
        return figures(load, json.loads((directory / "result").read_text()), truth(log, windtunnel))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windtunnel", type=Path)
    parser.add_argument("--only", help="parts of loads' names, with commas between")
    parser.add_argument("--clients", default="socket,aiohttp,floor")
    for hidden in ("--one", "--load", "--port", "--directory"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        load = next(load for load in LOADS if load.name == options.load)
        run_one = floor(load, options.port) if options.one == "floor" else None
        print(json.dumps(run_one or ours(options.one, load, int(options.port), Path(options.directory))))
        return
    for load in LOADS:
        if options.only and not any(part in load.name for part in options.only.split(",")):
            continue
        print(f"{load.name}: {load.requests} requests; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        table = {client: trial(client, load, options.windtunnel) for client in options.clients.split(",")}
        base = table.get("floor", {})
        names = list(next(iter(table.values())))
        print(f"  {'times in ms':<18}" + "".join(f"{client:>20}" for client in table))
        for name in names:
            cells = []
            for found in table.values():
                value, of = found[name], base.get(name)
                ratio = f" (x{value / of:.1f})" if value and of and found is not base else ""
                cells.append("-" if value is None else f"{value:.3f}{ratio}")
            print(f"  {name:<18}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
