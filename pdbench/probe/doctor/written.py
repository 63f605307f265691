"""Other forms in which people write down how a server starts: a pod's list of words, a systemd unit, an env file."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from pdbench.probe.doctor.shell import VARIABLE, Unread

_FIRST = re.compile(r"(?:\s*(?:#[^\n]*)?\n)*([^\n]*)")
_KEY = re.compile(r"\s*(?:- )?[A-Za-z_][\w./-]*:(?:\s|$)")
_OF_A_POD = re.compile(r"^\s*(command|args):", re.MULTILINE)
_ITEM = re.compile(r"""\s*("(?:\\.|[^"\\])*"|'(?:''|[^'])*'|[^\s,"'\[\]{}][^,\[\]{}\n]*)\s*(?:,|$)""", re.DOTALL)
_BLOCK_ITEM = re.compile(
    r"^[ ]*-[ ]+(?:(?![|>])([^\n]*)\n|([|>])[-+]?[ ]*\n((?:[ ]+(?!- )[^\n]*\n|\n)+))", re.MULTILINE
)
_SECTION = re.compile(r"^\s*\[(Unit|Service|Install)\]\s*$", re.MULTILINE)
_START = re.compile(r"^\s*ExecStart=[-@:+!]*(.*)$", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^\s*Environment=(.*)$", re.MULTILINE)


def listed(text: str) -> list[str] | None:
    """The words of a list in JSON or YAML, with or without the `command:` and `args:` of a pod before it; None for
    anything that is no list. Raises Unread for YAML that is more than that."""
    first = (_FIRST.match(text) or ["", ""])[1]
    if _KEY.match(first) is None:
        return _items(text)
    pieces = _OF_A_POD.split(text)
    lists = [] if pieces[0].strip() else [_items(piece) for piece in pieces[2::2]]
    if None in lists or not 0 < len(lists) < 3:
        raise Unread("is YAML, of which only `command` and `args` lists are read")
    return [word for piece in lists for word in piece or ()]


def _items(text: str) -> list[str] | None:
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]") and not _SECTION.match(bare):
        return _flow(bare[1:-1].strip().removesuffix(","))
    text += "\n"
    items = _BLOCK_ITEM.findall(text)
    if not items or re.sub(r"^\s*#.*$", "", _BLOCK_ITEM.sub("", text), flags=re.MULTILINE).strip():
        return None
    return [_scalar(line.strip()) if not style else _block(style, block) for line, style, block in items]


def _block(style: str, text: str) -> str:
    """A text over several lines: as it is after `|`, folded after `>`."""
    text = textwrap.dedent(text).strip("\n")
    return text if style == "|" else re.sub(r"(?<!\n)\n(?!\n)", " ", text)


def _flow(inside: str) -> list[str]:
    words, place = [], 0
    while place < len(inside):
        found = _ITEM.match(inside, place)
        if found is None:
            raise Unread("is a list with more in it than words")
        words.append(_scalar(found[1].strip()))
        place = found.end()
    return words


def _scalar(text: str) -> str:
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if not text.startswith('"'):
        if _KEY.match(text):
            raise Unread("is YAML with more in its list than words")
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise Unread(f"has a word in its list that is no string: {text[:40]}") from None


def systemd(text: str) -> tuple[str, str, list[str]] | None:
    """Of a unit the command that starts it, its variables as a shell takes them, and its files of variables."""
    joined = re.sub(r"\\\n\s*", " ", text)
    starts = _START.findall(joined)
    if not starts:
        return None
    if len(starts) > 1:
        raise Unread("is a unit with several ExecStart")
    files = re.findall(r"^\s*EnvironmentFile=-?(.*)$", joined, re.MULTILINE)
    return starts[0], " ".join(_ENVIRONMENT.findall(joined)), files


def env_file(path: str, folder: Path | None, shell: Mapping[str, str]) -> dict[str, str] | None:
    """NAME=VALUE a line; a name alone passes on what the shell has. None where the file is not there to be read."""
    place = (folder or Path()) / path
    try:
        if not place.is_file():
            return None
        return dict(_lines(place.read_text(), shell))
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def _lines(text: str, shell: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for line in map(str.strip, text.splitlines()):
        found = VARIABLE.match(line.removeprefix("export "))
        if line.startswith("#"):
            continue
        if found is not None:
            value = line.removeprefix("export ")[found.end() :]
            yield found[1], value
        elif line in shell:
            yield line, shell[line]
