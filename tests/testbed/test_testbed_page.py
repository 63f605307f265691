"""/metrics against pages of a real vLLM 0.32 (captures/, values as they were, HELP lines left out)."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.testbed.conftest import Start, page
from tests.testbed.testbed_client import body, ids, one

CAPTURES = Path(__file__).parent / "captures"
NOT_SIMULATED = re.compile(r"vllm:estimated_\w+")  # model FLOPs utilisation


def shape(text: str) -> tuple[dict[str, str], set[tuple[str, tuple[tuple[str, str], ...]]]]:
    """TYPE of each family, and each sample's name with its labels, without the values that tell servers apart."""
    types = dict(re.findall(r"^# TYPE (vllm:\S+) (\w+)$", text, re.M))
    samples = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("vllm:") and not NOT_SIMULATED.match(sample.name):
                own = {
                    k: "" if k == "model_name" or "cache_config" in sample.name else v for k, v in sample.labels.items()
                }
                samples.add((sample.name, tuple(sorted(own.items()))))
    return {k: v for k, v in types.items() if not NOT_SIMULATED.match(k)}, samples


@pytest.mark.parametrize("mode", ["pull", "colocated"])
def test_the_pages_have_the_shape_of_real_ones(start: Start, mode: str) -> None:
    deployment = start(mode=mode, max_model_len=8192)
    assert len(one(deployment.entry_url, body(ids(50, 1), 3)).times) == 3
    pages = {"prefill": deployment.prefill_urls, "decode": deployment.decode_urls, "colocated": deployment.server_urls}
    for role, urls in pages.items():
        for url in urls:
            types, samples = shape(page(url))
            real_types, real_samples = shape((CAPTURES / f"vllm-0.32-{role}.metrics.txt").read_text())
            assert types == real_types
            assert samples == real_samples


def test_large_numbers_are_written_as_prometheus_clients_do() -> None:
    from pdbench.testbed.metrics_page import _number

    assert [_number(x) for x in (0, 2.0, 0.001, 2097152, 1.5e9)] == ["0.0", "2.0", "0.001", "2.097152e+06", "1.5e+09"]
    assert float(_number(123456789.123)) == 123456789.123
