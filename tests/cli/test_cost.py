"""What --help costs: facts about imports, not timings."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
