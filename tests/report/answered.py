"""Answers from rows written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pdbench import tables
from pdbench.report.answers import COLUMNS, Answers, answers_of
from pdbench.report.events import of_offsets
from pdbench.run import _schema


def columns(name: str, rows: Sequence[Mapping[str, Any]]) -> tables.Columns:
    """Rows of one of a run's tables as its columns; what they lack is not known."""
    schema = _schema(name, COLUMNS if name == "requests" else None)
    plain = pa.schema(
        [(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    )
    return tables.columns([pa.Table.from_pylist(rows, plain).cast(schema)], schema)


def read_answers(
    rows: Sequence[Mapping[str, Any]], offsets: Mapping[str, NDArray[np.float64]], closed: bool = False
) -> Answers:
    """The answers that these rows tell of; `offsets`: the arrivals of each request's output, by its id."""
    events = of_offsets([row["request_id"] for row in rows], offsets)
    return answers_of(columns("requests", rows), events, np.arange(len(rows)), closed)
