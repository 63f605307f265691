"""Every row of the simulation truth against what the tool itself would answer."""

from __future__ import annotations

import pytest

from pdbench.littles_law.batch import Tpot
from pdbench.littles_law.demand import Demand
from pdbench.littles_law.finite import finite
from pdbench.littles_law.lengths import Lengths
from pdbench.littles_law.steady import steady
from pdbench.littles_law.waits import Waits
from tests.littles_law.slots_truth import SteadyRow, finite_rows, steady_rows

# Relative errors at rho >= 0.7 that theory grants a closed form: of the mean, of P(wait), of p99.
FORMULA = {"Spitzer": (0.03, 0.01, 0.05), "Erlang": (0.03, 0.02, 0.05), "interpolation": (0.05, 0.08, 0.07)}
SIMULATION = (0.03, 0.01, 0.05)  # for a third of the tool's own simulation: it has an interval as wide as the row's
WIDER = 1.5
ABSOLUTE = (0.0, 0.003, 0.0)


def tolerances(row: SteadyRow, method: str) -> tuple[float, float, float]:
    relative = next((errors for name, errors in FORMULA.items() if name in method), SIMULATION)
    mean, p_wait, p99 = (
        max(3 * row.half_widths[name], share * row.figures[name], floor) * (WIDER if relative is SIMULATION else 1)
        for name, share, floor in zip(("mean", "p_wait", "p99"), relative, ABSOLUTE, strict=True)
    )
    return mean, p_wait, p99


@pytest.mark.parametrize("row", steady_rows(), ids=lambda row: row.name)
def test_steady_row(row: SteadyRow) -> None:
    found = steady(row.demand(), row.slots, seed=1, effort=1.0 if row.rho >= 0.95 else 0.35)
    assert isinstance(found.waits, Waits)
    mean, p_wait, p99 = tolerances(row, found.method)
    assert found.waits.mean_s == pytest.approx(row.figures["mean"], abs=mean + 1e-6)
    assert found.waits.p_wait == pytest.approx(row.figures["p_wait"], abs=p_wait)
    assert found.waits.p99_s == pytest.approx(row.figures["p99"], abs=p99 + 1e-6)


def test_bursts_with_equal_lengths_need_no_simulation() -> None:
    rows = [row for row in steady_rows() if row.cs == 0]
    assert rows and all("Spitzer" in steady(row.demand(), row.slots).method for row in rows if row.ca > 0)


@pytest.mark.parametrize(
    "row", finite_rows(), ids=lambda r: f"c{r['c']}-{r['srv']}-rho{r['rho']}-K{r['K']}-n{r['norm']}"
)
def test_finite_row(row: dict[str, float]) -> None:
    slots = int(row["c"])
    demand = Demand(slots * row["rho"], 1000, Tpot(1.0), Lengths(row["cs"], "lognormal"))
    found = finite(demand, slots, int(row["K"]), normalised=bool(row["norm"]), seed=3)
    own = 1.96 * found.mean_sd_s / found.runs**0.5
    half_width = 1.96 * row["sd_run"] / 2000**0.5
    allowed = max(3 * half_width, 0.03 * row["mean"]) + 2 * own + 1e-6
    assert found.waits.mean_s == pytest.approx(row["mean"], abs=allowed)
    assert found.waits.p_wait == pytest.approx(row["pwait"], abs=0.012)
    assert found.waits.p99_s == pytest.approx(row["p99"], abs=max(8 * half_width, 0.06 * row["p99"]) + 2e-3)
    assert found.last_tenth_mean_s == pytest.approx(
        row["lastdec"], abs=max(8 * half_width, 0.06 * row["lastdec"]) + 2e-3
    )
    assert found.makespan_s == pytest.approx(row["makespan"], rel=0.02)
