"""What a person sees: terminals of 80 and 160 columns, and the page, also from a driver that lies in wait."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.probe_topo.conftest import Look
from tests.probe_topo.tables import a100_pcie, fails, h200, l40s, table

HOSTILE = r"<script>alert(1)</script>'\"&\x1b]0;owned\x07\x1b[31m"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
SIXTEEN = [f"gpu {i} name=A numa={i // 8} gen=3 gmax=3 width=16 wmax=16" for i in range(16)]
MACHINES = {
    "h200": h200(),
    "l40s": l40s(),
    "a100": a100_pcie(),
    "lost": [*h200(), *fails(["nvmlDeviceGetHandleByIndex_v2"], 15, 5)],
    "mig": [*h200(), "gpu 3 mig=1 migs=7"],
    "sixteen": [*SIXTEEN, "p2p * * OK OK OK OK OK", "p2p 3 * NS NS NS NS NS"],
    "none": ["init 12"],
    "unknown": l40s("U"),
}


def hostile(machine: list[str]) -> bytes:
    """The same machine with GPUs of another name."""
    name = HOSTILE.encode().decode("unicode_escape").replace(" ", "_")
    return re.sub(r"name=\S+", lambda _: f"name={name}", table(machine)).encode()


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("machine", MACHINES)
def test_no_line_is_longer_than_the_terminal(look: Look, hgx_host: Path, machine: str, width: int) -> None:
    text = look(table(MACHINES[machine]), root=hgx_host, views=True, width=width)["text"]
    plain = ANSI.sub("", text)
    assert max(len(line) for line in plain.splitlines()) <= width
    assert not any(line.endswith(" ") for line in plain.splitlines())


def test_the_matrix_reads_as_that_of_nvidia_smi(look: Look) -> None:
    lines = ANSI.sub("", look(table(l40s()), views=True)["text"]).splitlines()
    assert "GPU0  X     SYS!  0     -" in lines
    assert "SYS between sockets   ! bounces through host memory" in lines
    assert "P2P   read NS, write NS, nvlink NS, atomics NS, prop NS on every pair" in lines


def test_colour_follows_the_verdict(look: Look) -> None:
    bad, good = (look(table(machine), views=True)["text"] for machine in (l40s(), h200()))
    assert "\x1b[1;31mSYS!" in bad
    assert "\x1b[32mNV18" in good and "\x1b[1;31m" not in good


def test_sixteen_gpus_are_cut_into_blocks(look: Look) -> None:
    plain = ANSI.sub("", look(table(MACHINES["sixteen"]), views=True)["text"])
    heads = [line.split() for line in plain.splitlines() if line.startswith(" ") and "GPU" in line]
    assert [f"GPU{i}" for i in range(8)] in heads and "GPU15" in heads[1]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_hostile_name_reaches_no_terminal_and_no_page(look: Look, machine: str) -> None:
    seen = look(hostile(MACHINES[machine]), views=True, roles=["prefill=0", "decode=1"])
    assert "\x1b]" not in seen["text"] and "\x07" not in seen["text"] and "\x1b[31mm" not in seen["text"]
    assert "<script" not in seen["page"] and "\x1b" not in seen["page"]
    Page(seen["page"])


class Page(HTMLParser):
    """The elements of a page, with a check that they are closed in order, and what it would fetch."""

    VOID = ("meta", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        assert not {"src", "href", "onclick", "onload", "onmouseover"} & dict(attrs).keys()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def of(self, tag: str, *classes: str) -> list[dict[str, Any]]:
        found = [attributes for name, attributes in self.elements if name == tag]
        return [one for one in found if set(classes) <= set((one.get("class") or "").split())]


def drawn(look: Look, machine: str, **request: Any) -> Page:
    return Page(look(table(MACHINES[machine]), views=True, **request)["page"])


def test_the_drawing_of_a_switched_machine(look: Look, hgx_host: Path) -> None:
    page = drawn(look, "h200", root=hgx_host)
    assert len(page.of("g", "gpu")) == 8 and len(page.of("g", "nic")) == 9
    assert len(page.of("rect", "nvswitch")) == 1 and len(page.of("rect", "switch")) == 8
    assert len(page.of("rect", "socket")) == 2
    assert not page.of("path", "host") and not page.of("g", "bounces")
    assert "18 links, 450 GB/s" in page.words and "mlx5_7:1" in page.words


def test_the_drawing_of_bad_pairs(look: Look) -> None:
    page = drawn(look, "l40s")
    assert len(page.of("path", "host")) == 1 and len(page.of("g", "bounces")) == 2
    assert "NS: through host memory" in page.words
    assert len(drawn(look, "mig").of("path", "host")) == 7
    assert len(drawn(look, "lost").of("g", "lost")) == 1


def test_the_drawing_of_bridges(look: Look) -> None:
    page = drawn(look, "a100", roles=["prefill=0-3", "decode=4-7"])
    assert len(page.of("path", "nvlink")) == 4 and not page.of("rect", "nvswitch")
    assert "GPU 0 prefill" in page.words and "GPU 7 decode" in page.words


def test_everything_drawn_lies_inside_the_drawing(look: Look, hgx_host: Path) -> None:
    for machine in MACHINES:
        page = drawn(look, machine, root=hgx_host)
        for box in page.of("svg", "topology"):
            width, height = (float(side) for side in str(box["viewbox"]).split()[2:])
            for shape in page.of("rect"):
                assert 0 <= float(shape["x"]) <= float(shape["x"]) + float(shape["width"]) <= width
                assert 0 <= float(shape["y"]) <= float(shape["y"]) + float(shape["height"]) <= height
