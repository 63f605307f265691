"""200 requests over fresh connections, ten at a time: prints how they ended. `client`: it closes first, as most do."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

from pdbench.sweep.client import RawAnswer, Request
from pdbench.sweep.clients import CLIENTS
from pdbench.sweep.connection import Connection

URL = sys.argv[1]


async def main() -> None:
    if sys.argv[2] == "client":
        Connection.retire = Connection.shut  # type: ignore[method-assign]
    every: list[RawAnswer] = []
    async with CLIENTS["socket"](URL, False) as sender:
        for turn in range(20):
            requests = [Request(i, f"r{turn}-{i}", URL, {}, b"{}", 2, 1) for i in range(10)]
            every += await asyncio.gather(*(sender.start(request, 0, 10.0) for request in requests))
            await asyncio.sleep(0.05)
        print(json.dumps([Counter(raw.end for raw in every), sender.health(), [raw.end_text for raw in every]]))


asyncio.run(main())
