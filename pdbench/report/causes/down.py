"""Which servers stopped while the cell was measured, the proxy among them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from pdbench.report.causes.case import Cause
from pdbench.report.causes.failures import failed_share
from pdbench.report.cell import COLOCATED, Measured

DOWN = "-down"  # ends the name of a cause: a server was gone
REFUSED_AT_LEAST = 3  # requests in a row, the cell's last one among them, to which nobody opened


@dataclass(frozen=True, slots=True)
class Gone:
    """A server that stopped, and the second of its cell from which on it gave no sign."""

    name: str
    role: str
    since_s: float
    refused: int = 0  # connections; only the proxy is asked for these


def server_down(cell: Measured) -> Iterator[Cause]:
    """Servers that stopped answering, all of them: what a proxy makes of it may begin with HTTP 200."""
    found = gone(cell)
    if not found:
        return
    names, answers = listed_names([each.name for each in found]), cell.answers
    begun = int(np.sum((answers.status == "truncated") | ((answers.status == "failed") & np.isfinite(answers.first))))
    streams = f"; {begun:,} {'stream' if begun == 1 else 'streams'} began and broke off" if begun else ""
    look = f"Look at {names}'s log and process" if len(found) == 1 else f"Look at the logs and processes of {names}"
    if len(found) > 1:
        look += ", and at what they share: the host, the container or what started them"
    yield Cause(
        _down(found),
        None,
        f"{_silence(found)}; {failed_share(cell):.0%} of the requests failed{streams}.",
        f"{look}{_owed_by_the_proxy(cell, found)}.",
        "; ".join(f"curl {url}/health" for url in _urls(cell, found)),
    )


def _down(found: Sequence[Gone]) -> str:
    roles = {each.role for each in found}
    role = "servers" if len(roles) > 1 else roles.pop()
    return f"{'server' if role == COLOCATED else role}{DOWN}"


def _silence(found: Sequence[Gone]) -> str:
    """Who gave no answer since when, those of one second together."""
    said = []
    unread = [each for each in found if not each.refused]
    for second, group in groupby(unread, lambda each: round(each.since_s)):
        names = listed_names([each.name for each in group])
        said.append(f"{names} answered no scrape from second {second} of the cell on")
    for each in found:
        if each.refused:
            count = f"{each.refused:,} in a row" if each.refused > 1 else "1"
            said.append(f"{each.name} took no connection from second {each.since_s:.0f} on ({count})")
    return "; ".join(said)


def _owed_by_the_proxy(cell: Measured, found: Sequence[Gone]) -> str:
    """What a proxy must say of an engine that is gone, where it began answers with 200 after that all the same."""
    engines = [each for each in found if not each.refused]
    if not engines:
        return ""
    answers = cell.answers
    since = min(each.since_s for each in engines) + cell.parts[0].load.start
    broken = (answers.status != "ok") & (answers.http_status == 200) & (answers.sent > since)
    if len(cell.parts) > 1 or not broken.any():
        return ""
    count, gone_are = int(broken.sum()), "it is" if len(engines) == 1 else "they are"
    return f"; the proxy must answer 502 when {gone_are} gone, and began {count:,} later answers with 200"


def listed_names(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _urls(cell: Measured, found: Sequence[Gone]) -> list[str]:
    names = {each.name for each in found}
    return [str(server.get("url", "")) for server in cell.deployment.get("servers", []) if server.get("name") in names]


def gone(cell: Measured) -> list[Gone]:
    """The servers of the deployment that answered no scrape to the cell's end while requests failed; and a proxy that
    took no connection to the cell's end."""
    if failed_share(cell) == 0:
        return []
    servers = [(str(server.get("name")), str(server.get("role"))) for server in cell.deployment.get("servers", [])]
    found = []
    for name, role in servers:
        since_s = cell.window.silent_since(name)
        if role != "proxy" and since_s is not None:
            found.append(Gone(name, role, since_s))
    proxies = [name for name, role in servers if role == "proxy"]
    if len(proxies) == 1 and (refused := _refused_to_the_end(cell)) is not None:
        found.append(Gone(proxies[0], "proxy", *refused))
    return sorted(found, key=lambda each: (bool(each.refused), each.since_s))


def _refused_to_the_end(cell: Measured) -> tuple[float, int] | None:
    """Since which second of the cell no request was connected, and how many were not."""
    for part in cell.parts:
        answers = part.load.answers
        order = np.argsort(answers.sent, kind="stable")
        order = order[np.isfinite(answers.sent[order])]
        refused = answers.error_kind[order] == "connect"
        count = len(refused) if refused.all() else int(np.argmin(refused[::-1]))
        if count >= REFUSED_AT_LEAST:
            return float(answers.sent[order][-count]) - part.load.start, count
    return None
