"""What was measured: the run directory, read and written.

While a cell runs its rows are appended as JSON lines under `live/`; when it ends `seal` turns them into Parquet parts;
`finish` joins the parts into `requests.parquet`, `chunks.parquet` and `metrics.parquet`. A reader joins whatever is
there, so a crash, Ctrl-C or a full disk loses nothing that was measured. The columns are contracts
(docs/run-directory.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.errors import StorageError, UsageError

if TYPE_CHECKING:
    import pandas
    import pyarrow

SCHEMA = 1
TABLES = ("requests", "chunks", "metrics")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request. Times are seconds from the run's origin on CLOCK_MONOTONIC; `None` means not measured."""

    cell: int
    repeat: int
    request_class: str
    request_id: str
    target: str
    index: int  # place in the cell's schedule, from 0
    intended_s: float
    sent_s: float | None = None
    connected_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    second_token_s: float | None = None
    last_token_s: float | None = None
    done_s: float | None = None
    prompt_len: int | None = None  # as asked
    output_len: int | None = None  # as asked
    prompt_tokens: int | None = None  # from usage
    output_tokens: int | None = None  # from usage
    cached_tokens: int | None = None  # from usage
    chunks: int | None = None  # events that carried generated output
    max_events_per_read: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    status: str = "failed"  # ok, failed, rejected, truncated, timeout, cancelled
    error_kind: str | None = None  # connect, http, not-sse, server-error, truncated, timeout, ...
    error: str | None = None
    stamp: str = "user"  # user or kernel: where the times were taken
    opened_s: float | None = None  # the connection began to be opened
    token_reads: int | None = None  # reads that brought events with output
    shared_reads: int | None = None  # those that brought several, which share a stamp


COLUMN_OF_FIELD = {"request_class": "class"}


def request_record(row: RequestRow) -> dict[str, Any]:
    """The row under its column names."""
    return {COLUMN_OF_FIELD.get(name, name): getattr(row, name) for name in row.__slots__}


def _schemas() -> dict[str, pyarrow.Schema]:
    import pyarrow as pa

    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    annotations: Mapping[str, str] = RequestRow.__annotations__
    requests = pa.schema([(COLUMN_OF_FIELD.get(n, n), kinds[a.split(" ")[0]]) for n, a in annotations.items()])
    chunks = pa.schema([("request_id", pa.string()), ("offset_s", pa.list_(pa.float64()))])
    text = pa.dictionary(pa.int32(), pa.string())
    labels = ("target", "server", "role", "engine", "metric", "canonical", "kind", "labels")
    metrics = pa.schema([("t", pa.float64()), *((name, text) for name in labels), ("value", pa.float64())])
    return {"requests": requests, "chunks": chunks, "metrics": metrics}


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into exit code 74 and one sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}.",
            "Free space, then go on with sweep --resume; or give another --out.",
        ) from error


class Run:
    """One run directory. `document` is run.json as a dict; `save` writes it atomically."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document

    @classmethod
    def create(cls, path: Path, document: Mapping[str, Any]) -> Run:
        """Make the directory. Raises UsageError when it exists and is not empty."""
        cls.refuse_existing(path)
        with storing(path):
            (path / "live").mkdir(parents=True)
            (path / "parts").mkdir()
        clock = {
            "source": "CLOCK_MONOTONIC",
            "boot_id": _boot_id(),
            "origin_monotonic_ns": time.monotonic_ns(),
            "origin_unix_s": time.time(),
        }
        run = cls(path, {"schema": SCHEMA, "clock": clock, **document, "cell_runs": []})
        run.save()
        return run

    @staticmethod
    def refuse_existing(path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(f"{path} exists.", f"Give another --out, or go on with it: sweep --resume {path}")

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read run.json. Raises UsageError when this is no run directory or one from a newer pdbench."""
        file = path / "run.json"
        try:
            document = json.loads(file.read_text())
            schema = int(document["schema"])
        except FileNotFoundError:
            raise UsageError(f"{path} is not a run directory: it has no run.json.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} cannot be read: {error}.") from None
        if schema > SCHEMA:
            raise UsageError(
                f"{file} has schema {schema}, this pdbench reads up to {SCHEMA}.",
                "Update pdbench: pip install -U pdbench",
            )
        return cls(path, document)

    @property
    def origin_ns(self) -> int:
        """Where the tables' times count from, on this boot's CLOCK_MONOTONIC."""
        clock = self.document["clock"]
        return int(clock.get("resumed", [clock])[-1]["origin_monotonic_ns"])

    def save(self) -> None:
        self.write_json("run.json", self.document)

    def write_json(self, name: str, document: Any) -> Path:
        """Write a JSON file atomically; NaN and Infinity are refused, since other programs read it."""
        return self.write_text(name, json.dumps(document, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        path = self.path / name
        with storing(path):
            temporary = path.with_suffix(path.suffix + ".tmp")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        return path

    def live_path(self, table: str, cell: int, repeat: int) -> Path:
        """Where the JSON lines of a running cell go."""
        return self.path / "live" / f"{table}-c{cell:04d}-r{repeat:02d}.jsonl"

    def seal(self, cell: int, repeat: int) -> None:
        """Turn a finished cell's JSON lines into Parquet parts."""
        for table in TABLES:
            live = self.live_path(table, cell, repeat)
            if live.exists():
                _write_parquet(self.path / "parts" / f"{live.stem}.parquet", table, _live_rows(table, live))
                live.unlink()

    def finish(self) -> None:
        """Join everything into the three tables of the contract; parts and JSON lines go when that is safe."""
        import pyarrow as pa

        for table in TABLES:
            pieces = [piece for piece, _ in self._pieces(table)]
            whole = pa.concat_tables(pieces).unify_dictionaries() if pieces else _schemas()[table].empty_table()
            _write_table(self.path / f"{table}.parquet", whole)
        for folder in ("parts", "live"):
            for file in (self.path / folder).glob("*"):
                file.unlink()
            if (self.path / folder).exists():
                (self.path / folder).rmdir()

    def reopen(self) -> None:
        """Make a finished run ready for more cells (`sweep --resume`): its tables become parts.

        After a reboot the clock has begun again; times then go on behind those that the run has.
        """
        clock = self.document["clock"]
        if _boot_id() != clock.get("resumed", [clock])[-1].get("boot_id"):
            last_s = max((entry.get("end_s", 0.0) for entry in self.document["cell_runs"]), default=0.0)
            origin_ns = time.monotonic_ns() - int((last_s + 60) * 1e9)
            clock.setdefault("resumed", []).append({"boot_id": _boot_id(), "origin_monotonic_ns": origin_ns})
        with storing(self.path):
            for folder in ("live", "parts"):
                (self.path / folder).mkdir(exist_ok=True)
            for table in TABLES:
                whole = self.path / f"{table}.parquet"
                if whole.exists():
                    whole.rename(self.path / "parts" / f"{table}-before-{time.time_ns()}.parquet")

    def discard(self, cell: int, repeat: int) -> None:
        """Forget what an interrupted cell left, before it is measured again."""
        ids: set[str] = set()
        for table in TABLES:
            live = self.live_path(table, cell, repeat)
            if table == "requests" and live.exists():
                ids |= {row["request_id"] for row in _live_rows(table, live)}
            live.unlink(missing_ok=True)
            (self.path / "parts" / f"{live.stem}.parquet").unlink(missing_ok=True)
        for file in (self.path / "parts").glob("requests-before-*.parquet"):
            ids |= _drop_rows(file, "requests", lambda row: (row["cell"], row["repeat"]) == (cell, repeat))
        for file in (self.path / "parts").glob("chunks-before-*.parquet"):
            _drop_rows(file, "chunks", lambda row: row["request_id"] in ids)

    def table(self, name: str) -> pandas.DataFrame:
        """One of the three tables as a frame, from whatever the directory holds: whole, parts and JSON lines."""
        import pyarrow as pa

        pieces = [piece for piece, _ in self._pieces(name)]
        whole = pa.concat_tables(pieces) if pieces else _schemas()[name].empty_table()
        frame: pandas.DataFrame = whole.to_pandas()
        return frame

    def _pieces(self, table: str) -> Iterator[tuple[pyarrow.Table, Path]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schemas()[table]
        for file in [self.path / f"{table}.parquet", *sorted((self.path / "parts").glob(f"{table}-*.parquet"))]:
            if file.exists():
                try:
                    read = pq.ParquetFile(file).read()  # read_table would import pyarrow.dataset: 0.3 s
                except (pa.ArrowException, OSError) as error:
                    raise UsageError(f"{file} cannot be read: {error}.") from None
                # Older files may lack a column, newer ones of the same schema number may have more.
                for name in schema.names:
                    if name not in read.column_names:
                        read = read.append_column(name, pa.nulls(len(read), schema.field(name).type))
                yield read.select(schema.names).cast(schema), file
        for file in sorted((self.path / "live").glob(f"{table}-*.jsonl")):
            yield pa.Table.from_pylist(list(_live_rows(table, file)), schema=schema), file


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _live_rows(table: str, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file; a last line that a crash cut short is passed over."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if table == "metrics":
                yield from metric_rows(record)
            else:
                yield record


def metric_rows(scrape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a scrape record; each of its rows is [metric, canonical, kind, engine, labels, value]."""
    for metric, canonical, kind, engine, labels, value in scrape["rows"]:
        yield {
            "t": scrape["t"],
            "target": scrape["target"],
            "server": scrape["server"],
            "role": scrape["role"],
            "engine": engine,
            "metric": metric,
            "canonical": canonical,
            "kind": kind,
            "labels": labels,
            "value": value,
        }


def _write_parquet(path: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    import pyarrow as pa

    _write_table(path, pa.Table.from_pylist(list(rows), schema=_schemas()[table]))


def _write_table(path: Path, table: pyarrow.Table) -> None:
    import pyarrow.parquet as pq

    with storing(path):
        temporary = path.with_suffix(".tmp")
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(path)


def _drop_rows(file: Path, table: str, unwanted: Any) -> set[str]:
    import pyarrow.parquet as pq

    rows = pq.read_table(file).to_pylist()
    _write_parquet(file, table, [row for row in rows if not unwanted(row)])
    return {row["request_id"] for row in rows if unwanted(row)}
