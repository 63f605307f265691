"""What a run is a measurement of, beyond the servers' own word: the revision under test and this host's GPU driver."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

# As CI names the commit that it builds; PDBENCH_REVISION is for everybody else.
REVISION_VARIABLES = ("PDBENCH_REVISION", "GITHUB_SHA", "CI_COMMIT_SHA")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
GIT_LIMIT_S = 5.0


def origin() -> dict[str, Any]:
    """`revision` and `driver` as far as they are known; a key that is absent was not found out."""
    found = {"revision": revision(), "driver": driver()}
    return {name: value for name, value in found.items() if value is not None}


def revision() -> str | None:
    """The commit under test: what CI says, else the one checked out here; `-dirty` where it is changed."""
    named = next((os.environ[name] for name in REVISION_VARIABLES if os.environ.get(name)), None)
    if named is not None:
        return named[:64]
    words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=GIT_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None


def driver(file: Path = NVIDIA_DRIVER) -> str | None:
    """Version of the NVIDIA driver of this host, which is the servers' own only where they share it."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return None
    version = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return version[1] if version else None
