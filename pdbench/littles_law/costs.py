"""What a prompt costs a prefill engine. What a token costs a decode engine is `batch.Tpot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from pdbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Time of one prompt: `fixed_ms` is outside the engine's forward and stalls nobody, the rest is the forward."""

    ms_per_token: float
    ms_per_token2: float = 0.0
    fixed_ms: float = 0.0

    def forward_ms(self, tokens: float) -> float:
        return self.ms_per_token * tokens + self.ms_per_token2 * tokens * tokens

    def whole_ms(self, tokens: float) -> float:
        return self.fixed_ms + self.forward_ms(tokens)


# TTFT less transfer of two published nine-point tables (kvcache-ai/Mooncake, docs/source/performance), least squares.
PREFILL_FITS = {
    "qwen3-8b-h800": PrefillCost(0.01895, 5.0e-8, 44.5),
    "qwen3-235b-h20": PrefillCost(0.0320, 2.1e-6, 108.0),
}

# A thousand tokens that take longer were typed in the other unit: slow engines on a CPU are some 100 times faster.
SLOWEST_S = 1000.0


def prefill_cost(text: str) -> PrefillCost:
    """`--prefill`: tokens/s, `a,b[,fixed]` in ms a token, token squared and prompt, or a published one's name."""
    if text.lower() in PREFILL_FITS:
        return PREFILL_FITS[text.lower()]
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 3 or not all(0 <= value < float("inf") for value in values) or values[0] == 0:
        raise UsageError(
            f"--prefill wants tokens/s, ms a token and token squared such as 0.019,5e-8, or a name, not {text!r}.",
            f"Fitted to published measurements: {', '.join(PREFILL_FITS)}.",
        )
    cost = PrefillCost(1000 / values[0]) if len(values) == 1 else PrefillCost(*values)
    if cost.whole_ms(1000) > SLOWEST_S * 1000:
        _refuse(text, values, cost)
    return cost


def _refuse(text: str, values: list[float], cost: PrefillCost) -> NoReturn:
    """A speed that nobody means: how it was read, and the two ways to write it."""
    units = ("ms a token", "ms a token squared", "ms a prompt")
    pairs = zip(values, units, strict=False)
    read = f"{text} tokens/s" if len(values) == 1 else ", ".join(f"{value:g} {unit}" for value, unit in pairs)
    ms_a_token = f"{text},0" if len(values) == 1 else "0.019,5e-8"
    hours = cost.whole_ms(1000) / 3.6e6
    raise UsageError(
        f"--prefill {text} is read as {read}: a prompt of 1,000 tokens would take {hours:,.2g} h.",
        f"One number is tokens/s (12200); with a comma it is ms a token and token squared ({ms_a_token}).",
    )
