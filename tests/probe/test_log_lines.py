"""KV transfers from log lines: real ones, and every form that is known."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdbench.probe.log_lines import MIB, LogTotals
from tests.probe.replay_server import capture

OLD = (
    "(APIServer pid=388692) INFO 05-15 02:58:00 [metrics.py:103] KV Transfer metrics: Num successful transfers=2, "
    "Avg xfer time (ms)=63.33, P90 xfer time (ms)=66.245, Avg post time (ms)=9.647, P90 post time (ms)=11.595, "
    "Avg MB per transfer=15.75, Throughput (MB/s)=248.699, Avg number of descriptors=56.0"
)
NEW = OLD + ", Num failed transfers=1, Num KV expired reqs=3, Num notifs after expiry=4"
INNER = OLD.partition("metrics: ")[2]


def totals(*lines: str) -> LogTotals:
    found = LogTotals()
    for line in lines:
        found.take(line)
    return found


@pytest.mark.parametrize(
    "line",
    [
        OLD,
        NEW,
        json.dumps({"level": "INFO", "message": OLD}),
        json.dumps({"msg": NEW}),
        f"INFO KV Transfer metrics: NixlPullConnector={{{INNER}}}",
        "INFO KV Transfer metrics: NixlPullConnector={'Num successful transfers': 2, 'Avg xfer time (ms)': 63.33, "
        "'Avg post time (ms)': 9.647, 'Avg MB per transfer': 15.75, 'Avg number of descriptors': 56.0}",
        "INFO KV Transfer metrics: NixlConnector={'Num successful transfers': 2, 'Avg xfer time (ms)': "
        "np.float64(63.33), 'Avg post time (ms)': np.float64(9.647), 'Avg MB per transfer': np.float64(15.75), "
        "'Avg number of descriptors': np.float64(56.0)}, OffloadingConnector={'CPU_to_GPU_total_bytes': 7}",
        "KV Transfer metrics: MultiConnector={'OffloadingConnector': {'CPU_to_GPU_total_bytes': 7}, 'NixlConnector': "
        "{'Num successful transfers': 2, 'Avg xfer time (ms)': 63.33, 'Avg post time (ms)': 9.647, "
        "'Avg MB per transfer': 15.75, 'Avg number of descriptors': 56.0}}",
        f"[pod/decode-0/vllm] {json.dumps({'ts': 1, 'message': NEW})}",
        json.dumps({"level": "INFO", "fields": {"message": NEW, "file": "metrics.py"}}),
        json.dumps({"log": json.dumps({"message": OLD}) + "\n", "stream": "stderr"}),
        NEW.replace("66.245", "1,066.245").replace("248.699", "2,248.699"),
        f"\x1b[32mINFO\x1b[0m {NEW}\x1b[0m\r",
    ],
)
def test_every_form_says_the_same(line: str) -> None:
    found = totals(line)
    assert found.transfers == 2
    assert found.sums == pytest.approx(
        {"nixl_xfer_s": 0.12666, "nixl_post_s": 0.019294, "nixl_nbytes": 31.5 * MIB, "nixl_descriptors": 112.0}
    )


def test_failures_are_absent_where_the_line_does_not_tell_them() -> None:
    assert totals(OLD).counts == {}
    assert totals(NEW, NEW).counts == {
        "nixl_failed_transfers": 2.0,
        "nixl_kv_expired": 6.0,
        "nixl_used_after_expiry": 8.0,
    }


@pytest.mark.parametrize("form", ["[pod/d/vllm] {}", "\x1b[32m{}\x1b[0m"])
def test_the_last_field_is_read_whatever_follows_it(form: str) -> None:
    text = json.dumps({"message": NEW}) if "pod" in form else NEW
    assert totals(form.replace("{}", text)).counts["nixl_used_after_expiry"] == 4.0


def test_mooncake_has_no_post_time() -> None:
    found = totals(
        "KV Transfer metrics: Num successful transfers=4, Avg xfer time (ms)=10.5, P90 xfer time (ms)=11.0, "
        "Avg MB per transfer=64.0, Throughput (MB/s)=6095.2, Num failed recvs=1"
    )
    assert "nixl_post_s" not in found.sums
    assert found.sums["nixl_xfer_s"] == pytest.approx(0.042) and found.counts == {"nixl_failed_transfers": 1.0}


def test_children_of_a_multi_connector_are_added() -> None:
    two = f"KV Transfer metrics: NixlPullConnector={{{INNER}}}, NixlPushConnector={{{INNER}}}"
    assert totals(two).transfers == 4


def test_a_real_log() -> None:
    """The means of the lines, weighted by their transfers, computed here by another way."""
    text = capture("vllm-decode.loglines.txt").decode()
    found = totals(*text.splitlines())
    pairs = re.findall(r"Num successful transfers=(\d+), Avg xfer time \(ms\)=([\d.]+)", text)
    assert len(pairs) > 3 and found.transfers == sum(int(n) for n, _ in pairs)
    assert found.sums["nixl_xfer_s"] == pytest.approx(sum(int(n) * float(ms) for n, ms in pairs) / 1000)
    rows = {(canonical, kind): value for _, canonical, kind, _, _, value in found.rows()}
    assert rows["nixl_xfer_s", "count"] == found.transfers


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ERROR NIXL compatibility hash mismatch: local a remote b", "handshake-refused"),
        ("WARNING Releasing expired KV blocks for request x which were retrieved by 0 remote worker(s)", "kv-expired"),
        ("WARNING Potentially invalid KV blocks for unrecognized request y", "used-after-expiry"),
        ("ERROR NIXL transfer failure: TIMEOUT | Context: {}", "transfer-failed"),
        ("ERROR Failing 2 request(s) due to KV load failure (failure_policy=fail", "load-failed"),
    ],
)
def test_messages_that_mean_trouble(line: str, code: str) -> None:
    assert totals(line).messages == {code: 1} and totals(json.dumps({"message": line})).messages == {code: 1}


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    totals(text, f"KV Transfer metrics: {text}", '{"message": "KV Transfer metrics: ' + text)


@pytest.mark.parametrize(
    "form",
    [
        "Num KV expired reqs={}, Num notifs after expiry={}",
        "X={{'Num KV expired reqs': '{}', 'Num notifs after expiry': {}}}",
    ],
)
def test_thousands_with_commas(form: str) -> None:
    found = totals("KV Transfer metrics: " + form.format("1,234", "12,345,678"))
    assert found.counts == {"nixl_kv_expired": 1234.0, "nixl_used_after_expiry": 12345678.0}
