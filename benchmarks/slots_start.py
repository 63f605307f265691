"""What `pdbench slots` costs beside the smallest typer and rich program that prints one table: CPU and wall time.

    python benchmarks/slots_start.py [ROUNDS]

Runs both in turn, so that a busy machine slows both, and prints the medians and their ratio (aim: at most 1.25).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SMALLEST = '''
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def slots(qps: Annotated[float, typer.Option()] = 8.0, out_tokens: Annotated[float, typer.Option()] = 128.0,
          tpot: Annotated[float, typer.Option()] = 10.4) -> None:
    """One table."""
    table = Table("what", "value")
    table.add_row("slots needed", f"{qps * out_tokens * tpot / 1000:.1f}")
    Console().print(table)


app()
'''
ARGUMENTS = ["--qps", "8", "--out-tokens", "128", "--tpot", "10.4"]


def measured(command: list[str]) -> tuple[float, float]:
    """CPU and wall seconds of one run."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, wall


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        smallest = Path(folder) / "smallest.py"
        smallest.write_text(SMALLEST)
        commands = {
            "smallest": [sys.executable, str(smallest), *ARGUMENTS],
            "slots": [sys.executable, "-m", "pdbench", "slots", *ARGUMENTS],
            "slots, 8 slots": [sys.executable, "-m", "pdbench", "slots", *ARGUMENTS, "--max-num-seqs", "8"],
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for command in commands.values():  # fill the caches
            measured(command)
        for _ in range(rounds):
            for name, command in commands.items():
                times[name].append(measured(command))
    cpu = {name: statistics.median(one[0] for one in found) for name, found in times.items()}
    wall = {name: statistics.median(one[1] for one in found) for name, found in times.items()}
    kinds = (("CPU", cpu), ("wall", wall))
    for name in commands:
        both = [f"{kind} {found[name] * 1000:5.0f} ms x{found[name] / found['smallest']:.2f}" for kind, found in kinds]
        print(f"{name:<16}{'   '.join(both)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
