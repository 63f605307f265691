"""Does each handoff hold decode's loop, so that all running streams stand still meanwhile?

The gaps between tokens say how much of the streams' time is lost beyond quiet turns, and the handoffs in each block of
time say whether they lose it (`turns`). NIXL's post time says what it is, where posting runs on the loop (pull).
"""

from __future__ import annotations

from collections.abc import Iterator

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.slots import implied_stall_s
from pdbench.report.advice import HeldLoop, acceptable_s, expected_wait_s, slots_beside
from pdbench.report.causes.case import BESIDE_SHARE, NOTICED_TURNS, WAIT_SHARE, Case, Cause, Part, Taken
from pdbench.report.causes.first_turns import stall_together_ms
from pdbench.report.causes.posting import EXPLAINS, SEEN, behind_posts, posted_share, posting, posts_on_loop
from pdbench.report.demand import prefill_hold_s
from pdbench.report.grid import through_origin
from pdbench.report.split import Split
from pdbench.report.turns import OFTEN, Estimate, Turns

LOOP_SHARE = 0.10  # of decode's time that handoffs may hold it: TPOT is then 11 % longer than it need be
SURE_LOOP_SHARE = 0.05  # the lower end of its interval
MIN_LOST = 0.01  # of decode's time: less that streams lose is not worth a word beside posts
MOVE_POSTS = "Move posting off decode's loop (push, or a connector that posts on a thread of its own):"
QUIET_TOKENS = 16.0  # an answer: of fewer most turns hold a post, and what a turn without one takes is not known
MIN_RISE = 0.15  # TPOT above the low-load one before a stall per admission is worth a word


def post(split: Split) -> float | None:
    return split.parts.get("post")


def held(case: Case) -> Estimate | None:
    """Share of decode's time for which handoffs hold its loop, with its interval; `None` when gaps show none.

    From what gaps lost, as far as handoffs explain it: by NIXL's post time in pull, else by the turns that end with a
    first token, or by the regression, where decode's page says that it is no prompt that decode computes.
    """
    turns = case.turns
    if turns is None or case.colocated or turns.lost.value <= 0:
        return None
    if posts_on_loop(case):
        return _by_posts(case, turns)
    if case.preempted or "decode" in case.cell.unread:
        return None
    return held_as_seen(turns)


def held_as_seen(turns: Turns) -> Estimate | None:
    """The same by gaps alone, whatever it is that comes with another stream's first token."""
    if turns.lost.value <= 0:
        return None
    if (direct := turns.lost_at_first).low > 0 and direct.value >= EXPLAINS * turns.lost.value:
        return Estimate(turns.lost.value, max(turns.lost.low, direct.low), max(turns.lost.high, direct.high))
    stall = turns.stall_ms
    if stall is None or stall.low <= 0 or turns.handoffs_s * stall.value / 1000 < EXPLAINS * turns.lost.value:
        return None
    return turns.lost


def much_held(loop: Estimate | None) -> bool:
    return loop is not None and loop.value >= LOOP_SHARE and loop.low >= SURE_LOOP_SHARE


def _by_posts(case: Case, turns: Turns) -> Estimate:
    """NIXL counts the posts and their time, so where they account for what streams lose, it is as sure as their number:
    blocks of time differ the more the longer their turns are, which says nothing against it."""
    posts = case.cell.answers.count("ok") * min(1.0, turns.busy_s / max(case.cell.send_s, 1e-9))
    lost = turns.lost
    if not posts or not EXPLAINS * lost.value <= posted_share(case) <= lost.value / EXPLAINS:
        return lost
    reach = lost.value * 1.96 / posts**0.5
    return Estimate(lost.value, max(lost.low, lost.value - reach), min(lost.high, lost.value + reach))


def own_stall(turns: Turns) -> Part:
    """A request's own stall comes before its first token: the first step is longer than a turn by it."""

    def longer(split: Split) -> float | None:
        step = split.parts.get("first_step")
        return None if step is None else max(0.0, step - turns.quiet_ms)

    return longer


def with_slots(own: Part) -> Part:
    """What a handoff takes itself, with the wait for slots that are full for it."""

    def whole(split: Split) -> float | None:
        return None if split.for_slots is None else split.for_slots + (own(split) or 0.0)

    return whole


def before_answers(case: Case, turns: Turns) -> Part:
    """What a held loop costs before the first token: one's own post, and turns that are no quiet ones until the KV is
    noticed and in the first step."""
    own, posted = own_stall(turns), posts_on_loop(case)

    def whole(split: Split) -> float | None:
        late = max(0.0, split.get("poll") - turns.quiet_ms)
        return (own(split) or 0.0) + late + (split.get("post") if posted else 0.0)

    return whole


def engine_loop_blocking(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Handoffs take a tenth of the loop, or much of their own TTFT and hold the loop meanwhile."""
    loop, turns = held(case), case.turns
    if turns is None and posts_on_loop(case):
        yield from _posts_alone(case)
    if turns is None or case.colocated:
        return
    taken = case.taken("post", posting(case)) if posts_on_loop(case) else case.taken("first step", own_stall(turns))
    together = None if posts_on_loop(case) else stall_together_ms(case)
    much = much_held(loop)
    if much and lost_turns(case, turns) < NOTICED_TURNS:  # answers too short to lose much: what then comes before them?
        felt = [case.taken("loop", before_answers(case, turns))]
        felt += [case.taken("slots", lambda split: split.for_slots)] if case.slots.reached else []
        felt += [case.taken("pool", lambda split: split.for_blocks)]  # blocks are held for longer as slots are
        taken = next((found for found in felt if found is not None and found.is_wait()), None)
        much = taken is not None
    if not much and not holds_itself(case, loop, together, taken):
        return
    numbers = _numbers(case, turns, loop, together)
    advice, made_of = _advice(case, turns), None
    slots = case.taken("slots", lambda split: split.for_slots) if case.slots.reached else None
    if slots is not None and slots.is_wait() and only_for_stalls(case):
        numbers.append(
            f"waiting for a slot takes {case.of_ttft(slots.ms)}: there were enough if the loop were not held"
        )
        beside = held_loop(case)
        if beside and (more := slots_beside(case.cell, case.slots, beside, acceptable_s(case.cell, slots.ms))):
            advice = f"{advice.rstrip('.')}; or leave the loop as it is and {more}."
        own = post if posts_on_loop(case) else own_stall(turns)
        what = "post" if posts_on_loop(case) else "its own stall"
        made_of = f"slot wait {slots.ms:,.0f} ms + {what} {own(case.split) or 0.0:,.0f} ms, because the loop is held"
        taken = case.taken("slots", with_slots(own))
    elif much and loop is not None and "slots" in case.removed and case.slots.demand is not None:
        made_of = "itself, and part of the wait for slots"
        numbers.append(
            f"without that the load would need {case.slots.demand * (1 - loop.value):.1f} slots in place of"
            f" {case.slots.demand:.1f}"
        )
    numbers += [text for text in (stall_text(case), across_rates(case)) if text is not None]
    confirm = "TPOT at the same batch falls when handoffs stop: stream long answers without new arrivals."
    if turns.lost.value < SURE_LOOP_SHARE and posts_on_loop(case):
        confirm = "A request sent alone waits for its own post and for no other."
    yield case.named("engine-loop-blocking", taken, numbers, advice, confirm, made_of)


def _posts_alone(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Answers too short to tell what streams lose: the posts, by what requests wait for them before their answer."""
    taken = case.taken("post", posting(case))
    if taken is None or not (taken.is_work() or (taken.is_wait() and holds_others(case))):
        return
    numbers = list(_posts_texts(case))
    confirm = "A request sent alone waits for its own post and for no other."
    advice = MOVE_POSTS + " nobody then waits for the posts of others, the post itself stays in TTFT."
    yield case.named("engine-loop-blocking", taken, numbers, advice, confirm)


def _advice(case: Case, turns: Turns) -> str:
    if not posts_on_loop(case):
        return "Profile decode's step at an admission: allocation, handshakes or layout changes of KV run on its loop."
    tokens = case.cell.answers.mean(case.cell.answers.output_tokens) or 0.0
    ends = f"TPOT then falls to about {turns.quiet_ms:.1f} ms"
    if turns.lost.value < SURE_LOOP_SHARE:
        ends = "nobody then waits for the posts of others"
    elif tokens < QUIET_TOKENS or turns.handoffs_s * turns.mean_ms / 1000 >= OFTEN:
        ends = "TPOT then falls, how far answers so short do not tell"
    return f"{MOVE_POSTS} {ends}, the post itself stays in TTFT."


def _numbers(case: Case, turns: Turns, loop: Estimate | None, together: Estimate | None) -> list[str]:
    """What streams lose, and what each handoff holds the loop for."""
    numbers = []
    if loop is not None and not (posts_on_loop(case) and loop.value < MIN_LOST):
        numbers.append(
            f"{loop.value:.0%} of decode's time ({loop.low:.0%} to {loop.high:.0%}) is lost in turns that handoffs hold"
            f" up: TPOT is {turns.mean_ms:.1f} ms, {turns.quiet_ms:.1f} ms in the turns between"
        )
    if posts_on_loop(case):
        return [*numbers, *_posts_texts(case)]
    if together is not None and together.low > 0:
        numbers.append(
            f"handoffs that come to one turn hold each other: for every one of them the first step of all is"
            f" {together.value:,.0f} ms longer ({together.low:,.0f} to {together.high:,.0f})"
        )
    elif (stall := turns.stall_ms) is not None and stall.low > 0:
        numbers.append(f"a handoff holds it for {stall.value:,.0f} ms ({stall.low:,.0f} to {stall.high:,.0f})")
    else:
        numbers.append(f"{turns.lost_at_first.value:.0%} in turns that end with another stream's first token")
    if case.pull and "post" in case.split.parts:
        numbers.append(f"NIXL's post time is {case.split.get('post'):,.0f} ms: something else holds it")
    return numbers


def _posts_texts(case: Case) -> Iterator[str]:
    """What posts take of decode's loop, what of it streams lose, and what handoffs wait for each other's."""
    post_ms, rate = case.split.get("post"), (case.cell.achieved or 0.0) / max(1, case.cell.servers("decode"))
    text = f"posting takes {post_ms:,.0f} ms a request on the loop, {min(1.0, rate * post_ms / 1000):.0%} of its time"
    no_loss = case.turns is not None and case.turns.lost.value < MIN_LOST
    yield text + (": no stream ran beside that lost by it" if no_loss else "")
    if holds_others(case):
        yield (
            f"handoffs that come together are posted one after the other: waiting for others' posts takes"
            f" {case.of_ttft(behind_posts(case)(case.split))}"
        )


def holds_itself(case: Case, loop: Estimate | None, together: Estimate | None, taken: Taken | None) -> bool:
    """Whether what a handoff holds the loop for is much of its own TTFT, however few there are: at a low rate they take
    little of the loop's time. That they hold it, streams beside them must show, or the others of their turn."""
    turns = case.turns
    if turns is None or taken is None:
        return False
    if posts_on_loop(case):
        return taken.is_work() or (taken.is_wait() and holds_others(case))
    if not taken.is_wait():
        return False
    if together is not None and together.low > 0 and together.value >= EXPLAINS * turns.first_turns * taken.ms:
        return True
    seconds = turns.handoffs_s * taken.ms / 1000 / max(1, case.cell.servers("decode"))
    return loop is not None and loop.low > 0 and loop.value >= SEEN * min(1.0, seconds)


def holds_others(case: Case) -> bool:
    """Whether handoffs wait for each other's posts: a tenth of TTFT, beside one's own."""
    behind = case.taken("post", behind_posts(case))
    return behind is not None and behind.is_noticed and behind.of_ttft.value >= BESIDE_SHARE


def only_for_stalls(case: Case) -> bool:
    """Slots that are full because handoffs hold the loop, and would not be without: then the loop is the cause.

    Without the stalls a request holds its slot the shorter by what they take; the wait that is then to be expected is
    judged as the measured one is.
    """
    loop, demand, slots, rate = held(case), case.slots.demand, case.slots.available, case.cell.offered
    unseen = case.turns is None and posts_on_loop(case)  # then how much shorter is not known, and taken for nothing
    if not (unseen or much_held(loop)) or demand is None or not slots or not rate:
        return False
    free = demand * (1 - (loop.value if loop is not None else 0.0))
    wait = expected_wait_s(case.cell, free, free / rate)
    rest = case.mean_ttft_ms - (case.split.for_slots or 0.0)
    return wait is not None and wait * 1000 < WAIT_SHARE * (rest + wait * 1000)


def held_loop(case: Case) -> HeldLoop | None:
    """What handoffs do to any batch on this loop; `None` where they hold it for less than a tenth of its time."""
    turns, tokens, rate = case.turns, case.cell.answers.mean(case.cell.answers.output_tokens), case.cell.rate
    loop = held(case)
    if turns is None or loop is None or not much_held(loop):
        return None
    if not tokens or rate is None:
        return None
    posting = posts_on_loop(case)
    if posting:
        stall_ms = case.split.get("post")
    else:
        known = turns.stall_ms is not None and turns.stall_ms.low > 0
        stall_ms = turns.stall_ms.value if known and turns.stall_ms else own_stall(turns)(case.split) or 0.0
    decoders = max(1, case.cell.servers("decode"))
    share = rate * stall_ms / 1000 / decoders
    if share < LOOP_SHARE:
        return None
    growth_ms = case.peers.turn_growth_ms()
    growth_ms = turns.slope_ms or 0.0 if growth_ms is None else growth_ms
    tpot = Tpot.measured(turns.quiet_ms, growth_ms, turns.streams)
    return HeldLoop(stall_ms, share, Tpot(tpot.alone_ms, tpot.slope_ms + stall_ms / tokens / decoders), posting)


def beside_prompts(case: Case) -> Tpot | None:
    """Co-located, the TPOT of any batch, with the time that a prompt holds a slot spread over the tokens of its answer.

    The steps that compute a prompt stall the streams beside it. What turns lost at the rate that was admitted says how
    long; a stream more in the batch is a prompt more in the time of an answer. `None` where larger batches cost little.
    """
    turns, tokens, rate = case.turns, case.cell.answers.mean(case.cell.answers.output_tokens), case.cell.rate
    servers = max(1, case.cell.servers("colocated"))
    most = (case.slots.available or 0) - servers  # streams that run where a full server has just admitted another
    if not case.colocated or turns is None or not tokens or rate is None or most <= 0:
        return None
    missed = max(1.0, turns.streams / most)
    stall_ms = max(0.0, 1 - turns.quiet_ms / turns.mean_ms) / turns.handoffs_s * 1000 * missed  # by all servers
    own_ms = 1000 * (prefill_hold_s(case.cell) or 0.0)
    quiet = Tpot.measured(turns.quiet_ms, turns.slope_ms or 0.0, turns.streams)
    tpot = Tpot(quiet.alone_ms + own_ms / tokens, quiet.slope_ms + stall_ms / tokens)
    return tpot if rate * tokens * tpot.slope_ms / 1000 >= LOOP_SHARE else None


def lost_turns(case: Case, turns: Turns) -> float:
    """What a request loses to the handoffs of others while it makes its answer, in quiet turns."""
    tokens = case.cell.answers.mean(case.cell.answers.output_tokens) or 0.0
    return max(0.0, tokens - 1) * (turns.mean_ms - turns.quiet_ms) / turns.quiet_ms if turns.quiet_ms > 0 else 0.0


def stall_text(case: Case) -> str | None:
    """What a risen TPOT says of each admission on the decode loop: TPOT = TPOT0 + (c-1)s/(N-1)."""
    cell = case.cell
    tpot, tokens = cell.answers.mean(cell.answers.tpot_ms), cell.answers.mean(cell.answers.output_tokens)
    running = _beside(case)
    if tpot is None or tokens is None or running is None:
        return None
    for twin in case.peers.twins():
        other = twin.answers.mean(twin.answers.tpot_ms)
        stall = None if other is None else implied_stall_s(tpot, other, tokens, running)
        if stall is not None and other is not None and tpot >= (1 + MIN_RISE) * other:
            name = twin.cell.get("target")
            return (
                f"TPOT is {tpot:.1f} ms against {other:.1f} ms on {name} at the same load, which fits a stall of about"
                f" {stall * 1000:.0f} ms at each admission"
            )
    calm = case.peers.calm()
    tpot0 = None if calm is None else calm.answers.mean(calm.answers.tpot_ms)
    if tpot0 is None or tpot < (1 + MIN_RISE) * tpot0:
        return None
    text = f"TPOT rose from {tpot0:.1f} ms at low load to {tpot:.1f} ms"
    turns, event = case.turns, "a prompt" if case.colocated else "a handoff"
    if turns is not None and turns.mean_ms - turns.quiet_ms >= EXPLAINS * (tpot - tpot0):
        stall = implied_stall_s(turns.mean_ms, turns.quiet_ms, tokens, running)
        beyond, how = f"; what is above {turns.quiet_ms:.1f} ms, that of turns without {event}, fits", "about"
    else:
        stall, beyond, how = implied_stall_s(tpot, tpot0, tokens, running), ", which fits", "at most"
    if stall is None:
        return None
    doubt = " (what a larger batch costs included)" if how == "at most" else ""
    return f"{text}{beyond} a stall of {how} {stall * 1000:.0f} ms at each admission{doubt}"


def _beside(case: Case) -> float | None:
    """Streams that run together: all slots where the load needs more than there are, else the mean that was seen."""
    if case.slots.reached and case.slots.overload():
        return case.slots.available
    return case.cell.window.send_mean(case.cell.decoder, "running")


def across_rates(case: Case) -> str | None:
    """The stall that fits all rates of this shape: what turns lost against the handoffs of others in a turn."""
    seen = [cell.turns for cell in case.peers.rates()]
    known = [turns for turns in seen if turns is not None and turns.streams > 1]
    handoffs = [t.handoffs_s * t.mean_ms / 1000 * (t.streams - 1) / t.streams for t in known]
    stall = through_origin(handoffs, [t.mean_ms - t.quiet_ms for t in known])
    if stall is None or len(known) < 3 or stall.low <= 0:
        return None
    return f"over {len(known)} rates: {stall.value:,.0f} ms a handoff ({stall.low:,.0f} to {stall.high:,.0f})"
