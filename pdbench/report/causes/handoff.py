"""The handoff itself: the bytes on their link, and the descriptors that name them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pdbench.report.causes.case import NOTICED_TURNS, Case, Cause, Taken
from pdbench.report.causes.loop import LOOP_SHARE, held, lost_turns
from pdbench.report.causes.posting import EXPLAINS, posted_share, posting, posts_on_loop, wait_to_post
from pdbench.report.cell import Measured
from pdbench.report.handoffs import handoffs_of
from pdbench.report.link_use import LinkUse, link_use
from pdbench.report.split import Split

ALONE = 1.05  # under way on average, while any is: beyond, transfers meet
COPIED_IN_POST = 0.9  # of the transfer time spent in its post
LINK_SHARE = 0.3  # of the declared link: below, the KV does not go where it was meant to
FASTEST_GB_S = 1000.0  # no link of one GPU is faster: NVLink 5 carries 900 GB/s
BEYOND_LINK = 1.5  # times what the link is declared to carry
POST_US = 4.0  # to post a descriptor, as published for RDMA transports (2.4 to 3.9 us)
SLOW_POST_US = 20.0  # beyond, posting is slow for another reason than the number of descriptors


def move(split: Split) -> float | None:
    return split.parts.get("transfer")


def transfer_bandwidth(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """The bytes' own time: a quarter of TTFT on the link, or half of it with a post that nothing else explains."""
    cell = case.cell
    taken = case.taken("transfer", move)
    if taken is None:
        return
    inside = not taken.is_wait()
    if inside:
        # A copy may run inside the post (same host, shared memory): then that is the transfer.
        posted = posting(case)
        taken = case.taken("transfer", lambda split: split.get("transfer") + (posted(split) or 0.0))
        if taken is None or not taken.is_work() or not copied_in_post(case):
            return
    moved, use = handoffs_of(cell, case.mover), link_use(cell)
    numbers = [_in_post(case, taken) if inside else f"moving the KV takes {case.of_ttft(taken.ms)}"]
    if use is not None and use.shared and not inside:
        numbers[0] += f": {use.alone_ms:,.0f} alone on the link, {use.queued_ms:,.0f} more for the others on it"
    if moved is not None and moved.nbytes is not None and moved.gb_s is not None:
        waits = ", its waits for others included" if use is not None and use.under_way > ALONE else ""
        numbers.append(f"{moved.nbytes / moved.transfers / 1e6:,.1f} MB a handle at {moved.gb_s:.3g} GB/s{waits}")
    if moved is not None:
        numbers += [f"{figure} not known: {why}" for figure, why in moved.unsure.items()]
    loading = cell.window.send_max("decode", "kv_fetch_stage", stage="in_progress")
    if case.pull and loading is not None and loading > 1:
        numbers.append(f"up to {loading:.0f} at once")
    if use is not None:
        where, least = "" if use.servers == 1 else " a server", "at least " if use.least else ""
        numbers.append(
            f"all together {least}{use.gb_s:.3g} GB/s{where} while any was under way, {use.busy:.0%} of the sending"
        )
    numbers.append(_against_link(None if use is None else use.gb_s, cell.deployment.get("link_gb_s")))
    yield case.named("transfer-bandwidth", taken, numbers, _faster(cell, use, inside), _alone(use, inside))


def _faster(cell: Measured, use: LinkUse | None, inside: bool) -> str:
    """The first thing to change; where the link is nearly full, with the rate that it carries."""
    transport = "check the transport (UCX_TLS, RDMA devices, GPU P2P) with pdbench topo, then pdbench probe-transfer"
    links, link = "more links (TP, NICs) or fewer bytes (fp8 KV)", cell.deployment.get("link_gb_s")
    full, lower = "", ""
    if use is not None and use.near and not inside:
        asked = f"{use.asked:.3g} are asked" if cell.streams is None else f"{cell.streams} streams ask {use.asked:.3g}"
        full = f"The link carries {use.carries:.3g} req/s of these prompts ({use.gb_s:.3g} GB/s), {asked}: "
        lower = "lower the rate" if cell.streams is None else "use fewer streams"
    or_lower = f", or {lower}" if lower else ""
    if link is None or use is None:
        text = f"{transport}{or_lower}; say with --link-gb-s what the link should carry."
    elif inside:
        text = f"{transport}; transfers are posted one by one, so more instances post more of them."
    elif use.gb_s < LINK_SHARE * link:
        text = f"{transport}{or_lower}."
    elif full:
        text = f"{lower}, or use {links}."
    else:
        text = f"the link carries what it can: use {links}, or push layer by layer."
    return full + text if full else text[0].upper() + text[1:]


def _alone(use: LinkUse | None, inside: bool) -> str:
    """What confirms it."""
    if use is None or inside or use.under_way <= ALONE:
        return "A transfer alone on the idle pair takes as long."
    if use.shared:
        return f"A transfer alone on the idle pair takes about {use.alone_ms:,.0f} ms."
    return "A transfer alone on the idle pair takes as long; where it does not, transfers wait for each other."


def _in_post(case: Case, taken: Taken) -> str:
    """Where the time of bytes goes that move while they are posted: one transfer after the other."""
    posted, moved = case.split.get("post"), case.split.get("transfer")
    text = f"posting and moving the KV takes {case.of_ttft(taken.ms)}: post {posted:.1f}, transfer {moved:.1f}"
    if (queued := taken.ms - posted - moved) > 0.1 * posted:
        text += f", waiting until the transfers before it were posted {queued:.1f}"
    count = case.cell.window.delta(case.mover, "nixl_post_s", "count")
    servers = case.cell.servers("decode" if case.pull else "prefill")
    if count and servers and case.cell.send_s > 0:
        text += f"; posting is busy {min(1.0, count * posted / 1000 / servers / case.cell.send_s):.0%} of the time"
    each = case.cell.window.mean_s(case.mover, "nixl_descriptors")
    return text + (f", {1000 * posted / each:,.0f} us a descriptor" if each else "")


def copied_in_post(case: Case) -> bool:
    """Whether the bytes are known to move while they are posted (shared memory, same host).

    Posting takes the whole transfer, and grows with the bytes over this run's prompt lengths; or what is left of the
    transfer is too short for them on any link. With one length and a link that may have carried them afterwards, a
    copy and a post that is slow in itself look the same (`unknown.unnamed_post`).
    """
    posted, moved = case.split.get("post"), case.split.get("transfer")
    if posted < COPIED_IN_POST * (posted + moved) or posts_on_loop(case) or fragments_ms(case) is not None:
        return False
    by_bytes = case.peers.post_of_bytes_ms()
    if by_bytes is not None:
        return by_bytes >= EXPLAINS * posted
    return (rest := speed_after_post_gb_s(case)) is not None and rest > _fastest_gb_s(case)


def speed_after_post_gb_s(case: Case) -> float | None:
    """At which the bytes must have moved if none of them did so while they were posted."""
    nbytes, moved_ms = case.cell.window.mean_s(case.mover, "nixl_nbytes"), case.split.get("transfer")
    if nbytes is None:
        return None
    return nbytes / moved_ms / 1e6 if moved_ms > 0 else math.inf


def _fastest_gb_s(case: Case) -> float:
    link = case.cell.deployment.get("link_gb_s")
    return FASTEST_GB_S if link is None else BEYOND_LINK * float(link)


def _against_link(speed: float | None, link: float | None) -> str:
    if link is None or speed is None:
        return "no link_gb_s is declared to compare with"
    text = f"{100 * speed / link:.2g}% of the declared {link:g} GB/s"
    return f"{text}: the link itself" if speed >= LINK_SHARE * link else f"{text}: another transport, or a shared link"


def transfer_fragmentation(case: Case) -> Iterator[tuple[Cause, Taken | None]]:
    """Posting takes long because there are many descriptors to post."""
    fragments = fragments_ms(case)
    descriptors = case.cell.window.mean_s(case.mover, "nixl_descriptors")
    posted = case.split.parts.get("post")
    if fragments is None or descriptors is None or not posted:
        return

    queued = posting(case)

    def of_descriptors(split: Split) -> float | None:
        whole = queued(split)
        return None if whole is None else whole * min(1.0, fragments / posted)

    taken = case.taken("post", of_descriptors)
    turns = case.turns if case.pull and held(case) is not None else None
    loop = 0.0 if turns is None else posted_share(case) * fragments / posted
    felt = turns is not None and loop >= LOOP_SHARE and lost_turns(case, turns) >= NOTICED_TURNS
    if taken is None or not (taken.is_wait() or felt):
        return
    nbytes = case.cell.window.mean_s(case.mover, "nixl_nbytes")
    waits = wait_to_post(case)(case.split)
    numbers = [
        f"posting takes {case.of_ttft(posted)}"
        + (f", and as many as {waits:,.0f} ms go by before it can begin" if waits > posted / 10 else ""),
        f"a transfer has {descriptors:,.0f} descriptors, {1000 * posted / descriptors:.1f} us of posting each",
    ]
    if nbytes is not None:
        numbers.append(f"{nbytes / descriptors / 1024:,.0f} KiB a descriptor")
    if (cost := case.peers.descriptor_cost_us()) is not None:
        numbers.append(f"over this run's prompt lengths a descriptor costs {cost:.1f} us")
    if turns is not None:
        numbers.append(f"on decode's loop that is {min(1.0, loop):.0%} of the time in which streams run")
    yield case.named(
        "transfer-fragmentation",
        taken,
        numbers,
        "Make transfers of fewer, larger pieces: a larger --block-size, a KV layout with all layers of a block"
        " together, and less fragmented KV memory.",
        "After a restart, with KV memory unfragmented, or with larger blocks, descriptors and post time fall together.",
    )


def fragments_ms(case: Case) -> float | None:
    """What of the post time its descriptors explain; `None` when they don't explain most of it."""
    descriptors = case.cell.window.mean_s(case.mover, "nixl_descriptors")
    posted = case.split.parts.get("post")
    if not descriptors or not posted:
        return None
    cost = case.peers.descriptor_cost_us()
    if cost is None:
        cost = POST_US if 1000 * posted / descriptors > SLOW_POST_US else 1000 * posted / descriptors
    explained = min(posted, descriptors * cost / 1000)
    return explained if explained >= 0.5 * posted else None
