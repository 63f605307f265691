"""What a very long run takes of memory: each process from the first answer to the report, and what is on disk then.

    python benchmarks/memory.py [--requests 1000000] [--tokens 100] [--rate 1000] [--directory DIR]

Answers are made as a client would have read them (one event a read, vLLM's form) and go through the recorder, which
parses them and writes rows as JSON lines; the cell is sealed, the run finished, the report made. Each step is a process
of its own here, and its peak RSS is printed. A million answers of a hundred tokens take about an hour of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from pdbench.deployment import build
from pdbench.run import Run
from pdbench.sweep.client import RawAnswer
from pdbench.sweep.plan import Cell, Plan
from pdbench.sweep.recorder import Recorder
from pdbench.sweep.rows import CellContext

TTFT_NS, ITL_NS = 50_000_000, 20_000_000
MOST_UNWRITTEN = 200
_EVENT = (
    b'data: {"id":"cmpl-%08d","object":"text_completion","created":1790000000,"model":"m","choices":[{"index":0,'
    b'"text":" tok%d","logprobs":null,"finish_reason":%s,"stop_reason":null}],"usage":null}\n\n'
)
_USAGE = (
    b'data: {"id":"cmpl-%08d","object":"text_completion","choices":[],"usage":{"prompt_tokens":64,'
    b'"total_tokens":%d,"completion_tokens":%d}}\n\n'
)


def answer(index: int, tokens: int, sent_ns: int) -> RawAnswer:
    """One answer, with gaps that vary a little."""
    raw = RawAnswer(index, f"0123abcd-0-0-{index}", "default", 64, tokens, sent_ns, sent_ns)
    at = sent_ns + TTFT_NS + index * 7919 % 20_000_000
    for token in range(tokens):
        ends = b'"length"' if token == tokens - 1 else b"null"
        raw.reads.append((at, _EVENT % (index, token, ends)))
        at += ITL_NS + (index * 31 + token * 17) % 1_000_000
    raw.reads.append((at, _USAGE % (index, 64 + tokens, tokens) + b"data: [DONE]\n\n"))
    raw.lags_ns = array("q", [10_000]) * len(raw.reads)
    raw.opened_ns = raw.connected_ns = sent_ns - 1_000_000
    raw.first_byte_ns, raw.done_ns, raw.http_status, raw.stamp = raw.reads[0][0], at, 200, "kernel"
    raw.content_type = "text/event-stream"
    return raw


def peak_mb(pid: int | str = "self") -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def record(directory: Path, requests: int, tokens: int, rate: float) -> None:
    """Answers through the recorder, as a cell of that rate would hand them over, but as fast as they are written."""
    plan = Plan((Cell(0, "default", rate, None, 64, tokens),), num_prompts=requests, duration_s=None)
    deployment = build("default", [("colocated", "http://127.0.0.1:1")], model="m")
    run = Run.create(directory, {"plan": plan.document(), "deployments": [deployment.document()], "notes": []})
    gap_ns = int(1e9 / rate)

    async def go() -> tuple[float, float]:
        recorder = await Recorder.start()
        context = CellContext(0, 0, "default", run.origin_ns)
        await recorder.begin(context, run.live_path("requests", 0, 0), run.live_path("chunks", 0, 0), lambda row: None)
        empty = peak_mb(), peak_mb(recorder.pid)
        for index in range(requests):
            recorder.record(answer(index, tokens, run.origin_ns + 10**9 + index * gap_ns))
            if index % 20 == 0:
                await asyncio.sleep(0)
                while recorder.backlog > MOST_UNWRITTEN:
                    await asyncio.sleep(0.01)
                recorder.check()
        await recorder.end()
        recorder.check()
        both = peak_mb(), peak_mb(recorder.pid)
        print(f"  client's side of the recorder   {both[0]:7.0f} MB   ({empty[0]:.0f} before the first answer)")
        print(f"  recorder                        {both[1]:7.0f} MB   ({empty[1]:.0f} before the first answer)")
        await recorder.close()
        return both

    began = time.monotonic()
    asyncio.run(go())
    took_s = time.monotonic() - began
    size = sum(path.stat().st_size for path in (directory / "live").iterdir())
    print(f"  on disk when the cell ends      {size / 1e6:7.0f} MB   in {took_s:.0f} s")
    start_s, last_s = 1.0, 1.0 + requests * gap_ns / 1e9
    entry = {"cell": 0, "repeat": 0, "attempt": 0, "state": "done", "planned": requests, "sent": requests, "client": {}}
    run.document["cell_runs"].append({**entry, "start_s": start_s, "send_end_s": last_s, "end_s": last_s + 3})
    run.save()


def step(name: str, *words: str) -> None:
    """A process of its own: its peak, its CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv = sys.argv[2:]; " + words[0]
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, str(Path(__file__).parent), *words[1:]], capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = done.stderr.decode().strip().rpartition("\n")[2]
    if not told.startswith("peak "):
        sys.exit(done.stderr.decode())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {name:<32}{float(told.split()[1]):7.0f} MB   {cpu_s:.0f} s of CPU", flush=True)


PEAK = "; from memory import peak_mb; sys.stderr.write('\\npeak %f' % peak_mb())"
SEAL = "from pathlib import Path; from pdbench.run import Run; run = Run.open(Path(sys.argv[0])); run.seal(0, 0)"
FINISH = SEAL.replace("run.seal(0, 0)", "run.finish()")
REPORT = SEAL.replace("run.seal(0, 0)", "from pdbench.report.command import conclude; conclude(run)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        directory = Path(folder) / "run"
        print(f"{given.requests:,} requests x {given.tokens} tokens; peak RSS", flush=True)
        record(directory, given.requests, given.tokens, given.rate)
        for name, code in (("sealing the cell", SEAL), ("finishing the run", FINISH), ("report", REPORT)):
            step(name, code, str(directory))
        summary = json.loads((directory / "summary.json").read_text())
        (cell,) = summary["cells"]
        print(
            f"  {cell['completed']:,} completed, mean ITL {cell['mean_itl_ms']:.3f} ms, p99 {cell['p99_itl_ms']:.3f} ms"
        )


if __name__ == "__main__":
    main()
