"""Nothing measured is lost, and what another program reads keeps its form."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from pdbench.errors import StorageError, UsageError
from pdbench.run import RequestRow, Run, request_record, storing
from pdbench.sweep.recorder_process import Lines

# The columns other programs rely on.
CONTRACT = {
    *("cell", "repeat", "class", "request_id", "target", "intended_s", "sent_s", "first_byte_s", "first_token_s"),
    *("second_token_s", "last_token_s", "done_s", "prompt_tokens", "output_tokens", "chunks", "status", "error"),
}


def row(cell: int, index: int, repeat: int = 0) -> RequestRow:
    return RequestRow(cell, repeat, "default", f"{cell}-{repeat}-{index}", "default", index, index / 10, status="ok")


def write_live(run: Run, cell: int, n: int, repeat: int = 0) -> None:
    write_share(run, cell, range(n), repeat)
    with run.live_path("metrics", cell, repeat).open("a") as file:
        rows = [["vllm:num_requests_running", "running", "gauge", "0", "{}", 3.0]]
        file.write(
            json.dumps({"t": 1.0, "target": "default", "server": "decode-0", "role": "decode", "rows": rows}) + "\n"
        )


def write_share(run: Run, cell: int, indices: range, repeat: int = 0, worker: int | None = None) -> None:
    with run.live_path("requests", cell, repeat, worker).open("a") as file:
        for index in indices:
            file.write(json.dumps(request_record(row(cell, index, repeat))) + "\n")
    with run.live_path("chunks", cell, repeat, worker).open("a") as file:
        for index in indices:
            file.write(json.dumps({"request_id": f"{cell}-{repeat}-{index}", "offset_s": [0.1, 0.2]}) + "\n")


def counts(run: Run) -> tuple[int, int, int]:
    return len(run.table("requests")), len(run.table("chunks")), len(run.table("metrics"))


def test_rows_can_be_read_while_the_cell_runs_after_it_and_when_the_run_is_finished(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"simulated": False})
    write_live(run, 0, 3)
    assert counts(run) == (3, 3, 1)
    run.seal(0, 0)
    write_live(run, 1, 2)
    assert counts(run) == (5, 5, 2)
    run.finish()
    assert counts(run) == (5, 5, 2)
    assert sorted(p.name for p in run.path.iterdir()) == [
        "chunks.parquet",
        "metrics.parquet",
        "requests.parquet",
        "run.json",
    ]
    assert set(Run.open(run.path).table("requests").columns) >= CONTRACT
    assert list(run.table("metrics").columns)[:5] == ["t", "target", "server", "role", "engine"]


def test_a_line_cut_short_by_a_crash_costs_that_line_only(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 3)
    with run.live_path("requests", 0, 0).open("a") as file:
        file.write('{"cell": 0, "repea')
    assert counts(run) == (3, 3, 1)
    run.finish()
    assert counts(run) == (3, 3, 1)


def test_the_shares_of_several_workers_are_one_cell(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    for worker in range(3):
        write_share(run, 0, range(worker, 10, 3), worker=worker)
    write_share(run, 0, range(10), repeat=1)
    run.seal(0, 0)
    assert counts(run)[:2] == (20, 20) and len(list((run.path / "live").iterdir())) == 2
    for worker in range(3):
        write_share(run, 1, range(worker, 10, 3), worker=worker)
    run.discard(1, 0)
    run.discard(0, 0)
    assert counts(run)[:2] == (10, 10)
    run.finish()
    assert sorted(run.table("requests")["request_id"]) == [f"0-1-{index}" for index in range(10)]


def test_a_crash_while_tables_are_joined_counts_nothing_twice(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 3)
    lines = {table: run.live_path(table, 0, 0) for table in ("requests", "chunks", "metrics")}
    kept = {table: path.read_bytes() for table, path in lines.items()}
    run.seal(0, 0)
    for table, path in lines.items():  # as if it had been killed before it removed them
        path.write_bytes(kept[table])
    assert counts(run) == (3, 3, 1)
    parts = {part: part.read_bytes() for part in (run.path / "parts").iterdir()}
    run.finish()
    for folder in ("live", "parts"):
        (run.path / folder).mkdir()
    for part, content in parts.items():
        part.write_bytes(content)
    for table, path in lines.items():
        path.write_bytes(kept[table])
    assert counts(run) == (3, 3, 1)
    run.reopen()
    write_live(run, 1, 2)
    run.finish()
    assert counts(run) == (5, 5, 2)


def test_a_cell_is_sealed_when_nobody_writes_to_it_any_more(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 1)
    late = Lines(run.live_path("requests", 0, 0))

    def write_and_close() -> None:
        time.sleep(0.2)
        late.append(request_record(row(0, 1)))
        late.close()

    writer = threading.Thread(target=write_and_close)
    writer.start()
    run.seal(0, 0)
    writer.join()
    assert len(run.table("requests")) == 2


def test_tables_larger_than_a_piece_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdbench.tables.BATCH_NBYTES", 2000)
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 50)
    run.seal(0, 0)
    write_live(run, 1, 50)
    run.finish()
    run.reopen()
    run.discard(0, 0)
    run.finish()
    table = run.table("requests")
    assert (
        table["request_id"].tolist()
        == [f"1-0-{index}" for index in range(50)]
        == sorted(run.table("chunks")["request_id"], key=lambda name: int(name.rpartition("-")[2]))
    )


def test_small_pieces_become_one_row_group_without_dictionaries_of_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdbench.tables.BATCH_NBYTES", 2000)
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 50)
    run.seal(0, 0)
    run.finish()
    for table, times in (("requests", "intended_s"), ("chunks", "offset_s.list.element")):
        metadata = pyarrow.parquet.read_metadata(run.path / f"{table}.parquet")
        assert metadata.num_row_groups == 1 and metadata.num_rows == 50
        group = metadata.row_group(0)
        (column,) = (found for i in range(group.num_columns) if (found := group.column(i)).path_in_schema == times)
        assert not column.has_dictionary_page


def test_not_measured_stays_not_measured(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 1)
    run.finish()
    assert run.table("requests")["first_token_s"].isna().all()
    assert run.table("requests")["prompt_tokens"].isna().all()


def test_resuming_forgets_the_interrupted_cell_and_keeps_the_rest(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    write_live(run, 0, 3)
    run.seal(0, 0)
    write_live(run, 1, 2)
    run.finish()
    run.reopen()
    run.discard(1, 0)
    assert counts(run)[:2] == (3, 3)
    write_live(run, 1, 4)
    run.finish()
    assert counts(run)[:2] == (7, 7)


def test_a_directory_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        Run.create(tmp_path, {})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_newer_schemas_are_refused_and_older_ones_read(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    run.document["schema"] = 99
    run.save()
    with pytest.raises(UsageError, match="schema 99"):
        Run.open(run.path)
    (tmp_path / "other").mkdir()
    for wrong in (tmp_path, tmp_path / "other"):
        with pytest.raises(UsageError, match="not a run directory") as told:
            Run.open(wrong)
        assert (f"Try {run.path}, the newest of 1" in told.value.hint) == (wrong == tmp_path)
    (run.path / "run.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        Run.open(run.path)


def test_a_table_written_before_a_column_existed_is_still_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    run = Run.create(tmp_path / "run", {})
    pq.write_table(pa.table({"cell": [0], "request_id": ["a"], "status": ["ok"]}), run.path / "requests.parquet")
    assert run.table("requests")["status"].tolist() == ["ok"]
    assert run.table("requests")["stamp"].isna().all()


@pytest.mark.parametrize(
    "document",
    [
        '{"schema": 1, "plan": {"cells": "two"}}',
        '{"schema": 1, "plan": {"cells": [{"cell": 0, "request_rate": NaN}]}}',
        '{"schema": 1, "plan": {"cells": [{"cell": 0, "prompt_len": "16"}]}}',
        '{"schema": 1, "cell_runs": [{"cell": 0, "state": "done"}]}',
        '{"schema": 1, "cell_runs": [{"cell": 0, "repeat": 0, "start_s": Infinity}]}',
        '{"schema": 1, "x": ' + "[" * 100_000,
        "[]",
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, document: str) -> None:
    (tmp_path / "run.json").write_text(document)
    with pytest.raises(UsageError, match="cannot be read"):
        Run.open(tmp_path)


def test_json_for_other_programs_holds_no_nan(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_json("summary.json", {"mean_ttft_ms": float("nan")})


def test_a_disk_that_refuses_is_exit_code_74(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    (run.path / "report.html.tmp").mkdir()  # the write must fail whoever runs the test
    with pytest.raises(StorageError) as caught:
        run.write_text("report.html", "x")
    assert caught.value.exit_code == 74


def test_times_go_on_after_a_reboot(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {})
    origin_ns = run.origin_ns
    run.finish()
    run.reopen()
    assert run.origin_ns == origin_ns
    run.document["cell_runs"].append({"cell": 0, "repeat": 0, "state": "done", "end_s": 1e9})
    run.document["clock"]["boot_id"] = "another boot"
    run.reopen()
    assert (time.monotonic_ns() - run.origin_ns) / 1e9 > 1e9


def test_what_the_disk_refuses_has_the_advice_that_helps() -> None:
    with pytest.raises(StorageError, match="No such file") as nowhere:
        Run.create(Path("/proc/nowhere/run"), {})
    assert "--out" in nowhere.value.hint and "Free space" not in nowhere.value.hint
    with pytest.raises(StorageError, match="No space") as full, storing(Path("/dev/full")):
        Path("/dev/full").write_text("more than there is")
    assert full.value.hint.startswith("Free space")
