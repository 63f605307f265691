"""From flags to a search: what is asked, and what does not go with it."""

from __future__ import annotations

from typing import Any

import pytest

from pdbench.errors import UsageError
from pdbench.sweep.options import DEFAULTS, merged, plan_from
from pdbench.sweep.plan import Plan, plan_of


def planned(**flags: Any) -> Plan:
    return plan_from(merged({**dict.fromkeys(DEFAULTS), **flags}, {}, ""), ["a", "b"])


def test_a_search_begins_with_one_short_probe_for_each_target_and_shape() -> None:
    plan = planned(find_capacity=True, slo=["ttft:p99:500ms", "tpot:mean:30"], prompt_lens=["1024,2048"])
    assert [(cell.target, cell.prompt_len) for cell in plan.cells] == [
        (target, length) for length in (1024, 2048) for target in "ab"
    ]
    assert {cell.request_rate for cell in plan.cells} == {1.0} and {cell.requests for cell in plan.cells} == {40}
    assert plan.search == {
        "find": "capacity",
        "slos": [
            {"metric": "ttft", "statistic": "p99", "limit": 500.0},
            {"metric": "tpot", "statistic": "mean", "limit": 30.0},
        ],
        "max_duration_s": 3600.0,
    }
    grown = plan.with_probe(("b", 2048, 128, "", "proxy"), 3.2, 700)
    assert plan_of(grown.document()) == grown
    assert grown.of(grown.cells[-1]).num_prompts == 700 and grown.cells[-1].cell == 4


def test_a_limit_of_an_slo_is_in_ms_or_has_its_unit_as_in_goodput() -> None:
    for text in ("ttft:p99:500ms", "ttft:p99:500", "ttft:p99:0.5s"):
        search = planned(find_capacity=True, slo=[text]).search
        assert search["slos"] == [{"metric": "ttft", "statistic": "p99", "limit": 500.0}]


def test_attained_is_a_share_of_goodput() -> None:
    plan = planned(find_capacity=True, slo=["attained:95%"], goodput=["ttft:2000 tpot:30"])
    assert plan.search is not None
    assert plan.search["slos"] == [{"metric": "attained", "statistic": "", "limit": 0.95}]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"find_capacity": True}, "needs what must hold"),
        ({"find_capacity": True, "slo": ["ttft:500"]}, "METRIC:STATISTIC:LIMIT"),
        ({"find_capacity": True, "slo": ["ttft:p99:fast"]}, "a time such as"),
        ({"find_capacity": True, "slo": ["attained:95%"]}, "needs --goodput"),
        ({"find_capacity": True, "slo": ["ttft:p99:500"], "rates": ["1,2"]}, "the search chooses the rates"),
        ({"find_capacity": True, "slo": ["ttft:p99:500"], "max_concurrency": ["4"]}, "only an open loop"),
        ({"find_capacity": True, "slo": ["ttft:p99:500"], "duration": "60s"}, "--max-duration bounds"),
        ({"find_capacity": True, "slo": ["ttft:p99:500"], "repeats": 3}, "until it is sure"),
        ({"find_capacity": True, "slo": ["ttft:p99:500"], "turns": 3}, "sessions are a closed loop"),
        ({"find_capacity": True, "slo": ["ttft:mean:" + "9" * 400]}, "the limit is a number above 0"),
        ({"find_capacity": True, "slo": ["ttft:p00.0:500"]}, "a percentile is above p0"),
        ({"find_capacity": True, "slo": ["ttft:p99.99:500"]}, "at most p99.9"),
        ({"find_capacity": True, "slo": ["attained:9%", "attained:8%"], "goodput": ["ttft:9"]}, "given twice"),
        ({"find_capacity": True, "slo": ["itl:p99:30"], "output_len": ["1"]}, "one token has no gap"),
        ({"find_capacity": True, "slo": ["attained:9%"], "goodput": ["tpot:9"], "output_len": ["8,1"]}, "no gap"),
        ({"find_knee": True, "output_len": ["1"]}, "one token has no gap"),
        ({"find_capacity": True, "find_knee": True}, "two searches"),
        ({"find_knee": True, "slo": ["ttft:p99:500"]}, "--slo goes with --find-capacity"),
        ({"slo": ["ttft:p99:500"]}, "--slo goes with"),
        ({"max_duration": "5m", "rates": ["1"]}, "--max-duration goes with"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(**flags)
    assert said in str(refused.value)


def test_a_search_by_flag_takes_the_place_of_the_files_rates() -> None:
    options = merged({"find_knee": True}, {"rates": ["1", "2"], "duration": "30s"}, "pdbench.toml")
    assert plan_from(options, ["a"]).search is not None
    options = merged({"rates": ["4"]}, {"find_knee": True}, "pdbench.toml")
    assert plan_from(options, ["a"]).search is None


def test_a_time_that_cannot_be_kept_is_said_before_the_search() -> None:
    def notes(limit: str, lens: list[str]) -> tuple[str, ...]:
        flags = {"find_capacity": True, "slo": ["ttft:p99:500ms"], "prompt_lens": lens, "max_duration": limit}
        return plan_from(merged({**dict.fromkeys(DEFAULTS), **flags}, {}, ""), ["default"]).notes

    (said,) = notes("60s", ["1024,16384"])  # two first probes of 40 requests at 1 req/s
    assert "--max-duration 60 s is too short" in said and "2 searches, made in any case, alone take about 80 s" in said
    assert notes("60s", ["1024"]) == notes("2m", ["1024,16384"]) == ()
