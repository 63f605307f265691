"""A history as JSON. Absent is not known; a run without a value in a series is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pdbench.report.compare.sides import Side
from pdbench.report.history import said
from pdbench.report.history.story import History

SCHEMA = 1


def document(history: History) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "simulated": history.simulated,
        "verdict": said.verdict(history),
        "metrics": list(history.metrics),
        "min_effect": history.effect,
        "runs": [_run(run) for run in history.runs],
        "events": [
            {
                "between": [event.at - 1, event.at],
                "shifts": [
                    {
                        "cell": shift.series.cell,
                        "metric": shift.series.metric,
                        "before": shift.before,
                        "after": shift.after,
                        "change": shift.change,
                        "worse": shift.worse,
                    }
                    for shift in event.shifts
                ],
                "differs": [asdict(fact) for fact in event.differs],
            }
            for event in history.events
        ],
        "series": [
            {
                "cell": one.cell,
                "metric": one.metric,
                "values": list(one.values),
                "levels": [list(x) for x in one.levels],
            }
            for one in history.series
        ],
        "capacity": [
            {
                "shape": one.shape,
                "values": list(one.values),
                "upper_bound": one.below_qps is not None,
                "per_run": one.per_run,
                "sure": one.sure,
            }
            for one in history.drifts
        ],
        "memory": round(history.memory, 3),
        "missing": list(said.missing(history)),
        "left_out": list(history.left_out),
    }


def _run(run: Side) -> dict[str, Any]:
    told = {name: run.summary.get(name) for name in ("created_unix_s", "pdbench", "revision", "driver", "versions")}
    return {"path": str(run.path), **{name: value for name, value in told.items() if value}}
