"""The load of a measured run's cells as questions: what theory expects of each, beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdbench.errors import UsageError
from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.slots_question import Question, tpot_of

SCHEMA = 1


Slope = tuple[float, float | None]  # ms that each further running request adds; how many ran, None: as the run tells


def questions_of_run(
    path: Path, slo_s: float, max_num_seqs: int | None, decoders: int, slope: Slope | None = None
) -> list[tuple[dict[str, Any], Question]]:
    """Each open-loop cell that has a rate, an output length and a TPOT: what was measured of it, and its question.

    A `slope` that is given goes before the run's own.
    """
    cells = _summary(path)["cells"]
    found = [_question(cell, slo_s, max_num_seqs, decoders, slope) for cell in cells if isinstance(cell, Mapping)]
    asked = [one for one in found if one is not None]
    if not asked:
        raise UsageError(
            f"--from-run {path}: no cell has a request rate, output tokens and a TPOT.",
            "A closed-loop run has no rate of its own; sweep with --rates.",
        )
    return asked


def _summary(path: Path) -> dict[str, Any]:
    file = path / "summary.json" if path.is_dir() else path
    hint = "Name a run directory or a summary.json; pdbench report RUN writes one."
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--from-run {file}: {error.strerror}.", hint) from None
    except ValueError:
        raise UsageError(f"--from-run {file}: not JSON.", hint) from None
    if not isinstance(summary, dict) or not isinstance(summary.get("cells"), list):
        raise UsageError(f"--from-run {file}: not a summary: it has no cells.", hint)
    if not isinstance(summary.get("schema"), int) or summary["schema"] > SCHEMA:
        raise UsageError(f"--from-run {file}: schema {summary.get('schema')} is not known here.", "Update pdbench.")
    return summary


def _question(
    cell: Mapping[str, Any], slo_s: float, max_num_seqs: int | None, decoders: int, slope: Slope | None
) -> tuple[dict[str, Any], Question] | None:
    rate, tokens, tpot = _positive(cell, "request_rate"), _out_tokens(cell), _positive(cell, "mean_tpot_ms")
    if rate is None or tokens is None or tpot is None:
        return None
    slots = cell.get("slots") if isinstance(cell.get("slots"), Mapping) else {}
    assert isinstance(slots, Mapping)
    available = _positive(slots, "available")
    each = max_num_seqs or (None if available is None else max(1, round(available / decoders)))
    completed = _positive(cell, "completed")
    split = cell.get("ttft_split_ms")
    needed, beside = _positive(slots, "needed"), _positive(slots, "prefill_held") or 0.0
    measured = {
        "target": cell.get("target"),
        "request_rate": rate,
        "prompt_len": cell.get("prompt_len"),
        "report_slots_needed": None if needed is None else needed + beside,
        "measured_slot_wait_ms": split.get("slot_wait") if isinstance(split, Mapping) else None,
        "measured_qps": cell.get("request_throughput"),
        "measured_growth_ms_per_request": cell.get("ttft_growth_ms_per_request"),
        "cell_validity": [one.get("code") for one in _flags(cell)],
        "cell_void": [one.get("code") for one in _flags(cell) if one.get("severity") == "void"],
    }
    repeats = max(1, len(cell.get("repeats") or ()))
    prompts = None if completed is None else max(1, round(completed / repeats))
    line, held = _held_loop(cell, decoders) if slope is None else (None, "")
    # As the report has it: class by class, and with the slots that requests hold during their own prefill.
    held_ms = tokens * tpot if needed is None else 1000 * needed / rate
    prefill_ms = 0.0 if line else 1000 * beside / rate
    tpot_ms = (held_ms + prefill_ms) / tokens
    if slope is not None:
        running = slope[1] or max(1.0, (_positive(slots, "held") or rate * tokens * tpot / 1000) / decoders)
        line = tpot_of(tpot_ms, slope[0], running)
    demand = Demand(rate, tokens, line or Tpot(tpot_ms))
    return measured, Question(demand, each, slo_s, decoders, num_prompts=prompts, loop_held=held, prefill_ms=prefill_ms)


def _flags(cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in cell.get("validity") or [] if isinstance(one, Mapping)]


def as_reported(document: dict[str, Any]) -> dict[str, Any]:
    """The answer for a cell with the report's own demand, at the TPOT measured, under `slots_needed`.

    Where TPOT goes with the batch, what the asked rate holds in a steady state is another number, and is kept as such.
    """
    needed = document["report_slots_needed"]
    if "tpot_slope_ms" not in document or needed is None:
        return document
    held_s = needed / document["qps"]
    return {
        **document,
        "slots_needed": needed,
        "steady_slots_needed": document["slots_needed"],
        "held_ms": 1000 * held_s,
        "tpot_ms": 1000 * held_s / document["out_tokens"],
        "steady_tpot_ms": document["tpot_ms"],
    }


def _held_loop(cell: Mapping[str, Any], decoders: int) -> tuple[Tpot | None, str]:
    """Where handoffs hold decode's loop, TPOT grows with the batch for it: one number of it holds for this batch only.

    The run's slope is that of all decoders' streams together.
    """
    loop = cell.get("decode_loop")
    if not isinstance(loop, Mapping):
        return None, ""
    alone, slope, stall, share = (_positive(loop, k) for k in ("tpot_alone_ms", "tpot_slope_ms", "stall_ms", "share"))
    if alone is None or slope is None or stall is None or share is None:
        return None, ""
    said = f"a handoff holds decode's loop for {stall:,.0f} ms, all of them for {share:.0%} of its time at this rate"
    return Tpot(alone, slope * decoders), said


def _out_tokens(cell: Mapping[str, Any]) -> float | None:
    """Mean output tokens of the answered requests, else the length that was asked for."""
    total, completed = _positive(cell, "total_output_tokens"), _positive(cell, "completed")
    return total / completed if total and completed else _positive(cell, "output_len")


def _positive(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        return None
    return float(value)
