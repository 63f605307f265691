"""What the fits say of other sizes: this model's handoff at each prompt length, measured or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdbench.report.transfer.fit import Fit, Shape, fit

Key = tuple[str, str, str]  # operation, backend, memory

WITHHELD = 0.5  # a fit that misses one of its own shapes by more predicts nothing
_BEYOND = 1.5  # times the largest shape that was measured: from there a prediction is called extrapolated


def fits(grouped: Sequence[tuple[Key, list[Shape]]]) -> dict[Key, tuple[Fit, int]]:
    """Each fit with the largest shape that it saw."""
    made = {}
    for key, shapes in grouped:
        found = fit(shapes)
        if found is not None:
            made[key] = found, max(shape.nbytes for shape in shapes)
    return made


def fit_document(key: Key, made: Fit) -> dict[str, Any]:
    """t0 in ms, bandwidth in GB/s and time of a descriptor in us, each with its interval; `gb_s` None: bytes cost
    nothing that was seen."""
    t0, per_byte, per_descriptor = (float(part) for part in made.parts)
    slow, fast = made.interval(1)
    return {
        **dict(zip(("op", "backend", "memory"), key, strict=True)),
        "t0_ms": t0 * 1000,
        "t0_ms_interval": [bound * 1000 for bound in made.interval(0)],
        "gb_s": _gb_s(per_byte),
        "gb_s_interval": [_gb_s(fast), _gb_s(slow)],
        "us_per_descriptor": per_descriptor * 1e6,
        "us_per_descriptor_interval": [bound * 1e6 for bound in made.interval(2)],
        "worst_miss": made.worst,
        "rms_miss": made.rms,
        "shapes": made.shapes,
    }


def _gb_s(seconds_per_byte: float) -> float | None:
    return 1e-9 / seconds_per_byte if seconds_per_byte > 0 else None


def predictions(
    made: Mapping[Key, tuple[Fit, int]], prompts: Sequence[Mapping[str, Any]], theory_gb_s: float | None
) -> list[dict[str, Any]]:
    """For each prompt length the time of every operation, with no blocks merged and with all of a region merged."""
    rows = []
    for prompt in prompts:
        nbytes, ways = prompt["nbytes"], []
        for key, (found, largest) in made.items():
            if found.worst > WITHHELD:
                continue
            for ids, descriptors in (("scattered", prompt["descriptors"]), ("contiguous", prompt["regions"])):
                value, low, high = (seconds * 1000 for seconds in found.predict(nbytes, descriptors))
                ways.append(
                    {
                        **dict(zip(("op", "backend", "memory"), key, strict=True)),
                        "ids": ids,
                        "ms": value,
                        "interval": [low, high],
                        "extrapolated": bool(nbytes > _BEYOND * largest),
                    }
                )
        at_theory = nbytes / theory_gb_s / 1e6 if theory_gb_s else None
        rows.append({**prompt, "at_theory_ms": at_theory, "ways": ways})
    return rows
