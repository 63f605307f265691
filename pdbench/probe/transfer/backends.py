"""Which of NIXL's backends load here, and why the others don't: `python -m pdbench.probe.transfer.backends`, a process
of its own, since loading somebody's library may end it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

STORAGE = {"OBJ_SEG", "BLK_SEG", "FILE_SEG"}  # what a backend moves that has no peer
LIMIT_S = 60.0


def survey() -> list[dict[str, Any]]:
    """[{"backend", "loads", "peers", "memory", "why"}]; a crash while one loads is that one's `why`."""
    found: list[dict[str, Any]] = []
    while True:
        skipped = [each["backend"] for each in found]
        environment = {**os.environ, "NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_LEVEL": "FATAL"}
        command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "pdbench.probe.transfer.backends"]
        try:
            done = subprocess.run(
                [*command, *skipped], capture_output=True, text=True, env=environment, timeout=LIMIT_S
            )
            output, how = done.stdout, f"loading it ends the process ({done.returncode})"
        except subprocess.TimeoutExpired as error:
            output, how = (error.stdout or b"").decode("utf-8", "replace"), "loading it hangs"
        told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        found += [each for each in told if "why" in each]
        if any("end" in each for each in told) or not told:
            return found
        begun = [each["try"] for each in told if "try" in each][-1]
        found.append({"backend": begun, "loads": False, "peers": False, "memory": [], "why": how})


def peers(found: list[dict[str, Any]]) -> list[str]:
    """Backends that move bytes between two agents, and load."""
    return [each["backend"] for each in found if each["loads"] and each["peers"]]


def _main(skipped: list[str]) -> None:
    from pdbench.probe.transfer import nixl

    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(what: dict[str, Any]) -> None:
        events.write(json.dumps(what) + "\n")
        events.flush()

    api = nixl.load()
    folder = nixl.plugin_folder(api)
    agent = api.nixl_agent("pdbench-survey", api.nixl_agent_config(enable_prog_thread=False, backends=[]))
    for name in sorted(agent.get_plugin_list()):
        if name in skipped:
            continue
        tell({"try": name})
        why = _unloadable(folder, name)
        memory: list[str] = []
        if not why and name == "UCX":
            memory = [
                "DRAM",
                "VRAM",
            ]  # started, it would listen on every interface; why it does not start its log tells
        elif not why:
            memory = [kind.removesuffix("_SEG") for kind in agent.get_plugin_mem_types(name)]
            try:
                agent.create_backend(name, {})
            except Exception as error:  # noqa: BLE001 - whatever NIXL or a plug-in raises is the answer
                why = f"it does not start without settings of its own ({error or type(error).__name__})"
        storage = bool({f"{kind}_SEG" for kind in memory} & STORAGE)
        tell({"backend": name, "loads": not why, "peers": bool(memory) and not storage, "memory": memory, "why": why})
    tell({"end": True})
    events.flush()
    os._exit(0)


def _unloadable(folder: Path | None, name: str) -> str:
    """What the dynamic linker misses; empty where it is content, or where the library is not found."""
    library = folder / f"libplugin_{name}.so" if folder else None
    if library is None or not library.exists():
        return ""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        missing = re.match(r"(\S+): cannot open shared object file", str(error))
        return f"{missing[1]} is not here" if missing else str(error).rpartition("/")[2]
    return ""


if __name__ == "__main__":
    _main(sys.argv[1:])
