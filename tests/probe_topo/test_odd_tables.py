"""Tables that no one has seen before: holes, unknown words, values out of range, whatever a driver may come to say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.probe_topo.conftest import Look
from tests.probe_topo.tables import OF_ALL, OF_ONE, OF_TWO, h200, l40s, table

Document = dict[str, Any]
PATHS = ("nvswitch", "nvlink", "pcie", "unknown", "host", "none")


def sound(seen: Document) -> None:
    """What holds for every machine."""
    count = len(seen["gpus"])
    assert [gpu["index"] for gpu in seen["gpus"]] == list(range(count))
    for matrix in [*seen["p2p"].values(), seen["ancestor"], seen["topo"]]:
        assert len(matrix) == count and all(len(row) == count for row in matrix)
        assert all(matrix[i][i] == "X" for i in range(count))
    assert len(seen["pairs"]) == count * (count - 1) // 2
    assert [each["rank"] for each in seen["pairs"]] == list(range(1, len(seen["pairs"]) + 1))
    tiers = []
    for each in seen["pairs"]:
        assert each["a"] < each["b"] and each["path"] in PATHS and each["verdict"]
        assert each["gb_s"] is None or each["gb_s"] > 0
        direct = each["path"] in PATHS[:3]
        tiers.append((0, -(each["gb_s"] or 0)) if direct else (PATHS.index(each["path"]), -(each["gb_s"] or 0)))
    assert tiers == sorted(tiers), "best first"
    assert seen["answer"] and all(found["severity"] in ("fail", "warn", "note") for found in seen["findings"])
    json.dumps(seen, allow_nan=False)


def test_a_machine_without_gpus(look: Look) -> None:
    seen = look("driver 550.1\n")
    sound(seen)
    assert "shows none" in seen["answer"] and seen["nvml"]["code"] == "ok"


def test_one_gpu_has_no_pair(look: Look) -> None:
    seen = look(table(h200(1)), views=True)
    sound(seen["document"])
    assert "no pair of GPUs to judge" in seen["text"]


def test_a_hole_among_the_indices(look: Look) -> None:
    seen = look(table([line for line in h200(3) if not line.startswith("gpu 1")]))
    sound(seen)
    assert seen["gpus"][1]["trouble"] == "invalid argument"
    assert [each["path"] for each in seen["pairs"]] == ["nvswitch", "none", "none"]


def test_sixteen_gpus(look: Look) -> None:
    cards = [f"gpu {i} name=A numa={i // 8} gen=3 gmax=3 width=16 wmax=16 links=6 linkver=2" for i in range(16)]
    seen = look(table(cards, "p2p * * OK OK OK OK OK", "link * * 1 switch 00000000:01:00.0"), views=True)
    sound(seen["document"])
    assert seen["document"]["pairs"][0]["gb_s"] == 150.0
    assert "GPU15" in seen["text"]


def test_words_and_numbers_that_are_not_known_yet(look: Look) -> None:
    seen = look(
        table(
            l40s(),
            "future 1 2 3",
            "gpu 0 tomorrow=7 linkver=42 linkmbps=400000 links=36 gen=9 gmax=9 numa=700",
            "gpu 1 links=99 linkver=42 linkmbps=400000 fabric=77 gen=9 gmax=9",
            "topo 0 1 33",
            "p2p 0 1 17 OK OK OK OK",
        ),
        views=True,
    )
    told = seen["document"]
    sound(told)
    assert told["gpus"][0]["nvlink"]["version"] == "?42"
    assert told["ancestor"][0][1] == "?33" and told["p2p"]["read"][0][1] == "?17"
    assert told["gpus"][0]["pcie"]["gb_s"] is None and told["gpus"][1]["fabric"] == "?77"


def test_links_told_from_one_end_only(look: Look) -> None:
    seen = look(table(h200(2), "link 0 * 1 gpu 00000000:3B:00.0"))
    assert (seen["pairs"][0]["nvlinks"], seen["pairs"][0]["gb_s"]) == (18, 450.0)


def test_ends_that_differ_count_as_the_smaller(look: Look) -> None:
    lines = ["link 0 * 1 gpu 00000000:3B:00.0", "link 1 * 1 gpu 00000000:19:00.0", "link 1 0 0 gpu"]
    assert look(table(h200(2), lines))["pairs"][0]["nvlinks"] == 17


def test_one_direction_that_is_refused_does_not_hide_the_other(look: Look) -> None:
    seen = look(table(l40s("OK"), "fail nvmlDeviceGetP2PStatus 3 1"))
    assert seen["p2p"]["read"] == [["X", "OK"], [None, "X"]]
    assert (seen["pairs"][0]["read"], seen["pairs"][0]["path"]) == ("OK", "pcie")


def test_a_table_that_is_not_text(look: Look) -> None:
    seen = look(b"gpu 0 name=\xff\xfe\xff numa=0\ngpu 1 name=ok\n\x00\xff\n")
    sound(seen)
    assert seen["gpus"][0]["name"] is None and seen["gpus"][0]["not_reported"]["name"] == "not readable text"


NUMBER = st.integers(-3, 70)
KEYS = ("numa", "gpunuma", "gen", "gmax", "dmax", "width", "wmax", "ecc", "mig", "migs", "links", "linkver", "linkmbps",
        "fabric", "mem", "bar1", "cpus")  # fmt: skip
INDEX = st.sampled_from("*012345")
STATUS = st.sampled_from(["OK", "CNS", "GNS", "TNS", "DR", "NS", "U", "12"])
STATEMENT = st.one_of(
    st.builds(
        lambda gpu, pairs: f"gpu {gpu} " + " ".join(f"{key}={value}" for key, value in pairs),
        st.integers(0, 5),
        st.lists(st.tuples(st.sampled_from(KEYS), NUMBER), max_size=8),
    ),
    st.builds(
        lambda a, b, five: f"p2p {a} {b} {' '.join(five)}",
        INDEX,
        INDEX,
        st.lists(STATUS, min_size=5, max_size=5),
    ),
    st.builds("topo {} {} {}".format, INDEX, INDEX, st.sampled_from(["PIX", "SYS", "31"])),
    st.builds(
        "link {} {} {} {} 00000000:1{}:00.0".format,
        INDEX, INDEX, st.integers(0, 3), st.sampled_from(["gpu", "switch", "npu", "x"]), st.integers(0, 5),
    ),
    st.builds(
        "fail {} {} {}".format,
        st.sampled_from([*OF_ONE, *OF_TWO, *OF_ALL]),
        st.sampled_from([2, 3, 4, 13, 15, 16, 17, 999, 777]),
        st.sampled_from(["", "0", "1", "2"]),
    ),
    st.text(max_size=12).map(lambda text: text.replace("\x00", "")),
)  # fmt: skip


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STATEMENT, max_size=14), st.sampled_from([None, ["prefill=0", "decode=1"], ["prefill=0-2,decode=3-5"]]))
def test_any_table_gives_a_sound_answer(look: Look, lines: list[str], roles: list[str] | None) -> None:
    seen = look("\n".join(["gpu 0 links=2", "gpu 1", *lines]).encode("utf-8", "ignore"), views=True, roles=roles)
    sound(seen["document"])
    assert seen["text"].strip() and seen["page"].endswith("</html>\n")


@pytest.mark.parametrize(
    "lines", [[], ["init 0"], ["# nothing", "", "gpu", "gpu x", "gpu -1", "p2p 0", "topo", "link 0 0", "fail"]]
)
def test_statements_cut_short(look: Look, lines: list[str]) -> None:
    sound(look("\n".join(lines)))
