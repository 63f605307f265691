"""Simulation truth for waits (truth/): rows as records, and which formula or simulation is good for a row."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.lengths import Lengths

TRUTH = Path(__file__).parent / "truth"


@dataclass(frozen=True, slots=True)
class SteadyRow:
    """Waits in units of the holding time; `half_widths` are 95 % intervals."""

    slots: int
    rho: float
    ca: float
    law: str
    cs: float
    figures: dict[str, float]
    half_widths: dict[str, float]

    @property
    def name(self) -> str:
        return f"c{self.slots}-rho{self.rho}-ca{self.ca:.2f}-{self.law}{self.cs:g}"

    def demand(self) -> Demand:
        """The row as a load whose holding time is one second."""
        lengths = Lengths(self.cs, "lognormal" if self.law == "lognormal" else "gamma")
        burstiness = math.inf if self.ca == 0 else 1 / self.ca**2
        return Demand(self.slots * self.rho, 1000, Tpot(1.0), lengths, 1.0 if self.ca == 1 else burstiness)


def steady_rows() -> list[SteadyRow]:
    found = []
    for file in ("truth_mgc.csv", "truth_ggc.csv"):
        with (TRUTH / file).open(newline="") as lines:
            for row in csv.DictReader(lines):
                names = ("p_wait", "mean", "p50", "p90", "p99")
                found.append(
                    SteadyRow(
                        int(row["c"]),
                        float(row["rho"]),
                        float(row["ca"]),
                        row["service_law"],
                        float(row["cs"]),
                        {name: float(row[name]) for name in names},
                        {name: float(row[f"{name}_hw95"]) for name in names},
                    )
                )
    return found


def finite_rows() -> list[dict[str, float]]:
    return [json.loads(line) for line in (TRUTH / "finite.jsonl").read_text().splitlines()]
