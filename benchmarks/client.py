"""What the client costs and how far its times are off the server's own log, beside floors and peers, in one run.

    python benchmarks/client.py [--only 200/s,64] [--clients socket,pool,aiohttp,epoll,protocol,aiohttp-floor,c]
                                [--peers --tokenizer DIR]

Server and client have a core each, and the highest priority that may be had. The server is that of wire.c, compiled
where there is a C compiler, else the tests' ground-truth server (Python, good for some thousand events a second).
`socket` and `pool` are pdbench's client with fresh connections and with kept ones, `aiohttp` its other client; the rest
are floors (`client_floors.py`, and `c` in wire.c). CPU is that of the client's process from the begin of the schedule
to the last answer; the recorder's, which parses and writes, stands beside it. `core slower` says how many times as long
as at its fastest a loop took on the client's core meanwhile, `undisturbed` what CPU was while that was 1
(`core_speed.py`): the figures of a host that others use say less. `*` marks a figure beyond its goal.
The last table is `pdbench sweep` as a command: start to the first request, from the last token to the end, memory.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import client_floors as floors  # noqa: E402
import client_peers as peers  # noqa: E402
import core_speed  # noqa: E402

GROUND_TRUTH = HERE.parent / "tests" / "groundtruth" / "server.py"
SERVER_CORE, CLIENT_CORE = 0, 1
CLIENTS = ("socket", "pool", "aiohttp", "epoll", "protocol", "aiohttp-floor", "c")
FLOORS = {"epoll": floors.epoll_floor, "protocol": floors.protocol_floor, "aiohttp-floor": floors.aiohttp_floor}


@dataclass(frozen=True)
class Load:
    """Open loop at `rate`, or closed with `streams`. `steps`: the tokens of all streams leave at once, as those of an
    engine's step do (only wire.c can), where else each has a schedule of its own. `goals` are what pdbench's client
    should keep to."""

    name: str
    rate: float | None
    streams: int | None
    requests: int
    tokens: int
    ttft_ms: int = 50
    itl_ms: int = 20
    steps: bool = False
    goals: tuple[tuple[str, float], ...] = ()


PRECISE = (("first mean", 0.1), ("first p99", 0.5), ("gap p99", 0.1))
LOADS = [
    Load("4/s x 64", 4, None, 32, 64, goals=PRECISE),
    Load("50/s x 16", 50, None, 250, 16, 20, 5, goals=(*PRECISE, ("late p99", 1.0))),
    Load("200/s x 100", 200, None, 1000, 100, goals=(*PRECISE, ("late p99", 3.0))),
    Load("40,000 events/s", 400, None, 2000, 100, goals=PRECISE),
    Load("16 streams x 2", None, 16, 4000, 2, 5, 2, goals=(("ms/request", 0.2),)),
    Load("64 streams", None, 64, 192, 128, goals=(*PRECISE, ("us/event", 20.0))),
    Load("64 streams, in steps", None, 64, 192, 128, steps=True, goals=(*PRECISE, ("us/event", 20.0))),
    Load("256 streams", None, 256, 512, 128, goals=(*PRECISE, ("us/event", 20.0))),
    Load("1024 streams", None, 1024, 2048, 64, goals=(("first p99", 5.0), ("gap p99", 0.1), ("us/event", 20.0))),
]


def prefer(core: int) -> None:
    """One core, and before all others, as far as this user may."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.setsid()
        os.nice(-20)
        Path("/proc/self/autogroup").write_text("-20")


def compiled(directory: Path) -> Path | None:
    """wire.c as a program, where there is a compiler."""
    if (compiler := shutil.which("cc")) is None:
        return None
    wire = directory / "wire"
    subprocess.run([compiler, "-O2", "-o", wire, HERE / "wire.c"], check=True)
    return wire


@contextlib.contextmanager
def served(load: Load, directory: Path, wire: Path | None) -> Iterator[tuple[int, Path]]:
    """The server on the first core: its port and its log, which is whole when the server has ended."""
    log = directory / "server.log"
    log.touch()
    if wire is None:
        times = ["--ttft", str(load.ttft_ms), "--itl", str(load.itl_ms)]
        command = [sys.executable, str(GROUND_TRUTH), "--log", str(log), *times]
    else:
        command = [str(wire), "serve", str(load.ttft_ms * 1000), str(load.itl_ms * 1000), str(log)]
        command += ["steps"] if load.steps else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: prefer(SERVER_CORE)
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            yield port, log
        finally:
            server.terminate()


def truth(log: Path, wire: Path | None) -> dict[str, list[float]]:
    """When the server wrote each token event, by request id."""
    if wire is not None:
        return floors.by_request(log)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return {record["request_id"]: record["sent_ns"] for record in records}


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

    if client == "aiohttp":
        clients.CLIENTS["socket"] = clients.CLIENTS["aiohttp"]
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
    plan = Plan((cell,), arrivals="constant", duration_s=None, num_prompts=load.requests, timeout_s=60.0, seed=7)
    plan = replace(plan, connections="pool" if client == "pool" else "fresh")
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
    rows = {row["request_id"]: row for row in lines(run.live_path("requests", 0, 0))}
    stamps = {
        c["request_id"]: [run.origin_ns + (rows[c["request_id"]]["sent_s"] + o) * 1e9 for o in c["offset_s"]]
        for c in lines(run.live_path("chunks", 0, 0))
    }
    return {
        "stamps": stamps,
        "cpu_s": marks[1] - marks[0],
        "recorder_s": recorder_s,
        "client": entry["client"],
        "failed": sum(row["status"] != "ok" for row in rows.values()),
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def figures(
    load: Load, result: dict[str, Any], theirs: dict[str, list[float]], core: core_speed.Samples, shortest_ns: float
) -> dict[str, float | None]:
    errors = []
    for request_id, stamps in result["stamps"].items():
        count = min(len(stamps), len(theirs[request_id]))
        if count:
            errors.append((np.array(stamps[:count]) - np.array(theirs[request_id][:count])) / 1e6)
    every, firsts = np.concatenate(errors), np.array([error[0] for error in errors])
    gaps = np.abs(np.concatenate([np.diff(error) for error in errors]))
    client, recorder_s = result["client"], result.get("recorder_s")
    came = np.sort(np.concatenate(list(result["stamps"].values())))
    free_us = core_speed.undisturbed_us(core, shortest_ns, came)
    return {
        "us/event": result["cpu_s"] / len(every) * 1e6,
        "  undisturbed": free_us,
        "ms/request": result["cpu_s"] / load.requests * 1e3,
        "  undisturbed ": None if free_us is None else free_us * len(every) / load.requests / 1e3,
        "core slower": core_speed.slower_by(core, shortest_ns),
        "recorder us/event": None if recorder_s is None else recorder_s / len(every) * 1e6,
        "first mean": float(firsts.mean()),
        "first p99": float(np.percentile(firsts, 99)),
        "event p50": float(np.percentile(every, 50)),
        "event p99": float(np.percentile(every, 99)),
        "gap p99": float(np.percentile(gaps, 99)) if len(gaps) else None,
        "late p99": client.get("lateness_p99_ms") if load.rate else None,
        "lag p99": client.get("loop_lag_p99_ms"),
        "read lag p99": client.get("kernel_to_user_p99_ms"),
        "shared reads": client.get("shared_reads_share"),
        "failed": result["failed"],
    }


def trial(client: str, load: Load, wire: Path | None, shortest_ns: float) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with served(load, directory, wire) as (port, log):
            words = ["--one", client, "--load", load.name, "--port", str(port), "--directory", folder]
            words += ["--wire", str(wire)] if wire else []
            with (
                (directory / "result").open("w") as output,
                subprocess.Popen(
                    [sys.executable, __file__, *words], stdout=output, preexec_fn=lambda: prefer(CLIENT_CORE)
                ) as process,
                core_speed.watched(process, CLIENT_CORE) as core,
            ):
                process.wait(timeout=120)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        result = json.loads((directory / "result").read_text())
        return figures(load, result, truth(log, wire), core[0], shortest_ns)


def one(options: argparse.Namespace) -> dict[str, Any]:
    load = next(load for load in LOADS if load.name == options.load)
    port, directory = int(options.port), Path(options.directory)
    if options.one == "c":
        return floors.c_floor(load, port, Path(options.wire), directory)
    if options.one in FLOORS:
        return FLOORS[options.one](load, port)
    return ours(options.one, load, port, directory)


def show(load: Load, table: dict[str, dict[str, float | None]]) -> None:
    print(f"  {'times in ms':<18}" + "".join(f"{client:>15}" for client in table))
    goals = dict(load.goals)
    for name in next(iter(table.values())):
        cells = []
        for client, found in table.items():
            value = found[name]
            beyond = value is not None and client in ("socket", "pool") and value > goals.get(name, np.inf)
            cells.append("-" if value is None else f"{value:.3f}{'*' if beyond else ''}")
        goal = f"   goal {goals[name]:g}" if name in goals else ""
        print(f"  {name:<18}" + "".join(f"{cell:>15}" for cell in cells) + goal, flush=True)


def compare_peers(load: Load, wire: Path | None, tokenizer: Path) -> None:
    for name in peers.installed():
        with tempfile.TemporaryDirectory() as folder, served(load, Path(folder), wire) as (port, _):
            directory = Path(folder)
            single = replace(load, requests=1, streams=1)
            try:
                start_s = peers.cpu_of(peers.commands(port, tokenizer, single, directory)[name])
                whole_s = peers.cpu_of(peers.commands(port, tokenizer, load, directory)[name])
            except (subprocess.SubprocessError, OSError) as error:
                print(f"  {name}: did not run ({error})")
                continue
        cost = (whole_s - start_s) / (load.requests * load.tokens) * 1e6
        print(f"  {name}: {cost:.0f} us/event over a start of {start_s:.1f} s of CPU", flush=True)


def as_a_command(wire: Path | None) -> None:
    """Start, end and memory of `pdbench sweep`, its modules compiled as pip does: 100,000 events in a cell."""
    load = Load("", 200, None, 1000, 100)
    with tempfile.TemporaryDirectory() as folder:
        installed = shutil.copytree(HERE.parent / "pdbench", Path(folder) / "installed" / "pdbench")
        compileall.compile_dir(installed, quiet=1)
        with served(load, Path(folder), wire) as (port, log):
            words = ["sweep", "--server", f"http://127.0.0.1:{port}", "--model", "m", "--rates", "200"]
            words += ["--prompt-lens", "16", "--output-len", "100", "--num-prompts", "1000", "--out", "run"]
            begun_ns = time.monotonic_ns()
            subprocess.run(
                [sys.executable, "-m", "pdbench", *words],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(installed.parent)},
                capture_output=True,
                check=False,
                timeout=120,
            )
            over_ns = time.monotonic_ns()
        wrote = np.sort([ns for stamps in truth(log, wire).values() for ns in stamps])
    first_s = (wrote[0] - load.ttft_ms * 1e6 - begun_ns) / 1e9
    most_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"pdbench sweep, {len(wrote)} events: first request after {first_s:.2f} s (goal 1.5),")
    print(f"  ready {(over_ns - wrote[-1]) / 1e9:.2f} s after the last token, at most {most_mb:.0f} MB in a process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="parts of loads' names, with commas between; `command` for the last table")
    parser.add_argument("--clients", default=",".join(CLIENTS))
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer's folder, for the peers")
    for hidden in ("--one", "--load", "--port", "--directory", "--wire"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options)))
        return
    parts = options.only.split(",") if options.only else [""]
    with tempfile.TemporaryDirectory() as folder:
        wire = compiled(Path(folder))
        clients = [client for client in options.clients.split(",") if client != "c" or wire]
        shortest_ns = core_speed.fastest_ns(CLIENT_CORE, 5.0)
        for load in LOADS:
            if any(part in load.name for part in parts):
                print(f"{load.name}: {load.requests} requests; load average {os.getloadavg()[0]:.1f}", flush=True)
                show(load, {client: trial(client, load, wire, shortest_ns) for client in clients})
                if options.peers and load.streams and options.tokenizer:
                    compare_peers(load, wire, options.tokenizer)
        if any(part in "command" for part in parts):
            as_a_command(wire)


if __name__ == "__main__":
    main()
