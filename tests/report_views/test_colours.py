"""The colours of the report, seen by people who lack one kind of cone, in light and in dark."""

from __future__ import annotations

import re
from importlib import resources
from itertools import pairwise

import numpy as np
import pytest

# Machado, Oliveira, Fernandes 2009, severity 1.0: linear RGB as such a person sees it.
SEEN_BY = {
    "all cones": np.eye(3),
    "no long ones": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no middle ones": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
JUST_NOTICEABLE = 2.3  # CIE76
WHITE = np.array([0.95047, 1.0, 1.08883])
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def colours(scheme: int) -> dict[str, str]:
    css = resources.files("pdbench.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", css)
    return dict(re.findall(r"--([a-z0-9-]+):\s*(#[0-9a-f]{6})", blocks[scheme]))


def lab(colour: str, seen: np.ndarray) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    share = (TO_XYZ @ np.clip(seen @ linear, 0, 1)) / WHITE
    f = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def apart(a: str, b: str, who: str) -> float:
    return float(np.linalg.norm(lab(a, SEEN_BY[who]) - lab(b, SEEN_BY[who])))


def test_the_measure_knows_its_known_points():
    assert lab("#ffffff", SEEN_BY["all cones"]) == pytest.approx([100, 0, 0], abs=0.02)
    assert apart("#00ff00", "#ff0000", "all cones") > 3 * apart("#4a7c00", "#a05a00", "no middle ones")


@pytest.mark.parametrize("who", SEEN_BY)
@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_what_stands_side_by_side_is_told_apart(scheme, who):
    """Parts touch in the order of the split; waiting and running, and good and answered, cross each other."""
    of = colours(scheme)
    parts = [of[f"part-{i}"] for i in range(9)]
    beside = [
        *pairwise(parts),
        (of["waiting"], of["running"]),
        (of["line-0"], of["line-1"]),
        (of["line-0"], of["line-2"]),
    ]
    assert min(apart(a, b, who) for a, b in beside) > 5 * JUST_NOTICEABLE


def contrast(a: str, b: str) -> float:
    """WCAG 2: of relative luminances."""

    def luminance(colour: str) -> float:
        srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        return float(TO_XYZ[1] @ linear)

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "muted", "void", "warn", "ok", "accent"])
def test_text_stands_out_from_what_it_is_written_on(scheme, ink):
    of = colours(scheme)
    grounds = ["paper", "panel"] + ([f"{ink}-soft"] if f"{ink}-soft" in of else [])
    assert min(contrast(of[ink], of[ground]) for ground in grounds) >= 4.5
