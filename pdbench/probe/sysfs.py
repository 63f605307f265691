"""One file of sysfs or procfs as a value. What is absent or refused is None: containers show only part of the tree."""

from __future__ import annotations

import re
from pathlib import Path


def text(path: Path) -> str | None:
    """What is in the file, stripped; None when it is absent, unreadable or empty."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip() or None
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None


def whole(path: Path) -> int | None:
    """A whole number, decimal or 0x-hexadecimal."""
    try:
        return int(text(path) or "", 0)
    except ValueError:
        return None


def entries(folder: Path) -> list[Path]:
    """What is in the folder, in natural order (mlx5_2 before mlx5_10); nothing when there is no such folder."""
    try:
        return sorted(folder.iterdir(), key=lambda path: natural(path.name))
    except OSError:
        return []


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that counts: digits compare as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name) if part]


def target_name(link: Path) -> str | None:
    """The last part of what a link points to: the driver of a device, the PCI address of a NIC."""
    try:
        return link.resolve(strict=True).name
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
