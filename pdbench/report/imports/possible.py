"""What no run can have: a time that runs back, a negative count, a rate of zero. Such a file is not read further."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pdbench.report.imports.record import Cell, Imported, Request

LONGEST_S = 1e7  # four months: no run is longer
MOST = 1e9  # tokens of a request, requests a second, streams, milliseconds


def impossible(imported: Imported) -> str | None:
    """The first of such things, in words."""
    return next((said for cell in imported.cells for said in _of_cell(cell)), None)


def _of_cell(cell: Cell) -> Iterator[str]:
    loads = {"a request rate": cell.rate, "a number of streams": cell.streams}
    yield from (f"{name} of {value:g}" for name, value in loads.items() if value is not None and not 0 < value <= MOST)
    for name, value in cell.figures.items():
        if not 0 <= value <= MOST:
            yield f"{name} = {value:g}"
    if not cell.requests:
        return
    first = min(request.intended_s for request in cell.requests)
    for place, request in enumerate(cell.requests):
        yield from (f"request {place + 1} {said}" for said in _of_request(request, first))


def _of_request(request: Request, first_s: float) -> Iterator[str]:
    stamps = (request.intended_s, request.sent_s, request.first_byte_s, request.first_token_s, request.last_token_s)
    known = [stamp for stamp in (*stamps, request.done_s) if stamp is not None]
    if not all(math.isfinite(stamp) and abs(stamp - first_s) < LONGEST_S for stamp in (*known, first_s)):
        yield "has a time that is far from the others"
    first, last = request.first_token_s, request.last_token_s
    if (first is not None and first < request.sent_s) or (first is not None and last is not None and last < first):
        yield "has a token before its send, or its last token before its first"
    before = 0.0
    for offset in request.offsets_s:
        if not before <= offset < LONGEST_S:
            yield "has a negative gap between tokens"
            return
        before = offset
    counts = (request.prompt_tokens, request.output_tokens, request.cached_tokens, request.chunks)
    if any(count is not None and not 0 <= count <= MOST for count in counts):
        yield "has a count of tokens that cannot be"
