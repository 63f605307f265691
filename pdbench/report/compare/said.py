"""A comparison in words and numbers, the same in every view: metric names, signed shares, the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdbench.report import wording
from pdbench.report.compare.comparison import (
    FAILED,
    MEANINGLESS,
    REFUSED,
    UNDECIDED,
    CellChange,
    Comparison,
)
from pdbench.report.compare.evidence import PAIRS_FOR_PERMUTATION, PAIRS_FOR_T
from pdbench.report.compare.explain import Part, leading_parts, measured_apart
from pdbench.report.compare.gate import SERVERS_FAULT, SHARES, UNANSWERED, VALIDITY, Change, higher_is_better
from pdbench.report.compare.pairs import PairedCell
from pdbench.report.wording import clean, number, part_name

_STATISTICS = {"mean": "mean ", "median": "median ", "p50": "p50 ", "p90": "p90 ", "p99": "p99 "}
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
_NAMES = {
    "request_throughput": ("throughput", "req/s"),
    "output_throughput": ("output", "tokens/s"),
    "total_token_throughput": ("all tokens", "tokens/s"),
    "request_goodput": ("goodput", "req/s"),
    "waiting_mean": ("waiting", "requests"),
    VALIDITY: ("validity", "void"),
    UNANSWERED: ("unanswered", "of the requests"),
    "gb_s": ("bandwidth", "GB/s"),
    "capacity": ("capacity", "req/s"),
    "knee": ("knee", "req/s"),
}
NAMED_GATES = 3
TELLING_PART = 0.1  # of the change of TTFT: a part that moved the other way and is worth a word


def metric_name(metric: str) -> str:
    """`mean TTFT`, `throughput`, `post`; a key that is not known stays as it is."""
    if metric in _NAMES:
        return _NAMES[metric][0]
    if metric.startswith("classes."):
        _, name, own = metric.split(".", 2)
        return f"{clean(name, 20)} {metric_name(own)}"
    if metric.startswith("ttft_split_ms."):
        return part_name(metric.partition(".")[2])
    if metric.endswith(("_ms.p50", "_ms.p99")):
        phase, _, quantile = metric.partition("_ms.")
        return f"{phase} {quantile}"
    statistic, _, rest = metric.removesuffix("_ms").partition("_")
    return (
        f"{_STATISTICS[statistic]}{_METRICS[rest]}" if statistic in _STATISTICS and rest in _METRICS else clean(metric)
    )


def unit(metric: str) -> str:
    own = metric.rpartition(".")[2]
    return _NAMES[own][1] if own in _NAMES else "ms" if "_ms" in metric else ""


def signed(share: float | None) -> str:
    """`+13%`, `-1.2%`; a change of more than ten times is a factor."""
    if share is None:
        return wording.NOT_MEASURED
    if share >= 9:
        return f"x{1 + share:,.0f}"
    text = f"{share * 100:+.0f}%" if abs(share) >= 0.0995 else f"{share * 100:+.1f}%"
    return text.replace("-0.0%", "+0.0%")


def signed_ms(value: float) -> str:
    text = wording.tenths(abs(value))
    return f"{'-' if value < 0 and text != '0.0' else '+'}{text}"


def span(change: Change) -> str:
    """The interval: `+9.1% to +17%`; empty where too few repeats give none."""
    return "" if change.low is None or change.high is None else f"{signed(change.low)} to {signed(change.high)}"


def change_sentence(change: Change) -> str:
    """`mean TTFT 160 -> 182 ms, +13% (+9.1% to +17%)`."""
    if change.metric in SHARES:
        return change.note
    if change.base is None or change.new is None:
        return f"{metric_name(change.metric)}: {change.note}"
    said = f"{metric_name(change.metric)} {number(change.base)} -> {number(change.new)} {unit(change.metric)}".rstrip()
    return f"{said}, {signed(change.change)}{f' ({span(change)})' if span(change) else ''}"


def verdict(comparison: Comparison) -> str:
    """One or two sentences: what the gate says, the change that tells most, and what explains it."""
    status = comparison.status
    if status == REFUSED:
        more = len(comparison.refused) - 1
        return f"Not compared: {comparison.refused[0].why}{f' And {more} more.' if more else ''}"
    if status == MEANINGLESS:
        said = comparison.not_compared[0] if comparison.not_compared else "nothing was measured"
        return f"Nothing to compare: no cell is valid on both sides; {said}."
    if status == FAILED:
        failed = [(cell, change) for cell, change in comparison.gates if change.gate == FAILED]
        return _most_telling(comparison, sorted(failed, key=lambda pair: -loss(pair[1])), "worse").strip()
    improved = _improved(comparison)
    if status == UNDECIDED:
        return f"{improved}{_undecided(comparison)}"
    effect = f"{comparison.rules.effect:.0%}"
    gates = wording.counted(len(comparison.gates), "gate")
    return f"{improved}{gates} passed: no change for the worse of {effect} or more."


def loss(change: Change) -> float:
    """The share by which a change is for the worse."""
    if change.change is None:
        return (change.new or 0.0) - (change.base or 0.0) if change.metric in SHARES else 0.0
    return -change.change if higher_is_better(change.metric) else change.change


def _improved(comparison: Comparison) -> str:
    better = [(cell, change) for cell, change in comparison.gates if change.evidence == "improved"]
    telling = [pair for pair in better if -loss(pair[1]) >= comparison.rules.effect]
    return _most_telling(comparison, sorted(telling, key=lambda pair: loss(pair[1])), "better")


def _most_telling(comparison: Comparison, ranked: Sequence[tuple[CellChange, Change]], which: str) -> str:
    """The first of these changes in full, how many more there are, and what explains it; empty without any."""
    if not ranked:
        return ""
    cell, change = ranked[0]
    more = f"; {wording.counted(len(ranked) - 1, 'more gate')} {which}" if len(ranked) > 1 else ""
    base, new = clean(comparison.base.role, 40), clean(comparison.new.role, 40)
    if change.metric == VALIDITY:
        holds, not_held = (new, base) if which == "better" else (base, new)
        return f"{not_held} does not hold a cell that {holds} holds: {cell.cell.name}: {lost_sentence(cell)}{more}. "
    return f"{new} is {which} than {base}: {cell.cell.name}: {change_sentence(change)}{more}.{_because(cell, change)} "


def lost_sentence(cell: CellChange) -> str:
    """How often each side is void, and what its cell's verdict says of it."""
    paired = cell.cell
    worse = paired.void_new > paired.void_base
    voids = (paired.void_base, paired.void_new)
    why = wording.cell_sentence(paired.new if worse else paired.base).partition(";")[0].rstrip(".")
    why = why[:1].lower() + why[1:] if why else ", ".join(paired.codes[worse])
    return (
        f"{paired.roles[worse]} void in {voids[worse]} of {wording.counted(paired.planned, 'repeat')} ({why}), "
        f"{paired.roles[not worse]} in {voids[not worse]}"
    )


def _because(cell: CellChange, change: Change) -> str:
    """The parts of TTFT whose change is more than noise, then those that carry its change and are not, as such."""
    total, said = sum(part.change_ms for part in cell.parts), total_of(cell)
    leading = leading_parts(cell.parts)
    told = [part for part in cell.parts if part.sure]
    told = [part for part in told if part in leading or abs(part.change_ms) >= TELLING_PART * abs(total)]
    # What is named may be more than there is: then something makes up for it.
    against = [part for part in cell.parts if part.change_ms * total < 0 and part not in told]
    back = _parts([part for part in against if abs(part.change_ms) >= TELLING_PART * abs(total)])
    if told:
        unsure = _parts([part for part in leading if not part.sure])
        unsure = ", ".join(filter(None, (unsure, back)))
        return f" Of {said}: {_parts(told)}{unsure and f'; without evidence: {unsure}'}."
    if leading and "ttft" in change.metric:
        largest = ", ".join(filter(None, (_parts(leading), back)))
        return f" Of {said} no part has evidence of its own; the largest: {largest}."
    return ""


def untold(changes: Sequence[Change], thing: str) -> str:
    """`2 gates without evidence of a change, 1 gate with too few repeats to tell`."""
    few = sum(change.evidence == "too few" for change in changes)
    small = sum(change.evidence == "small" for change in changes)
    none = len(changes) - few - small
    said = [f"{wording.counted(small, thing)} with a small change"] if small else []
    said += [f"{wording.counted(none, thing)} without evidence of a change"] if none else []
    said += [f"{wording.counted(few, thing)} with too few repeats to tell"] if few else []
    return ", ".join(said)


def total_of(cell: CellChange) -> str:
    """`+30.0 ms of TTFT`: what the parts sum to, which add only as plain means of the repeats. Where these differ in
    print from the geometric means that the change is of, they stand beside it."""
    old, new = sum(part.base_ms for part in cell.parts), sum(part.new_ms for part in cell.parts)
    changes = (*cell.gates, *cell.watched)
    mean = next((change for change in changes if change.metric == "mean_ttft_ms"), None)
    apart = mean is None or (number(mean.base), number(mean.new)) != (number(old), number(new))
    plain = f" (plain means of the repeats, {number(old)} -> {number(new)})" if apart else ""
    return f"{signed_ms(new - old)} ms of TTFT{plain}"


def _parts(parts: Sequence[Part]) -> str:
    largest = sorted(parts, key=lambda part: -abs(part.change_ms))[:NAMED_GATES]
    return ", ".join(f"{part_name(part.name)} {signed_ms(part.change_ms)}" for part in largest)


def _undecided(comparison: Comparison) -> str:
    open_gates = [(cell, change) for cell, change in comparison.gates if change.gate == UNDECIDED]
    few = [change for _, change in open_gates if change.evidence == "too few"]
    if few and len(few) == len(comparison.gates):
        pairs = min(change.pairs for change in few)
        cell, change = max(open_gates, key=lambda pair: abs(pair[1].change or 0.0))
        return (
            f"Too few repeats to decide: {wording.counted(pairs, 'pair')}, a gate needs {PAIRS_FOR_T} (from "
            f"{PAIRS_FOR_PERMUTATION} on it is sharper). Largest difference so far: {cell.cell.name}: "
            f"{change_sentence(change)}."
        )
    said = []
    if open_gates:
        are = "is" if len(open_gates) == 1 else "are"
        said.append(f"{len(open_gates)} of {wording.counted(len(comparison.gates), 'gate')} {are} undecided")
        known = [change.more_repeats for _, change in open_gates if change.more_repeats is not None]
        if known:
            said.append(f"the widest needs {wording.counted(max(known), 'more repeat')}")
        if comparison.searched:
            cell, change = open_gates[0]
            said.append(f"{cell.cell.name}: {change_sentence(change)}")
            said += [change.note] if change.change is not None else []
        elif hopeless := len(open_gates) - len(known):
            said.append(f"for {hopeless} no sensible number of repeats would do")
    if lost := [cell for cell in comparison.cells if not cell.cell.pairs and cell.cell.void_base < cell.cell.planned]:
        where = f"{lost[0].cell.name}: {lost[0].cell.why_not}"
        said.append(f"{wording.counted(len(lost), 'cell')} cannot be compared ({where})")
    return f"{_capital('; '.join(said))}."


def why_undecided(change: Change) -> str:
    """What an undecided gate lacks."""
    if change.evidence == "not measured" or change.note:
        return change.note
    if change.more_repeats is not None:
        return f"needs {wording.counted(change.more_repeats, 'more repeat')}"
    return "no sensible number of repeats would decide"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


STRICT = "Undecided does not fail; --strict makes it fail."


def next_step(comparison: Comparison) -> str:
    """What to type or do next; empty where nothing is left to do."""
    if comparison.refused:
        return comparison.refused[0].next_step
    if comparison.status == UNDECIDED and comparison.searched:
        return "Give the wider search more time: pdbench sweep --resume RUN --max-duration 2h; then compare again."
    more = [change.more_repeats for _, change in comparison.gates if change.gate == UNDECIDED and change.more_repeats]
    if comparison.status == UNDECIDED and more:
        have = min((cell.cell.planned for cell in comparison.cells), default=0)
        wanted = max(have + max(more), PAIRS_FOR_PERMUTATION)
        return (
            f"Measure both sides with --repeats {wanted}; a run directory goes on: "
            f"pdbench sweep --resume RUN --repeats {wanted}"
        )
    return ""


def remarks(comparison: Comparison) -> Iterator[str]:
    """What to keep in mind: sessions apart, repeats left out, what could not be compared."""
    if comparison.refused:
        return
    yield from _sessions(comparison)
    uneven = [cell.cell for cell in comparison.cells if cell.cell.pairs and cell.cell.void_base + cell.cell.void_new]
    for cell in uneven:
        yield (
            f"{cell.name}: {len(cell.pairs)} of {cell.planned} pairs are valid "
            f"({cell.void_base} void in {comparison.base.role}, {cell.void_new} in {comparison.new.role})"
            f"{'; the worst are left out, so that a change for the worse looks smaller' if _spared(cell) else ''}"
        )
    for owner, change in comparison.gates:
        if change.left_out:
            yield f"{owner.cell.name}: {metric_name(change.metric)} is of {change.left_out}"
    yield from comparison.not_compared


def rests_on(comparison: Comparison) -> str:
    """Which repeats were compared, where some are void: those say nothing against the difference of the others."""
    if comparison.status in (REFUSED, MEANINGLESS):
        return ""
    cells = [cell.cell for cell in comparison.cells if cell.cell.pairs]
    valid, planned = sum(len(cell.pairs) for cell in cells), sum(cell.planned for cell in cells)
    return "" if valid == planned else f"That rests on the {valid} of {planned} pairs of repeats that are valid."


def _sessions(comparison: Comparison) -> Iterator[str]:
    """What two runs do not share is in their change and in no interval, whichever way it goes."""
    turns = "Two targets in one sweep (--target a=... --target b=...) take turns."
    if apart := measured_apart(comparison.base, comparison.new):
        yield f"measured {apart} apart: whatever else changed in between counts as a change too. {turns}"
    if comparison.base.path == comparison.new.path:
        return
    told = {change.evidence for _, change in comparison.gates}
    doubt = "two runs are two sessions: one may be faster for reasons of its own (other load on the hosts,"
    doubt += " temperature), which no interval here includes"
    if comparison.status == FAILED or "improved" in told:
        often = "if that is 1%, 5 to 9 of 100 comparisons fail although nothing changed, and as many improve"
        yield f"{doubt}{'' if comparison.searched else f': {often}'}. Confirm it before you act. {turns}"
    elif "small" in told:
        yield f"{doubt}: a small change may be no more than that. {turns}"


def _spared(cell: PairedCell) -> bool:
    """Whether new has more void repeats by what its servers did: what is left of it is the better part."""
    return cell.void_new > cell.void_base and bool(SERVERS_FAULT & set(cell.codes[1]))


def level(comparison: Comparison) -> str:
    """Of the intervals: 95 %, more where several comparisons share the chance of a false alarm."""
    return f"{(1 - comparison.rules.alpha) * 100:.3g}%"


def method(comparison: Comparison) -> str:
    """How it was decided, in one sentence."""
    if comparison.searched:
        count = wording.counted(len(comparison.gates), "change")
        told = f"{level(comparison)} interval for all {count} together, from the two searches' own intervals"
        return f"{told}; gate at {comparison.rules.effect:.0%}"
    pairs = [change.pairs for _, change in comparison.gates if change.low is not None]
    if not pairs:
        return ""
    family = wording.counted(sum(change.low is not None for _, change in comparison.gates), "change")
    test = "exact sign flips, largest change of all" if min(pairs) >= PAIRS_FOR_PERMUTATION else "paired t, Bonferroni"
    count = f"{min(pairs)}" if min(pairs) == max(pairs) else f"{min(pairs)} to {max(pairs)}"
    effect = f"{comparison.rules.effect:.0%}"
    told = f"{level(comparison)} interval for all {family} together, from {count} paired repeats ({test})"
    return f"{told}; gate at {effect}; each side is the geometric mean of its repeats here"
