"""What --help costs: facts about imports, not timings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.queue_simulation import World, make_run

HEAVY = ("numpy", "pandas", "pyarrow", "plotly", "aiohttp", "scipy", "uvloop")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["sweep", "--help"], ["testbed", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    script = f"""
import sys
from pdbench.cli import main
code = main(sys.argv[1:])
loaded = [module for module in {HEAVY!r} if module in sys.modules]
print(loaded, file=sys.stderr)
sys.exit(code or len(loaded))
"""
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_report_is_made_without_pandas_which_a_frame_still_gets(tmp_path: Path) -> None:
    """pyarrow would import it at its first array."""
    make_run(tmp_path / "run", [[World()]])
    script = """
import sys
from pathlib import Path
from pdbench.report.command import conclude
from pdbench.run import Run
run = Run.open(Path(sys.argv[1]))
run.finish()
assert conclude(run)["cells"]
assert not {"pandas", "plotly", "scipy"} & set(sys.modules), sys.modules
assert len(run.table("requests")) == len(run.table("chunks")) > 0
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--goodput ttft:1 tpot:2 --rates 1", "--goodput ttft:1 --goodput tpot:2 --rates 1"),
        ("--goodput ttft:1 --goodput tpot:2", "--goodput ttft:1 --goodput tpot:2"),
        ("--goodput --rates 1", "--goodput --rates 1"),
        ("--goodput", "--goodput"),
        ("run a:b", "run a:b"),
    ],
)
def test_goodput_takes_several_words(typed: str, meant: str) -> None:
    from pdbench.cli import spread

    assert list(spread(typed.split())) == meant.split()
