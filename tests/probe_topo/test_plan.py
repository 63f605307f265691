"""Plans: which GPUs hand over to which, what makes a plan impossible, and a better use of the same GPUs."""

from __future__ import annotations

import itertools

import pytest

from pdbench.errors import UsageError
from pdbench.probe.topo.plan import rank_pairs, roles_of
from tests.probe_topo.conftest import Look
from tests.probe_topo.tables import a100_pcie, fails, h200, l40s, table

LOST_6 = fails(["nvmlDeviceGetHandleByIndex_v2"], 15, 6)


@pytest.mark.parametrize(
    ("values", "prefill", "decode"),
    [
        (["prefill=0-3", "decode=4-7"], ((0, 1, 2, 3),), ((4, 5, 6, 7),)),
        (["prefill=0-1,decode=2,3"], ((0, 1),), ((2, 3),)),
        (["prefill=0,2-3", "decode=1"], ((0, 2, 3),), ((1,),)),
        (["prefill=0", "prefill=1", "decode=2-3"], ((0,), (1,)), ((2, 3),)),
        ([" prefill = 0 ", "decode=5 , 4"], ((0,),), ((5, 4),)),
        (["decode=0"], (), ((0,),)),
    ],
)
def test_roles_as_people_write_them(values: list[str], prefill: object, decode: object) -> None:
    assert roles_of(values) == {"prefill": prefill, "decode": decode}


@pytest.mark.parametrize(
    "value",
    ["", "prefill", "prefill=", "0-3", "proxy=0", "prefill=3-1", "prefill=a", "prefill=0-", "prefill=-1", "x=1=2",
     "prefill=0-99999", "prefill=5000", "prefill=0,,1", ","],
)  # fmt: skip
def test_roles_that_say_nothing(value: str) -> None:
    with pytest.raises(UsageError):
        roles_of([value])


@pytest.mark.parametrize(
    ("prefill", "decode", "pairs"),
    [
        ([0, 1], [2, 3], [(0, 2), (1, 3)]),
        ([0], [1, 2, 3, 4], [(0, 1), (0, 2), (0, 3), (0, 4)]),  # each decode rank reads its heads from one
        ([0, 1, 2, 3], [4, 5], [(0, 4), (1, 4), (2, 5), (3, 5)]),  # each decode rank reads from two
        ([0, 1], [2, 3, 4], list(itertools.product([0, 1], [2, 3, 4]))),  # neither divides the other: any to any
    ],
)
def test_ranks_that_hand_over_to_each_other(
    prefill: list[int], decode: list[int], pairs: list[tuple[int, int]]
) -> None:
    assert rank_pairs(prefill, decode) == pairs


def test_a_plan_on_nvswitch(look: Look) -> None:
    plan = look(table(h200()), roles=["prefill=0-3", "decode=4-7"])["plan"]
    assert plan["works"] and plan["problems"] == [] and plan["better"] is None
    assert "over NVSwitch on all 4 rank pairs, at most 450 GB/s" in plan["verdict"]
    assert plan["rank_pairs"] == [{"prefill": i, "decode": i + 4} for i in range(4)]


def test_a_plan_across_sockets_is_offered_its_bridges(look: Look) -> None:
    plan = look(table(a100_pcie()), roles=["prefill=0-3", "decode=4-7"])["plan"]
    assert plan["works"] and "31.5 GB/s" in plan["verdict"]
    better = plan["better"]
    assert (better["prefill"], better["decode"], better["across_gb_s"]) == ([0, 2, 4, 6], [1, 3, 5, 7], 300.0)
    again = look(table(a100_pcie()), roles=["prefill=0,2,4,6", "decode=1,3,5,7"])["plan"]
    assert again["better"] is None and "300 GB/s" in again["verdict"]


def test_a_plan_whose_kv_bounces_works_and_says_so(look: Look) -> None:
    plan = look(table(l40s()), roles=["prefill=0", "decode=1"])["plan"]
    assert plan["works"] and "bounce through host memory" in plan["verdict"]


def test_a_plan_that_cannot_be_judged(look: Look) -> None:
    plan = look(table(l40s("U")), roles=["prefill=0", "decode=1"])["plan"]
    assert plan["works"] and "cannot be judged" in plan["verdict"]


@pytest.mark.parametrize(
    ("machine", "roles", "why"),
    [
        (h200(), ["prefill=0-3", "decode=4-8"], "GPU 8 does not exist"),
        (h200(), ["prefill=0-3", "decode=3-7"], "GPU 3 in two places"),
        (h200(), ["prefill=0,0", "decode=1"], "GPU 0 in two places"),
        (
            [*h200(), *fails(["nvmlDeviceGetHandleByIndex_v2"], 15, 6)],
            ["prefill=0-3", "decode=4-7"],
            "GPU 6 cannot be used",
        ),
        (h200(fabric=2), ["prefill=0", "decode=1"], "fabric is not ready"),
        (["init 9"], ["prefill=0", "decode=1"], "kernel module is not loaded"),
        ([], ["prefill=0", "decode=1"], "this machine has no GPU"),
    ],
)
def test_plans_that_cannot_work(look: Look, machine: list[str], roles: list[str], why: str) -> None:
    plan = look(table(machine), roles=roles)["plan"]
    assert not plan["works"]
    said = "cannot be judged here" if machine == ["init 9"] else "cannot work"
    assert why in plan["verdict"] and plan["verdict"].startswith(f"This plan {said}")


def test_a_lost_gpu_outside_the_plan_does_not_matter(look: Look) -> None:
    assert look(table(h200(), LOST_6), roles=["prefill=0", "decode=1"])["plan"]["works"]


def test_one_role_alone_goes_out_by_nic(look: Look) -> None:
    plan = look(table(h200()), roles=["prefill=0-7"])["plan"]
    assert plan["works"] and "leaves this host" in plan["verdict"]


def test_aligned_ranks_are_told_from_any_to_any(look: Look) -> None:
    """Rank pairs go directly, other pairs across the roles do not."""
    lines = ["p2p 0 3 NS NS NS NS NS", "p2p 1 2 NS NS NS NS NS"]
    plan = look(table(h200(4), lines), roles=["prefill=0-1", "decode=2-3"])["plan"]
    assert "all 2 rank pairs" in plan["verdict"] and "keep ranks aligned" in plan["verdict"]
