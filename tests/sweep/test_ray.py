"""`--ray`: the workers on two nodes of a Ray cluster, and one node lost. Nodes are raylets on this host."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pdbench.sweep.plan import plan_of
from pdbench.sweep.schedule import cell_schedule
from tests.cli.conftest import Ended, command, environment, pdbench, roles, testbed  # noqa: F401
from tests.cli.test_workers import wait_for_lines

_absent = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'pdbench[ray]'")


pytestmark = pytest.mark.alone  # two clusters on one host take each other's nodes for theirs


def needs_ray(test: Any) -> Any:
    return pytest.mark.ray(_absent(test))


class Cluster:
    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        assert process.stdout is not None
        self._process, self.folder = process, folder
        self.address = process.stdout.readline().strip()

    def lose_second_node(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("lose\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "lost\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    script = Path(__file__).with_name("ray_cluster.py")
    # A short path: Ray puts Unix sockets there, whose names may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="pdb-") as folder,
        subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(TMPDIR=folder),
        ) as process,
    ):
        yield Cluster(process, Path(folder))
        assert process.stdin is not None
        process.stdin.close()


@needs_ray
def test_two_nodes_send_what_one_process_sends(pdbench, testbed, cluster, tmp_path):  # noqa: F811
    load = ["--rates", "25", "--num-prompts", "50", "--prompt-lens", "64", "--output-len", "8"]
    words = ["sweep", *roles(testbed(mode="colocated")), *load]
    ended = pdbench(*words, "--ray", cluster.address, "--out", "run", "--json")
    assert ended.code in (0, 3), ended.err  # what a busy host does to the figures is not the question here
    assert ended.summary["cells"][0]["completed"] == 50
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    (entry,), plan = document["cell_runs"], plan_of(document["plan"])
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet").sort_values("index")
    assert rows["index"].tolist() == list(range(50))
    # The parent draws the same schedule as each of them; their own clocks begin where the cell does.
    planned = cell_schedule(plan, plan.cells[0], 0).offset_s
    assert np.allclose(rows["intended_s"] - entry["start_s"], planned, atol=1e-8)
    chunks = pd.read_parquet(tmp_path / "run" / "chunks.parquet")
    assert rows["worker"].value_counts().to_dict() == {0: 25, 1: 25} and set(rows["stamp"]) == {"kernel"}
    assert sorted(chunks["request_id"]) == sorted(rows["request_id"]) and (chunks["offset_s"].str.len() == 8).all()
    for worker in entry["client"]["workers"]:
        assert worker["host"] and 0 < worker["start_within_ms"] < 5000
    assert not list(cluster.folder.glob("pdbench-*")), "nothing is left on the nodes"


@needs_ray
def test_a_lost_node_is_told_and_the_sweep_goes_on_with_those_left(testbed, cluster, tmp_path):  # noqa: F811
    words = [*roles(testbed(mode="colocated")), "--rates", "25,30", "--prompt-lens", "64", "--output-len", "8"]
    line = command("sweep", *words, "--num-prompts", "100", "--ray", cluster.address, "--out", "run")
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sweep:
        wait_for_lines(tmp_path / "run" / "live" / "requests-c0000-r00-w001.jsonl", 5)
        cluster.lose_second_node()
        out, err = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, out + err
    assert "not measured: a load worker was lost" in " ".join(out.split()) and "aylet" not in err, err
    cut, whole = json.loads((tmp_path / "run" / "summary.json").read_text())["cells"]
    assert (cut["state"], cut["failed"]) == ("interrupted", 0)
    assert "arrivals-off" in {flag["code"] for flag in cut["validity"] if flag["severity"] == "void"}
    rows = pd.read_parquet(tmp_path / "run" / "requests.parquet")
    kept = rows[rows["cell"] == 0].groupby("worker").size()
    (entry, _) = json.loads((tmp_path / "run" / "run.json").read_text())["cell_runs"]
    (lost,) = entry["lost"]
    assert kept[1 - lost["worker"]] == 50, "the other one went on to the end"
    assert kept.get(lost["worker"], 0) == lost["measured"] == 50 - cut["not_measured"] < 50
    assert (whole["state"], whole["completed"]) == ("done", 100), "one worker sends all of the next cell"


@needs_ray
def test_a_cluster_that_cannot_hold_the_workers_or_is_not_there(pdbench, testbed, cluster):  # noqa: F811
    words = ["sweep", *roles(testbed(mode="colocated")), "--out", "run"]
    many = pdbench(*words, "--ray", cluster.address, "--workers", "64")
    assert many.code == 2 and "want one each" in many.err
    gone = pdbench(*words, "--ray", "127.0.0.1:1")
    assert gone.code == 4 and "no Ray cluster" in gone.err
    assert pdbench(*words, "--ray", "ray://127.0.0.1:1").code == 2


def test_without_ray_one_sentence_says_how_to_install_it(tmp_path):
    hide = "import sys; sys.modules['ray'] = None; from pdbench.__main__ import main; sys.exit(main())"
    words = ["sweep", "--proxy", "http://127.0.0.1:1", "--ray", "auto"]
    done = subprocess.run(
        [sys.executable, "-c", hide, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 4 and "pip install 'pdbench[ray]'" in done.stderr and "Traceback" not in done.stderr
