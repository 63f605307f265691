"""Cells and requests as flat tables, for spreadsheets and data frames: CSV and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.report.wording import clean, is_unsound, share_of_ttft, verdict_mark
from pdbench.run import Run, storing

if TYPE_CHECKING:
    import pandas

Results = Sequence[tuple[Run, Mapping[str, Any]]]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute
LATENCIES = {"ttft_ms": "first_token_s", "e2el_ms": "last_token_s"}


def cells_frame(results: Results) -> pandas.DataFrame:
    """One row a cell: the scalars of summary.json, `a.b` for what is nested; flags and causes as text."""
    import pandas as pd

    return pd.DataFrame([row for run, summary in results for row in _cell_rows(run, summary)])


def _cell_rows(run: Run, summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for cell in summary.get("cells") or []:
        row: dict[str, Any] = {"run": run.path.name, "simulated": bool(summary.get("simulated"))}
        row |= {"imported_from": summary["imported_from"]} if summary.get("imported_from") else {}
        row |= {"verdict_mark": verdict_mark(cell), "valid": verdict_mark(cell) != "none" and not is_unsound(cell)}
        row |= dict(_flat(cell))
        for severity in ("void", "warn"):
            found = [str(flag.get("code")) for flag in cell.get("validity") or [] if flag.get("severity") == severity]
            row[severity] = "; ".join(dict.fromkeys(found))
        causes = [(str(cause.get("cause")), share_of_ttft(cause)) for cause in cell.get("diagnosis") or []]
        row["causes"] = "; ".join(f"{name} ({share})" if share else name for name, share in causes)
        yield row


def _flat(record: Mapping[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{front}{key}.")
        elif isinstance(value, list) and front.endswith("_interval."):
            yield from ((f"{front}{key}.{end}", bound) for end, bound in zip(("low", "high"), value, strict=False))
        elif not isinstance(value, list):
            yield f"{front}{key}", clean(value, 2000) if isinstance(value, str) else value


def requests_frame(results: Results) -> pandas.DataFrame:
    """One row a request: the columns of requests.parquet with TTFT, TPOT and E2EL, and whether its cell is valid."""
    import pandas as pd

    frames = []
    for run, summary in results:
        rows = run.table("requests")
        rows.insert(0, "run", run.path.name)
        for name, stamp in LATENCIES.items():
            rows[name] = (rows[stamp] - rows["intended_s"]) * 1000
        gaps = (rows["output_tokens"] - 1).where(rows["output_tokens"] > 1)
        rows["tpot_ms"] = (rows["last_token_s"] - rows["first_token_s"]) / gaps * 1000
        unsound = {cell.get("cell"): is_unsound(cell) for cell in summary.get("cells") or []}
        rows["cell_valid"] = [not unsound.get(cell, True) for cell in rows["cell"]]
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def _harmless(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The frame with texts that no spreadsheet takes for a formula."""

    def said(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value

    texts = [name for name in frame.columns if not _is_numeric(frame[name])]
    return frame.assign(**{name: frame[name].map(said) for name in texts})


def _is_numeric(column: pandas.Series[Any]) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column))


def _write_csv(frame: pandas.DataFrame, path: Path) -> None:
    _harmless(frame).to_csv(path, index=False)


def _write_parquet(frame: pandas.DataFrame, path: Path) -> None:
    frame.to_parquet(path, index=False, compression="zstd")


WRITERS: dict[str, Callable[[pandas.DataFrame, Path], None]] = {"csv": _write_csv, "parquet": _write_parquet}


def export(results: Results, kind: str, folder: Path) -> list[Path]:
    """Write `cells` and `requests` of all runs into the folder, made where it is missing. Returns the paths."""
    written = []
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, frame in (("cells", cells_frame(results)), ("requests", requests_frame(results))):
        path = folder / f"{name}.{kind}"
        with storing(path):
            WRITERS[kind](frame, path)
        written.append(path)
    return written
