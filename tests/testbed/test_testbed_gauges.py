"""What /metrics shows while requests wait, against the truth log."""

import itertools
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdbench.testbed import truth
from tests.testbed.conftest import Start, page
from tests.testbed.testbed_client import load

pytestmark = pytest.mark.alone


def gauges(url: str) -> dict[str, float]:
    wanted = ("num_requests_running", "num_requests_waiting", "by_reason", "by_stage")
    lines = [line for line in page(url).splitlines() if any(name in line for name in wanted)]
    samples = [s for family in text_string_to_metric_families("\n".join(lines) + "\n") for s in family.samples]
    return {s.labels.get("stage", s.labels.get("reason", s.name)): s.value for s in samples}


def test_waiting_shows_its_stage_and_keeps_littles_law(start: Start) -> None:
    pull = start(max_num_seqs=1)
    decode = pull.decode_urls[0]
    seen: list[tuple[float, dict[str, float]]] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.02):
            found = gauges(decode)
            seen.append((time.monotonic(), found))

    sampler = threading.Thread(target=sample)
    sampler.start()
    answers = load(pull.entry_url, [0.0, 0.1, 0.15], prompt=160, output=150)
    stop.set()
    sampler.join()
    shown = [(g["waiting_to_start"], g["completed_waiting"]) for _, g in seen]
    assert (2, 0) in shown  # the slot is taken: nothing loads
    assert (0, 1) in shown  # it was free for a moment: both loaded, one still waits for a slot
    for _, g in seen:
        assert g["capacity"] == g["waiting_to_start"]
        assert g["deferred"] == g["in_progress"] + g["completed_waiting"]
        assert g["vllm:num_requests_waiting"] == g["capacity"] + g["deferred"]
    area = sum(g["vllm:num_requests_waiting"] * (b - a) for (a, g), (b, _) in itertools.pairwise(seen))
    rows = [truth.read(pull.log_dir)["requests"][s.request_id]["decode"] for s in answers]
    assert area == pytest.approx(sum(row["admitted"] - row["queued"] for row in rows), rel=0.15)
