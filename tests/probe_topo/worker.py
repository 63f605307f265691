"""Answers requests in one process whose libnvidia-ml.so.1 is the stub: it reads its table anew at each nvmlInit.

A request is a JSON line on stdin: the table's path, the root of a tree (/ by default), roles, a terminal's width.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from pdbench.probe.topo.answer import answer
from pdbench.probe.topo.document import document
from pdbench.probe.topo.machine import look
from pdbench.probe.topo.page import page
from pdbench.probe.topo.plan import roles_of
from pdbench.probe.topo.text import show


def answered(request: dict[str, Any]) -> dict[str, Any]:
    os.environ["NVML_STUB_FILE"] = request["table"]
    os.environ["COLUMNS"] = str(request.get("width", 80))
    roles = request.get("roles")
    found = answer(look(Path(request.get("root", "/")), request.get("limit_s", 60)), roles_of(roles) if roles else None)
    out: dict[str, Any] = {"document": document(found)}
    if request.get("views"):
        text = Terminal()
        with contextlib.redirect_stdout(text):
            show(found, None)
        out |= {"text": text.getvalue(), "page": page(found)}
    return out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answered(json.loads(line)), allow_nan=False), flush=True)
