"""What is sent follows from the flags, the file and the defaults, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from pdbench.errors import UsageError
from pdbench.quantities import nbytes, seconds
from pdbench.sweep.options import merged, plan_from
from pdbench.sweep.plan import Plan, grid, plan_of


def plan(file: dict[str, Any] | None = None, **flags: Any) -> Plan:
    return plan_from(merged(flags, file or {}, "pdbench.toml"), ["default"])


def test_the_grid_is_every_rate_at_every_length_and_a_cell_lasts_a_minute() -> None:
    made = plan(rates=["1,2", "4"], prompt_lens=["1024,16384"], output_len=["128"])
    assert [(c.prompt_len, c.request_rate) for c in made.cells] == [
        (1024, 1.0), (1024, 2.0), (1024, 4.0), (16384, 1.0), (16384, 2.0), (16384, 4.0),
    ]  # fmt: skip
    assert (made.duration_s, made.num_prompts) == (60.0, None)


def test_num_prompts_alone_lifts_the_minute_and_both_limits_hold_together() -> None:
    assert plan(num_prompts="400").duration_s is None
    both = plan(num_prompts="400", duration="30s")
    assert (both.duration_s, both.num_prompts) == (30.0, 400)


def test_flags_win_over_the_file_and_the_file_over_the_defaults() -> None:
    file = {"rates": [3], "prompt_lens": [512], "num_prompts": 10, "goodput": ["ttft:2000"]}
    made = plan(file, rates=["5"])
    assert [(c.request_rate, c.prompt_len) for c in made.cells] == [(5.0, 512)]
    assert (made.num_prompts, dict(made.goodput_ms)) == (10, {"ttft": 2000.0})
    assert plan(file, duration="5s").num_prompts is None
    with pytest.raises(UsageError, match=r"sweep\.rate"):
        plan({"rate": [3]})


def test_concurrency_makes_a_closed_loop_and_excludes_rates() -> None:
    closed = plan(max_concurrency=["8"])
    assert [(c.loop, c.request_rate, c.max_concurrency) for c in closed.cells[:1]] == [("closed", None, 8)]
    assert plan({"rates": [1]}, max_concurrency=["8"]).cells[0].loop == "closed"
    assert plan({"max_concurrency": [8]}).cells[0].loop == "closed"
    assert plan({"max_concurrency": [8]}, rates=["2"]).cells[0].loop == "open"
    with pytest.raises(UsageError, match="two loads"):
        plan(max_concurrency=["8"], rates=["2"])


def test_burstiness_names_the_arrivals() -> None:
    assert plan().arrivals == "poisson"
    assert (plan(burstiness=0.25).arrivals, plan(burstiness=0.25).burstiness) == ("gamma", 0.25)
    assert plan(burstiness=float("inf")).arrivals == "constant"
    with pytest.raises(UsageError, match="burstiness"):
        plan(burstiness=0.25, arrivals="poisson")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"rates": ["0"]}, "--rates"),
        ({"rates": ["nan"]}, "--rates"),
        ({"rates": ["1,inf"]}, "--max-concurrency"),
        ({"prompt_lens": ["1k"]}, "--prompt-lens"),
        ({"num_prompts": "0"}, "--num-prompts"),
        ({"duration": "-1s"}, "--duration"),
        ({"goodput": ["ttft"]}, "--goodput"),
        ({"goodput": ["latency:3"]}, "--goodput"),
        ({"vocab_size": 256}, "--vocab-size"),
        ({"endpoint": "responses"}, "--endpoint"),
        ({"seed": "-1"}, "--seed"),
        ({"ramp": "1"}, "--ramp"),
        ({"ramp": "0:0"}, "--ramp"),
        ({"ramp": "-1:2"}, "--ramp"),
        ({"ramp": "0:8", "ramp_up_strategy": "exponential"}, "exponential"),
        ({"ramp": "1:8", "ramp_up_strategy": "log"}, "--ramp-up-strategy"),
        ({"ramp_up_strategy": "linear"}, "--ramp"),
        ({"ramp": "1:8", "rates": ["1"]}, "--rates and --ramp"),
        ({"steps": ["1,x"]}, "--steps"),
        ({"classes": ["chat"]}, "--class"),
        ({"classes": ["chat:128@0"]}, "--class"),
        ({"classes": ["chat:128@1", "chat:64@1"]}, "twice"),
        ({"classes": ["chat:normal:3:1@1"]}, "normal"),
        ({"classes": ["chat:128@1"], "output_len": ["5"]}, "--output-len"),
        ({"classes": ["chat:9/128@1"], "prompt_lens": ["5"]}, "--prompt-lens"),
        ({"classes": ["chat:128@1"], "max_concurrency": ["5"]}, "--class"),
        ({"output_len": ["lognormal:0:1"]}, "--output-len"),
        ({"output_len": ["lognormal:8"]}, "--output-len"),
        ({"output_len": ["trace:nowhere.csv"]}, "nowhere.csv"),
        ({"trace": "nowhere.csv"}, "nowhere.csv"),
        ({"trace": "nowhere.csv", "prompt_lens": ["5"]}, "--prompt-lens"),
        ({"trace": "nowhere.csv", "burstiness": 0.5}, "--burstiness"),
        ({"speed": ["2"]}, "--trace"),
        ({"prefix_len": 1024, "prompt_lens": ["1024"]}, "--prefix-len"),
        ({"prefix_len": 64, "classes": ["a:64/1@1"]}, "--prefix-len"),
        ({"num_prefixes": 2}, "--prefix-len"),
    ],
)
def test_a_wrong_value_names_its_flag(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(**flags)
    assert named in str(caught.value) + caught.value.hint


def test_goodput_takes_repeats_commas_and_words() -> None:
    wanted = {"ttft": 2000.0, "tpot": 30.0}
    for values in (["ttft:2000", "tpot:30"], ["ttft:2000,tpot:30"], ["ttft:2000 tpot:30"], ["ttft:2s", "tpot:30ms"]):
        assert plan(goodput=values).goodput_ms == wanted


def test_every_load_takes_the_place_of_what_the_file_said() -> None:
    loads: list[dict[str, Any]] = [
        {"rates": ["3"]}, {"max_concurrency": ["3"]}, {"ramp": "1:5"}, {"steps": ["2,4"]}, {"classes": ["a:7@3"]},
    ]  # fmt: skip
    alone = [plan(prompt_lens=["512"], **load).cells for load in loads]
    for file in loads:
        for load, cells in zip(loads, alone, strict=True):
            if "classes" in file and "max_concurrency" not in load and "classes" not in load:
                continue  # there they are shares of the whole
            assert plan(dict(file), prompt_lens=["512"], **load).cells == cells
    shares = plan({"classes": ["a:7@3", "b:9@1"]}, rates=["8"])
    assert [each.name for each in shares.classes] == ["a", "b"] and shares.cells[0].request_rate == 8


def test_classes_with_prompts_of_their_own_are_one_cell_and_others_go_over_the_grid() -> None:
    own = plan(classes=["chat:512/128@7,agent:4096/2000@1"])
    assert [(c.request_rate, c.prompt_len, c.output_len) for c in own.cells] == [(8.0, 960, 362)]
    grid_of = plan(classes=["chat:128@7", "agent:2000@1"], prompt_lens=["512,1024"])
    assert [c.prompt_len for c in grid_of.cells] == [512, 1024]


def test_what_drives_a_cell_has_a_name() -> None:
    def named(**flags: Any) -> str | None:
        made = plan(**flags)
        return made.traffic(made.cells[0])

    assert named() is None
    assert named(ramp="1:8") == "1 to 8 req/s"
    assert named(steps=["2,4,2"], classes=["chat:128@7", "agent:9@1"]) == "2 to 4 to 2 req/s of chat + agent"
    assert named(classes=["chat:128@7", "agent:9@1"]) == "8 req/s of chat + agent"


def test_seeds_differ_between_cells_and_repeats_and_are_shared_by_targets() -> None:
    cells = grid(["a", "b"], [1.0, 2.0, 4.0], [], [1024, 2048], [64, 128])
    made = Plan(cells=cells, repeats=3, seed=7)
    seeds: dict[tuple[object, ...], set[int]] = {}
    for cell, repeat in made.turns():
        place = (cell.request_rate, cell.prompt_len, cell.output_len, repeat)
        seeds.setdefault(place, set()).add(made.cell_seed(cell, repeat))
    assert all(len(both) == 1 for both in seeds.values())
    assert len({seed for both in seeds.values() for seed in both}) == len(seeds) == 36
    assert Plan(cells=cells, seed=8).cell_seed(cells[0], 0) != made.cell_seed(cells[0], 0)


def test_prompts_are_fresh_in_every_run_unless_a_seed_is_asked_for() -> None:
    def prompts(made: Plan, attempt: int = 0) -> int:
        return made.prompt_seed_of(made.cells[0], 0, attempt)

    assert prompts(plan()) != prompts(plan())
    assert plan().cell_seed(plan().cells[0], 0) == plan().cell_seed(plan().cells[0], 0), "arrivals are the same"
    assert prompts(plan(seed="7")) == prompts(plan(seed="7"))
    assert prompts(plan(seed="7")) != prompts(plan(seed="7"), attempt=1), "a cell measured again has other prompts"


def test_targets_take_turns_abba() -> None:
    made = Plan(cells=grid(["a", "b"], [1.0], [], [16], [4]), repeats=4)
    assert "".join(cell.target for cell, _ in made.turns()) == "abbaabba"


def test_a_plan_survives_its_document() -> None:
    made = plan(rates=["1"], goodput=["ttft:5"])
    assert plan_of(made.document()) == made


def test_quantities() -> None:
    assert [seconds(t, "--x") for t in ("100ms", "2s", "1.5m", "3")] == [0.1, 2.0, 90.0, 3.0]
    assert [nbytes(t, "--x") for t in ("64MiB", "1GB", "7")] == [64 * 2**20, 10**9, 7]
    for bad in ("", "fast", "1 parsec", "-2s"):
        with pytest.raises(UsageError, match="--x"):
            seconds(bad, "--x")
