"""What was measured: the run directory, read and written.

While a cell runs its rows are appended as JSON lines under `live/`; when it ends `seal` turns them into Parquet parts;
`finish` joins the parts into `requests.parquet`, `chunks.parquet` and `metrics.parquet`. A reader joins whatever is
there, so a crash, Ctrl-C or a full disk loses nothing that was measured. The columns are contracts
(docs/run-directory.md).
"""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench import tables
from pdbench.errors import StorageError, UsageError
from pdbench.tables import Columns

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
    shared_len: int | None = None  # prompt tokens that an earlier request of the cell began with, as asked
    session: int | None = None
    turn: int | None = None  # of its session, from 1
    reasoning_tokens: int | None = None  # of a turn's answer: the thinking trace, from usage or by its share of events
    worker: int | None = None  # which one sent it, where several processes did
    render_done_s: float | None = None  # the first hop of --drive render
    derender_sent_s: float | None = None  # its last
    derender_done_s: float | None = None
    prefill_sent_s: float | None = None  # hop 1 of --drive two-hop
    prefill_done_s: float | None = None
    told_prefill_s: float | None = None  # as Dynamo tells: prefill's queue and compute
    told_transfer_s: float | None = None  # its estimate of the KV transfer: up to decode's first token
    told_ms: str | None = None  # durations that the server told of this request, JSON by name, in ms
    first_reasoning_s: float | None = None  # first event with a thinking trace
    first_content_s: float | None = None  # first event with a piece of the answer itself
    decode_sent_s: float | None = None  # hop 2; where its connection had to be waited for, when that stood


COLUMN_OF_FIELD = {"request_class": "class"}


def request_record(row: RequestRow) -> dict[str, Any]:
    """The row under its column names."""
    return {COLUMN_OF_FIELD.get(name, name): getattr(row, name) for name in row.__slots__}


def _schemas() -> dict[str, pyarrow.Schema]:
    pa = tables.arrow()
    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}
    annotations: Mapping[str, str] = RequestRow.__annotations__
    requests = pa.schema([(COLUMN_OF_FIELD.get(n, n), kinds[a.split(" ")[0]]) for n, a in annotations.items()])
    chunks = pa.schema([("request_id", pa.string()), ("offset_s", pa.list_(pa.float64()))])
    text = pa.dictionary(pa.int32(), pa.string())
    labels = ("target", "server", "role", "engine", "metric", "canonical", "kind", "labels")
    metrics = pa.schema([("t", pa.float64()), *((name, text) for name in labels), ("value", pa.float64())])
    return {"requests": requests, "chunks": chunks, "metrics": metrics}


def _look_through(document: Mapping[str, Any]) -> None:
    """Raise what reading it would raise later, where a file was damaged or edited: numbers that are none, say."""
    for cell in document.get("plan", {}).get("cells", []):
        for name in ("cell", "request_rate", "prompt_len", "output_len", "max_concurrency"):
            if cell.get(name) is not None and not math.isfinite(cell[name]):
                raise ValueError(f"{name} of a cell is {cell[name]}")
    for entry in document.get("cell_runs", []):
        for name in ("cell", "repeat"):
            int(entry[name])
        for name in ("start_s", "send_end_s", "end_s"):
            if entry.get(name) is not None and not math.isfinite(entry[name]):
                raise ValueError(f"{name} of a cell is {entry[name]}")


def _schema(table: str, columns: Sequence[str] | None) -> pyarrow.Schema:
    whole = _schemas()[table]
    return whole if columns is None else tables.arrow().schema([whole.field(name) for name in columns])


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into exit code 74 and one sentence."""
    try:
        yield
    except OSError as error:
        hint = "Name another place, one that can be written (of a run: another --out)."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Free space, then go on with sweep --resume; or give another --out."
        raise StorageError(f"cannot write {path}: {error.strerror or error}.", hint) from error


class Run:
    """One run directory. `document` is run.json as a dict; `save` writes it atomically."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document

    @classmethod
    def create(cls, path: Path, document: Mapping[str, Any]) -> Run:
        """Make the directory. Raises UsageError when it exists and is not empty."""
        cls.refuse_existing(path, resumable="imported" not in document and document.get("kind") != "transfer")
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
    def refuse_existing(path: Path, *, resumable: bool = True) -> None:
        """Raise UsageError for a path that holds something; `resumable`: what was to go there is a sweep."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            go_on = resumable and (path / "run.json").is_file()
            raise UsageError(
                f"{path} exists.",
                "Give another --out" + (f", or go on with it: sweep --resume {path}" if go_on else "."),
            )

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read run.json. Raises UsageError when this is no run directory or one from a newer pdbench."""
        file = path / "run.json"
        try:
            document = json.loads(file.read_text())
            schema = int(document["schema"])
            _look_through(document)
        except FileNotFoundError:
            raise UsageError(f"{path} is not a run directory: it has no run.json.", _runs_near(path)) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{file} cannot be read: {type(error).__name__}, {error}.") from None
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

    def live_path(self, table: str, cell: int, repeat: int, worker: int | None = None) -> Path:
        """Where the JSON lines of a running cell go; of each `worker`, where several send it."""
        of_worker = "" if worker is None else f"-w{worker:03d}"
        return self.path / "live" / f"{table}-c{cell:04d}-r{repeat:02d}{of_worker}.jsonl"

    def live_paths(self, table: str, cell: int, repeat: int) -> list[Path]:
        """The files of JSON lines that a cell has, when nobody writes to them any more."""
        whole = self.live_path(table, cell, repeat)
        found = [whole] * whole.exists() + sorted(whole.parent.glob(f"{whole.stem}-w*.jsonl"))
        for live in found:
            tables.closed(live)
        return found

    def seal(self, cell: int, repeat: int) -> None:
        """Turn a finished cell's JSON lines into Parquet parts."""
        for table in TABLES:
            if found := self.live_paths(table, cell, repeat):
                part = self.path / "parts" / f"{self.live_path(table, cell, repeat).stem}.parquet"
                self._write(part, table, (piece for live in found for piece in _from_lines(table, live)))
                for live in found:
                    live.unlink()

    def finish(self) -> None:
        """Join everything into the three tables of the contract; parts and JSON lines go when that is safe."""
        for table in TABLES:
            whole = self.path / f"{table}.parquet"
            parts, live = ([*(self.path / folder).glob(f"{table}-*")] for folder in ("parts", "live"))
            if len(parts) == 1 and not live and not whole.exists():
                with storing(whole):
                    parts[0].replace(whole)
            else:
                self._write(whole, table, self.pieces(table))
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
                    for piece in [*(self.path / "live").glob(f"{table}-*"), *(self.path / "parts").glob(f"{table}-*")]:
                        piece.unlink()  # it is in the whole: a crash came before `finish` could remove it
                    whole.rename(self.path / "parts" / f"{table}-before-{time.time_ns()}.parquet")

    def discard(self, cell: int, repeat: int) -> None:
        """Forget what an interrupted cell left, before it is measured again."""
        import pyarrow.compute as pc

        pa = tables.arrow()
        ids: list[Any] = []
        for table in TABLES:
            for live in self.live_paths(table, cell, repeat):
                if table == "requests":
                    ids += [row["request_id"] for piece in tables.lines(live) for row in piece]
                live.unlink()
            part = self.live_path(table, cell, repeat).stem
            (self.path / "parts" / f"{part}.parquet").unlink(missing_ok=True)

        def of_cell(piece: pyarrow.Table) -> Any:
            found = pc.and_(pc.equal(piece["cell"], cell), pc.equal(piece["repeat"], repeat))
            ids.extend(piece.filter(found)["request_id"].to_pylist())
            return found

        for file in (self.path / "parts").glob("requests-before-*.parquet"):
            self._drop(file, "requests", of_cell)
        gone = pa.array(ids, pa.string())
        for file in (self.path / "parts").glob("chunks-before-*.parquet"):
            self._drop(file, "chunks", lambda piece: pc.is_in(piece["request_id"], gone))

    def _drop(self, file: Path, table: str, unwanted: Callable[[pyarrow.Table], Any]) -> None:
        import pyarrow.compute as pc

        pieces = tables.from_parquet(file, _schemas()[table])
        self._write(file, table, (piece.filter(pc.invert(unwanted(piece))) for piece in pieces))

    def _write(self, path: Path, table: str, pieces: Iterable[pyarrow.Table]) -> None:
        with storing(path):
            tables.write(path, _schemas()[table], pieces)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """One of the three tables as a frame, or some columns of it, from whatever the directory holds."""
        pa = tables.arrow()
        whole = pa.concat_tables([_schema(name, columns).empty_table(), *self.pieces(name, columns)])
        # Column by column, each freed when it has been taken over.
        frame: pandas.DataFrame = whole.to_pandas(split_blocks=True, self_destruct=True)
        del whole
        pa.default_memory_pool().release_unused()
        return frame

    def columns(self, name: str, columns: Sequence[str] | None = None) -> Columns:
        """The same as arrays, for which nobody waits for pandas."""
        return tables.columns(self.pieces(name, columns), _schema(name, columns))

    def ids(self, table: str = "requests") -> pyarrow.ChunkedArray:
        """The ids of all requests, in the order of the table's other columns."""
        schema = _schema(table, ("request_id",))
        return tables.arrow().concat_tables([schema.empty_table(), *self.pieces(table, schema.names)])[0]

    def pieces(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pyarrow.Table]:
        """A table as far as the directory holds it, in pieces: whole, parts and JSON lines."""
        schema = _schema(table, columns)
        whole = self.path / f"{table}.parquet"
        if whole.exists():
            yield from tables.from_parquet(whole, schema)
            return
        parts = sorted((self.path / "parts").glob(f"{table}-*.parquet"))
        for part in parts:
            yield from tables.from_parquet(part, schema)
        sealed = {part.stem for part in parts}
        for file in sorted((self.path / "live").glob(f"{table}-*.jsonl")):
            if file.stem.partition("-w")[0] not in sealed:  # a crash between sealing a cell and removing its lines
                for piece in _from_lines(table, file):
                    yield piece.select(schema.names)


def _runs_near(path: Path) -> str:
    """The newest run in a folder that is none itself, or beside a name that is wrong; empty without any."""
    folder = path if path.is_dir() else path.parent
    try:
        found = sorted(folder.glob("*/run.json"), key=lambda file: file.stat().st_mtime)
    except OSError:
        return ""
    return f"Try {found[-1].parent}, the newest of {len(found)} in {folder}." if found else ""


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _from_lines(table: str, file: Path) -> Iterator[pyarrow.Table]:
    as_table = _metrics_table if table == "metrics" else tables.arrow().Table.from_pylist
    return tables.from_lines(file, _schemas()[table], as_table)


METRIC_COLUMNS = ("metric", "canonical", "kind", "engine", "labels", "value")


def metric_rows(scrape: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a scrape record; each of its rows is [metric, canonical, kind, engine, labels, value]."""
    common = {name: scrape[name] for name in ("t", "target", "server", "role")}
    for row in scrape["rows"]:
        yield {**common, **dict(zip(METRIC_COLUMNS, row, strict=True))}


def _metrics_table(scrapes: list[dict[str, Any]], schema: pyarrow.Schema) -> pyarrow.Table:
    """The rows of many scrapes, column by column: they are too many for a dict each."""
    pa = tables.arrow()
    rows = [row for scrape in scrapes for row in scrape["rows"]]
    columns: dict[str, Any] = dict(zip(METRIC_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    for name in ("t", "target", "server", "role"):
        columns[name] = [value for scrape in scrapes for value in [scrape[name]] * len(scrape["rows"])]
    return pa.table({field.name: pa.array(columns.get(field.name, ()), field.type) for field in schema}, schema=schema)
