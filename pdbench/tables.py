"""A table on disk, in pieces: JSON lines while it grows, Parquet afterwards. Its size never has to fit into memory."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

BATCH_NBYTES = 1 << 20  # of JSON lines that are read at a time: as Python's objects they take ten times as much
ROW_GROUP_NBYTES = 4 << 20  # of columns that become one row group of a Parquet file
BATCH_ROWS = 2048  # of a Parquet file that are read at a time
PAGE_NBYTES = 64 << 10  # of a column, before it is compressed: a writer keeps some pages of each
WRITER_PATIENCE_S = 10.0

Records = list[dict[str, Any]]


class _WithoutPandas:
    """Among the finders of modules: pandas is not found."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ImportError(name=name)


@functools.cache
def arrow() -> Any:
    """pyarrow, without the pandas that it imports at its first array, in order to know a Series when it sees one.

    That takes half a second and 40 MB. It looks for it once; who asks for a frame gets one all the same. Memory is
    that of malloc: the pool that it has of its own keeps some 30 MB beyond what it needs.
    """
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pyarrow.array([])
    finally:
        sys.meta_path.remove(finder)
    return pyarrow


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """A column of texts that repeat: `words[codes]`. The last word is None, for where there is no text."""

    words: NDArray[np.object_]
    codes: NDArray[np.int32]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found: NDArray[Any] = self.words.astype(dtype or object)[self.codes]
        return found

    def __getitem__(self, places: Any) -> Texts:
        return Texts(self.words, self.codes[places])


Columns = Mapping[str, Any]  # of a table: numbers as float64, NaN where there is none; Texts


def columns(pieces: Iterable[pyarrow.Table], schema: pyarrow.Schema) -> Columns:
    """A table as arrays, piece by piece, so that it is never held twice. A column of which nothing is known takes no
    memory."""
    types = arrow().types
    counted = [types.is_floating(field.type) or types.is_integer(field.type) for field in schema]
    kept: dict[str, _Numbers | _Words] = {
        name: _Numbers() if number else _Words() for name, number in zip(schema.names, counted, strict=True)
    }
    rows = 0
    for piece in pieces:
        for name, column in kept.items():
            column.add(piece[name], rows)
        rows += len(piece)
    arrow().default_memory_pool().release_unused()
    return {name: column.whole(rows) for name, column in kept.items()}


class _Numbers:
    """A column of numbers that grows in place."""

    def __init__(self) -> None:
        self._values: NDArray[np.float64] | None = None

    def add(self, column: pyarrow.ChunkedArray, rows: int) -> None:
        """What follows on `rows` that are known."""
        import numpy as np

        if self._values is None:
            if column.null_count == len(column):
                return
            self._values = np.full(rows, np.nan)
        self._values.resize(rows + len(column), refcheck=False)
        self._values[rows:] = column.cast(arrow().float64(), safe=False).to_numpy()

    def whole(self, rows: int) -> NDArray[np.float64]:
        import numpy as np

        return np.broadcast_to(np.nan, rows) if self._values is None else self._values


class _Words:
    """A column of texts that grows in place."""

    def __init__(self) -> None:
        import numpy as np

        self._codes = np.empty(0, np.int32)
        self._words: dict[str, int] = {}

    def add(self, column: pyarrow.ChunkedArray, rows: int) -> None:
        import numpy as np

        coded = column if arrow().types.is_dictionary(column.type) else column.dictionary_encode()
        self._codes.resize(rows + len(column), refcheck=False)
        for chunk in coded.chunks:
            known = [self._words.setdefault(word, len(self._words)) for word in chunk.dictionary.to_pylist()]
            places = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._codes[rows : rows + len(places)] = np.array([*known, -1], np.int32)[places]
            rows += len(places)

    def whole(self, rows: int) -> Texts:
        import numpy as np

        return Texts(np.array([*self._words, None], object), self._codes)


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
    import pyarrow.parquet as pq

    pa = arrow()
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

    pa = arrow()
    temporary = path.with_suffix(".tmp")
    # Only texts that repeat: times never do, and a dictionary of them takes memory and makes the file larger.
    repeating = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    kept: dict[str, Any] = {"compression": "zstd", "use_dictionary": repeating, "data_page_size": PAGE_NBYTES}
    try:
        with pq.ParquetWriter(temporary, schema, **kept) as writer:
            for group in _groups(pieces):
                writer.write_table(group)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        pa.default_memory_pool().release_unused()


def _groups(pieces: Iterable[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    """The pieces, as many of them together as make a row group."""
    held: list[pyarrow.Table] = []
    nbytes = 0
    for piece in pieces:
        held.append(piece)
        nbytes += piece.nbytes
        if nbytes > ROW_GROUP_NBYTES:
            yield arrow().concat_tables(held).unify_dictionaries()
            held, nbytes = [], 0
    if any(map(len, held)):
        yield arrow().concat_tables(held).unify_dictionaries()


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
