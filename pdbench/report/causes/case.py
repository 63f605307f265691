"""What a cause is judged by, and when a part of TTFT is worth naming. docs/diagnosis.md has the arguments.

A part is a cause when it is *large* (a quarter of TTFT for what a request waits for, half for the work that each
request has to some extent), *noticed* (longer than a few tokens of the stream take) and *sure* (the lower end of its
share's interval is above a tenth, so that one burst in the cell cannot name it). Parts that were named are then taken
out, and the others judged by what remains, since a queue that grows with the run's length hides everything else; what
is found so must still be worth a word beside it: a tenth of TTFT, or a sentence of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from pdbench.report.blocks import jackknife, without_each_block
from pdbench.report.causes.posts_met import PostsMet, posts_met, turn_of_first_steps
from pdbench.report.cell import COLOCATED, PULL, PUSH, Measured
from pdbench.report.demand import Slots, slots_of
from pdbench.report.finding import VOID, Finding
from pdbench.report.grid import Peers
from pdbench.report.split import Split, split_of
from pdbench.report.turns import Turns, turns_of

WAIT_SHARE = 0.25  # of TTFT, for what a request waits for
WORK_SHARE = 0.5  # for work that every request has: computing the prompt, posting its KV
SURE_SHARE = 0.10  # the lower end of the 95 % interval of the share
BESIDE_SHARE = 0.10  # of TTFT, for what is a cause beside a larger one
BUSY = 2 / 3  # of what is short, in use: below, queues are short or an accident (M/D/1's wait is then the service's)
NOTICED_TURNS = 4.0  # a part shorter than so many tokens of the stream ...
NOTICED_MS = 50.0  # ... and than this is not what makes a TTFT bad
SENTENCE_TURNS = 25.0  # tokens of a sentence
SECOND_MS = 1000.0  # after which everybody's thought breaks off, however slow the stream
SLOWED = 0.5  # of what streams lose: then it is handoffs that slow them down
PREEMPTED_SHARE = 0.05  # of the requests: from here on stalls may be those of requests that are computed again
FEW_TOKENS = 6.0  # of an answer in pull: in fewer most gaps hold a post, and no turn is known to be quiet
POST_SHARE = 0.25  # of the first step: a shorter post is not what makes the few turns long
UNPACED_MS = 300.0  # a sentence where there is no stream to take its pace from

Part = Callable[[Split], float | None]


@dataclass(frozen=True, slots=True)
class Cause:
    """One diagnosis. `share` of the mean TTFT (0 to 1) with its 95 % interval; `None` when it cannot be said.

    `made_of` says which parts of the TTFT split the share is, where the cause's name does not."""

    cause: str
    share: float | None
    evidence: str
    advice: str
    confirm: str
    share_interval: tuple[float, float] | None = None
    made_of: str | None = None

    def document(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Share:
    """A share with the lower end of its 95 % interval (the share itself in a cell too short for one)."""

    value: float
    low: float

    def reaches(self, limit: float) -> bool:
        return self.value >= limit and self.low >= SURE_SHARE


@dataclass(frozen=True, slots=True)
class Taken:
    """What a part takes of TTFT, and of what TTFT is without the parts that were named before."""

    key: str
    part: Part
    ms: float
    of_ttft: Share
    of_rest: Share
    interval: tuple[float, float] | None  # of the share of TTFT
    pace_ms: float | None

    def expected(self, use: float | None) -> Taken:
        """The same, of a wait for what is in use for so much of the time: its bursts are then what such a load makes,
        and the next run has its own."""
        if use is None or use < BUSY:
            return self
        return replace(self, of_ttft=_known(self.of_ttft), of_rest=_known(self.of_rest))

    def is_wait(self) -> bool:
        return self._is(WAIT_SHARE)

    def is_work(self) -> bool:
        return self._is(WORK_SHARE)

    @property
    def is_noticed(self) -> bool:
        return self.ms >= (NOTICED_MS if self.pace_ms is None else min(NOTICED_MS, NOTICED_TURNS * self.pace_ms))

    def _is(self, limit: float) -> bool:
        if not self.is_noticed:
            return False
        beside = self.of_ttft.value >= BESIDE_SHARE or self.ms >= self._sentence_ms
        return self.of_ttft.reaches(limit) or (self.of_rest.reaches(limit) and beside)

    @property
    def is_long(self) -> bool:
        """A sentence of the answer is sooner written; or, where it takes most of TTFT, a second."""
        limit = min(SECOND_MS, self._sentence_ms) if self.of_ttft.reaches(WORK_SHARE) else self._sentence_ms
        return self.ms >= limit

    @property
    def _sentence_ms(self) -> float:
        return UNPACED_MS if self.pace_ms is None else SENTENCE_TURNS * self.pace_ms


@dataclass(frozen=True, slots=True)
class Case:
    """One cell, ready to be judged."""

    cell: Measured
    split: Split
    mean_ttft_ms: float
    without: Sequence[Split]  # less one block of time, for each block
    slots: Slots
    turns: Turns | None
    turn_ms: float | None  # a turn that nothing holds up, where gaps or, in pull, first steps tell
    posts: PostsMet | None  # in pull, if they are made on decode's loop
    findings: Sequence[Finding]
    peers: Peers
    removed: Mapping[str, Part] = field(default_factory=dict)

    def taken(self, key: str, part: Part) -> Taken | None:
        """What a part takes; `None` when it was not measured. `key` names the time that is taken, whoever takes it."""
        ms = part(self.split)
        if ms is None:
            return None
        wholes = [_share(part(split), self._whole(split)) for split in self.without]
        share, rest = ms / self.mean_ttft_ms, self._rest(self.split)
        left = [self._rest(split) for split in self.without]
        if min(left, default=0.0) <= 0:  # beside a long queue a block's rest is a small difference of large numbers
            left = [rest] * len(left)
        rests = [_share(part(split), of) for split, of in zip(self.without, left, strict=True)]
        found, of_ttft = jackknife(share, wholes), _sure(share, wholes)
        # A burst over two blocks of time shows on the plain scale, whatever bursts others have.
        own = jackknife(share, [_share(part(split), self.mean_ttft_ms) for split in self.without])
        if found is not None and own is not None:
            of_ttft = replace(of_ttft, low=min(of_ttft.low, max(found.low, own.low)))
        return Taken(
            key,
            part,
            ms,
            of_ttft,
            _sure(ms / rest if rest > 0 else 0.0, rests) if self.removed else of_ttft,
            None if found is None else (max(0.0, found.low), min(1.0, found.high)),
            self.pace_ms,
        )

    def less(self, taken: Taken) -> Case:
        """The same case, to be judged as if this part were gone."""
        return replace(self, removed={**self.removed, taken.key: taken.part})

    def _whole(self, split: Split) -> float:
        """TTFT as the sum of its parts. What is unexplained is taken from the whole cell: its counters are not filled
        at the same moments of a request, which blocks of time would show as noise."""
        known = sum(ms for name, ms in split.parts.items() if name != "unexplained")
        return known + self.split.get("unexplained")

    def _rest(self, split: Split) -> float:
        """TTFT less what was named. The proxy's part is what is left over too, and of the whole cell here: a request
        that waits for longer than a block of time takes is in other blocks for the engines than for the client."""
        over = self.split.get("proxy") - split.get("proxy") if "proxy" not in self.removed else 0.0
        return self._whole(split) + over - sum(part(split) or 0.0 for part in self.removed.values())

    def named(
        self,
        cause: str,
        taken: Taken | None,
        numbers: Sequence[str],
        advice: str,
        confirm: str,
        made_of: str | None = None,
    ) -> tuple[Cause, Taken | None]:
        """A cause with the share of the part that it takes."""
        share = None if taken is None else taken.of_ttft.value
        interval = None if taken is None else taken.interval
        return Cause(cause, share, "; ".join(numbers) + ".", advice, confirm, interval, made_of), taken

    @property
    def pace_ms(self) -> float | None:
        """How fast the answer goes on once it has begun, by which a reader takes a wait for long or short: TPOT, or a
        turn that nothing holds up where prompts beside, handoffs or preemptions are known to hold them up: a stream
        that is slow for one fault would excuse the others."""
        tpot, turns = self.cell.answers.mean(self.cell.answers.tpot_ms), self.turns
        if turns is None and self.posts is not None:
            return self.turn_ms
        if tpot is None or turns is None or not turns.quiet_ms > 0:
            return tpot
        at_first = turns.lost_at_first
        handoffs = at_first.low > 0 and at_first.value >= SLOWED * turns.lost.value and "decode" not in self.cell.unread
        return min(tpot, turns.quiet_ms) if self.colocated or self.preempted or handoffs else tpot

    @property
    def preempted(self) -> bool:
        """Whether decode often computes requests again that it put back: that holds its loop when handoffs come."""
        put_back = self.cell.window.delta("decode", "preemptions") or 0.0
        return put_back > PREEMPTED_SHARE * self.cell.answers.count("ok")

    @property
    def expired(self) -> bool:
        """Whether prefill gave KV away before it was read: loads of it end late or never, whoever looks for them."""
        return any(found.code == "kv-expired" and found.severity == VOID for found in self.findings)

    @property
    def colocated(self) -> bool:
        return self.cell.mode == COLOCATED

    @property
    def pull(self) -> bool:
        return self.cell.mode == PULL

    @property
    def mover(self) -> str:
        """The role whose NIXL series tell of transfers."""
        return "prefill" if self.cell.mode == PUSH else "decode"

    def of_ttft(self, part_ms: float) -> str:
        return f"{part_ms:,.0f} of {self.mean_ttft_ms:,.0f} ms TTFT"


def case_of(cell: Measured, split: Split | None, findings: Sequence[Finding], peers: Peers) -> Case | None:
    """`None` when no request was answered."""
    mean = cell.answers.mean(cell.answers.ttft_ms)
    if split is None or mean is None or mean <= 0:
        return None
    without = [found for less in without_each_block(cell) if (found := split_of(less)) is not None]
    turns = _turns(cell, split)
    turn_ms = turns.quiet_ms if turns is not None else cell.answers.mean(cell.answers.tpot_ms)
    if cell.mode == PULL and turns is None:
        turn_ms = turn_of_first_steps(cell, split)
    posts = posts_met(cell, split, turn_ms) if cell.mode == PULL else None
    case = Case(cell, split, mean, without, slots_of(cell), turns, turn_ms, posts, findings, peers)
    return replace(case, removed={"poll": lambda split: split.parts.get("poll")}) if case.expired else case


def _turns(cell: Measured, split: Split) -> Turns | None:
    """`None` also where answers in pull are so short that most of their few gaps hold a post: no turn is quiet then."""
    tokens = cell.answers.mean(cell.answers.output_tokens)
    posted = split.get("post") >= POST_SHARE * split.get("first_step") and split.get("post") > 0
    if cell.mode == PULL and posted and (tokens or 0.0) < FEW_TOKENS:
        return None
    lag_s = _lag_s(cell)
    return turns_of(cell.answers, lag_s) if lag_s else cell.turns


def _lag_s(cell: Measured) -> float:
    """From what a handoff does on decode's loop to its first token: in pull it posts, and then the KV moves."""
    if cell.mode == PUSH:
        return 0.0
    xfer, post = cell.window.mean_s("decode", "nixl_xfer_s"), cell.window.mean_s("decode", "nixl_post_s")
    return max(0.0, (xfer or 0.0) - (post or 0.0))


def _known(share: Share) -> Share:
    return Share(share.value, share.value)


def _share(ms: float | None, of: float) -> float | None:
    return None if ms is None or of <= 0 else ms / of


def _sure(share: float, without: Sequence[float | None]) -> Share:
    """With the lower end of its interval on a logarithmic scale, since shares are positive and skewed."""
    if share <= 0 or not without:
        return Share(share, share)
    if any(value is None or value <= 0 for value in without):
        return Share(share, 0.0)
    found = jackknife(float(np.log(share)), [float(np.log(value)) for value in without if value is not None])
    return Share(share, share if found is None else float(np.exp(found.low)))
