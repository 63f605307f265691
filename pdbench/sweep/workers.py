"""Several processes that send one cell: started, told, heard, and noticed when they are lost.

The schedule is drawn from the cell's seed as for one process; each worker sends every n-th request of it (`cell.Job`)
with a client, a clock and a recorder of its own. The parent sends nothing and times nothing. What comes together here
are rows and counts, never percentiles; of the workers' health all is kept, and the worst is what is judged.

A worker that is lost takes its requests with it. Those that left no row are counted as not measured; the others go on
to the end of the cell, which is marked, and the next cell has a new worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pdbench import tables
from pdbench.errors import PdbenchError
from pdbench.run import RequestRow, Run
from pdbench.sweep.cell import Job, share_of
from pdbench.sweep.client import COUNTS
from pdbench.sweep.hand import EXIT_S, Hand, Link, LocalLink, OnRow, share_paths
from pdbench.sweep.health import SharedReads
from pdbench.sweep.worker_process import LEAD_NS

START_S = 60.0  # for a worker to come up
PATIENCE_S = 60.0  # without a word from a worker, which speaks several times a second
WATCH_EVERY_S = 0.05
SUMS = ("achieved_concurrency", "offset_steps", *COUNTS)  # of the workers' health; of all else the worst is taken

StartLink = Callable[[Hand], Awaitable[Link]]


class Crew:
    """`await Crew.start(...)`, then `run_cell` as of one process; `check` raises what ended a cell early; `close`."""

    def __init__(self, start_link: StartLink, count: int) -> None:
        self._start_link = start_link
        self.hands = [Hand(number) for number in range(count)]
        self._failure: PdbenchError | None = None

    @classmethod
    async def start(cls, count: int, start_link: StartLink = LocalLink.start) -> Crew:
        """Raises PdbenchError when a worker does not come up."""
        crew = cls(start_link, count)
        try:
            await asyncio.gather(*(crew._man(hand) for hand in crew.hands))
            for hand in crew.hands:
                if hand.failure or hand.lost:
                    raise hand.failure or PdbenchError(f"a load worker did not start: {hand.lost}.")
        except BaseException:
            await crew.close()
            raise
        return crew

    async def _man(self, hand: Hand) -> None:
        hand.link = await self._start_link(hand)
        await asyncio.wait({hand.greeted}, timeout=START_S)
        if not hand.greeted.done():
            hand.lose(f"it did not come up within {START_S:.0f} s")

    async def run_cell(self, job: Job, run: Run, stop: asyncio.Event, on_row: OnRow) -> dict[str, Any]:
        """Measure one cell and return its entry of `cell_runs`; what ends it early is as in `cell.Alone`."""
        await self._replace_lost()
        hands = [hand for hand in self.hands if hand.lost is None][: job.cell.max_concurrency]
        shared = SharedReads()

        def counted(row: RequestRow) -> None:
            shared.add(row)
            on_row(row)

        for place, hand in enumerate(hands):
            hand.take(replace(job, worker=place, workers=len(hands)), run, counted)
        watch = asyncio.create_task(self._watch(hands, stop))
        try:
            await asyncio.wait([hand.ready for hand in hands])
            start_s = (time.monotonic_ns() + LEAD_NS - run.origin_ns) / 1e9
            for hand in hands:
                hand.go(start_s, run.origin_ns)
            await asyncio.wait([hand.ended for hand in hands])
        finally:
            watch.cancel()
            for hand in hands:
                hand.send("stop")
            await asyncio.wait([hand.ended for hand in hands], timeout=EXIT_S)
        losses = [await asyncio.to_thread(_loss, hand, run) for hand in hands if hand.lost]
        entry = joined([hand for hand in hands if not hand.lost], losses)
        entry["client"] |= shared.figures()
        return {"cell": job.cell.cell, "repeat": job.repeat, "attempt": job.attempt, **job.seeds(), **entry}

    async def _watch(self, hands: Sequence[Hand], stop: asyncio.Event) -> None:
        """Hand on what must end the cell for all, and give up a worker that says nothing any more."""
        told = False
        for hand in hands:
            hand.heard_s = time.monotonic()
        while True:
            self._failure = self._failure or next((hand.failure for hand in hands if hand.failure), None)
            if not told and (stop.is_set() or self._failure):
                told = True
                for hand in hands:
                    hand.send("stop")
            for hand in hands:
                if hand.link is not None and not hand.lost and time.monotonic() - hand.heard_s > PATIENCE_S:
                    hand.link.kill()
                    hand.lose(f"it said nothing for {PATIENCE_S:.0f} s")
            await asyncio.sleep(WATCH_EVERY_S)

    async def _replace_lost(self) -> None:
        """Put a new worker in the place of each that was lost; where there is none to be had, the others do."""
        for place, lost in enumerate(self.hands):
            if lost.lost:
                if lost.link is not None:
                    await lost.link.close()
                    lost.link = None
                hand = Hand(lost.number)
                try:
                    await self._man(hand)
                except PdbenchError as error:
                    hand.lose(str(error))
                self.hands[place] = hand
        if all(hand.lost for hand in self.hands):
            raise PdbenchError(f"no load worker is left ({self.hands[0].lost}).", "Go on with: sweep --resume RUN")

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        await asyncio.gather(*(hand.link.close() for hand in self.hands if hand.link is not None))


def _loss(hand: Hand, run: Run) -> dict[str, Any]:
    """What a lost worker leaves, when its recorder has written what it was given."""
    rows, _ = share_paths(run, hand.job)
    tables.closed(rows)
    measured = sum(len(piece) for piece in tables.lines(rows)) if rows.exists() else 0
    share = share_of(hand.job)
    not_measured = None if share.planned is None else share.planned - measured
    lost: dict[str, Any] = {"worker": hand.job.worker, "why": hand.lost, "measured": measured}
    lost |= {"not_measured": not_measured, "last_heard_s": hand.heard_s - run.origin_ns / 1e9}
    if share.offsets is None:
        lost["streams"] = share.streams
    return lost if hand.host is None else {**lost, "host": hand.host}


def joined(hands: Sequence[Hand], losses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entry of the whole cell from those of its shares."""
    entries = [hand.entry for hand in hands if hand.entry is not None]
    whole: dict[str, Any] = {"state": "interrupted"}
    if entries and len(entries) == len(hands) and not losses and all(entry["state"] == "done" for entry in entries):
        whole["state"] = "done"
    if entries:
        whole["start_s"] = min(entry["start_s"] for entry in entries)
        whole |= {name: max(entry[name] for entry in entries) for name in ("send_end_s", "end_s")}
    gone = [loss["not_measured"] for loss in losses]
    sent = sum(entry["sent"] for entry in entries) + sum(loss["measured"] for loss in losses)
    planned = sum(entry["planned"] for entry in entries) + sum(loss["measured"] for loss in losses)
    whole |= {"planned": planned + sum(count for count in gone if count is not None), "sent": sent}
    if losses:
        whole["lost"] = [dict(loss) for loss in losses]
        whole["not_measured"] = None if None in gone else sum(gone)
    whole["client"] = {
        **_worst([entry["client"] for entry in entries]),
        "workers": [_of_worker(hand) for hand in hands if hand.entry is not None],
    }
    return whole


def _of_worker(hand: Hand) -> dict[str, Any]:
    assert hand.entry is not None and hand.link is not None
    about: dict[str, Any] = {"worker": hand.job.worker}
    if hand.link.own_clock:
        # Its clock is not ours; but it began after it was told and before it had answered.
        about |= {"host": hand.host, "start_within_ms": hand.start_within_ms}
    return {**about, **{name: hand.entry[name] for name in ("state", "planned", "sent")}, **hand.entry["client"]}


def _worst(clients: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The health of several clients as of one: the worst of each figure, sums where they are counts of all."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for client in clients for name in client):
        values = [client[name] for client in clients if client.get(name) is not None]
        if not values:
            found[name] = None
        elif isinstance(values[0], Mapping):
            found[name] = {key: sum(value.get(key, 0) for value in values) for key in values[0]}
        else:
            worst = min if name == "kernel_stamps_share" else max
            found[name] = sum(values) if name in SUMS else worst(values)
    return found
