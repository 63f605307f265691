"""A table on disk, in pieces: JSON lines while it grows, Parquet afterwards. Its size never has to fit into memory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.errors import UsageError

if TYPE_CHECKING:
    import pyarrow

BATCH_NBYTES = 8 << 20  # of JSON lines that become one piece, which is a row group of the Parquet file
BATCH_ROWS = 8192  # of a Parquet file that are read at a time
WRITER_PATIENCE_S = 10.0

Records = list[dict[str, Any]]


def lines(path: Path) -> Iterator[Records]:
    """The records of a JSON-lines file in pieces; a line that a crash cut short is passed over."""
    piece: Records = []
    nbytes = 0
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                piece.append(json.loads(line))
                nbytes += len(line)
            if nbytes > BATCH_NBYTES:
                yield piece
                piece, nbytes = [], 0
    yield piece


def from_lines(
    path: Path, schema: pyarrow.Schema, as_table: Callable[[Records, pyarrow.Schema], pyarrow.Table]
) -> Iterator[pyarrow.Table]:
    for piece in lines(path):
        yield as_table(piece, schema)


def from_parquet(path: Path, schema: pyarrow.Schema) -> Iterator[pyarrow.Table]:
    """The pieces of a Parquet file, these columns of it. Older files may lack one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:  # or it keeps all that it has read
            known = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=known):
                read = pa.Table.from_batches([batch])
                for name in schema.names:
                    if name not in read.column_names:
                        read = read.append_column(name, pa.nulls(len(read), schema.field(name).type))
                yield read.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None


def write(path: Path, schema: pyarrow.Schema, pieces: Iterable[pyarrow.Table]) -> None:
    """Write a Parquet file, whole or not at all. Raises OSError."""
    import pyarrow.parquet as pq

    temporary = path.with_suffix(".tmp")
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for piece in pieces:
                if len(piece):
                    writer.write_table(piece)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def closed(path: Path) -> None:
    """Wait until no recorder writes to this file any more: one whose client was killed still writes what it was given.

    A recorder that hangs is not waited for.
    """
    limit = time.monotonic() + WRITER_PATIENCE_S
    with contextlib.suppress(OSError), path.open("rb") as file:
        while time.monotonic() < limit:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.01)
