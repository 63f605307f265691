"""A server's command line and environment, as a recipe's `launch` and `env` give them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_JSON = "kv-transfer-config"


@dataclass(frozen=True, slots=True)
class Launch:
    """`flags` by name without leading dashes (`max-num-seqs`); one without a value is True, `--no-x` sets x False."""

    words: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    broken: str = ""  # why the command line cannot be read

    @property
    def transfer(self) -> Mapping[str, Any] | None:
        """--kv-transfer-config as a table; None when it is not given."""
        found = self.flags.get(_JSON)
        return found if isinstance(found, Mapping) else None


def launch_of(command: str | None, env: Mapping[str, Any] | None) -> Launch:
    """The command line understood; variables before the command count as environment, newlines as spaces."""
    given = {str(name): str(value) for name, value in (env or {}).items()}
    try:
        words = shlex.split((command or "").replace("\\\n", " "), comments=True)
    except ValueError as error:
        return Launch(env=given, broken=f"launch cannot be read: {error}")
    while words and _VARIABLE.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    try:
        return Launch(tuple(words), _flags(words), given)
    except ValueError as error:
        return Launch(tuple(words), {}, given, str(error))


def _flags(words: list[str]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not word.startswith("--") or word == "--":
            continue
        name, equals, value = word[2:].partition("=")
        if not equals and place < len(words) and not words[place].startswith("--"):
            value, equals, place = words[place], "=", place + 1
        name = (
            name.replace("_", "-")
            if "." not in name
            else name.split(".", 1)[0].replace("_", "-") + name[name.index(".") :]
        )
        if name == _JSON:
            flags[name] = {**flags.get(name, {}), **_table(value)}
        elif name.startswith(f"{_JSON}."):
            _put(flags.setdefault(_JSON, {}), name.split(".")[1:], value)
        elif not equals and name.startswith("no-"):
            flags[name.removeprefix("no-")] = False
        else:
            flags[name] = value if equals else True
    return flags


def _table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--{_JSON} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"--{_JSON} is no JSON object")
    return found


def _put(table: dict[str, Any], path: list[str], text: str) -> None:
    """vLLM's dotted form of a JSON option: --kv-transfer-config.kv_connector NixlConnector."""
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"--{_JSON}.{'.'.join(path)} is given twice in different forms")
        table = inner
    try:
        table[path[-1]] = json.loads(text)
    except ValueError:
        table[path[-1]] = text
