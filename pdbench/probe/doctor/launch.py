"""A server's command line and environment, as a recipe's `launch` and `env` give them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_JSON = "kv-transfer-config"
_BEFORE = ("exec", "nohup", "export", "sudo", "&&")  # what may stand before the command or its variables
_CONTAINERS = ("docker", "podman", "nerdctl")
# Options of their `run` without a value: any other takes the next word where no `=` gives it.
_SWITCHES = {
    "detach", "disable-content-trust", "env-host", "help", "init", "interactive", "no-healthcheck", "no-hosts",
    "oom-kill-disable", "privileged", "publish-all", "quiet", "read-only", "replace", "rm", "rmi", "sig-proxy", "tty",
}  # fmt: skip
_SHORT_SWITCHES = "ditPq"
# vLLM's flags of one dash, and what they stand for.
_SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank",
    "dpe": "data-parallel-external-lb",
    "dph": "data-parallel-hybrid-lb",
    "dcp": "decode-context-parallel-size",
}
_WHOLE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Launch:
    """`flags` by name without leading dashes (`max-num-seqs`); one without a value is True, `--no-x` sets x False."""

    words: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[int, int] = field(default_factory=dict)  # of a container: port of the host -> port inside
    broken: str = ""  # why the command line cannot be read

    @property
    def tells_all(self) -> bool:
        """Whether what the command line does not say is vLLM's default: no file of options is given."""
        return bool(self.words) and not self.broken and "config" not in self.flags

    @property
    def transfer(self) -> Mapping[str, Any] | None:
        """--kv-transfer-config as a table; None when it is not given."""
        found = self.flags.get(_JSON)
        return found if isinstance(found, Mapping) else None


def launch_of(command: str | None, env: Mapping[str, Any] | None) -> Launch:
    """The command line understood; variables before the command count as environment, newlines as spaces.

    Into a container (`docker run`) come its -e and --env alone; a name without value passes on what stands before.
    """
    given = {str(name): str(value) for name, value in (env or {}).items()}
    try:
        words = shlex.split((command or "").replace("\\\n", " "), comments=True)
    except ValueError as error:
        return Launch(env=given, broken=f"launch cannot be read: {error}")
    shell = dict(given)
    words = _after_variables(words, shell)
    published = {}
    if (inside := _after_run(words)) is None:
        given = shell
    else:
        options = list(_run_options(inside))
        given |= _variables([value for name, value in options if name in ("e", "env")], shell)
        published = _published([value for name, value in options if name in ("p", "publish")])
    try:
        return Launch(tuple(words), _flags(words), given, published)
    except ValueError as error:
        return Launch(tuple(words), {}, given, published, str(error))


def whole_number(text: str) -> int | None:
    """A whole number as vLLM reads it: 8k is 8,000 and 8K is 8,192, likewise m, g and t; None for anything else."""
    found = _WHOLE.fullmatch(text.strip())
    if found is None or ("." in found[1] and not found[2].islower()):
        return None
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** _POWER.get(found[2].lower(), 0))


def _after_variables(words: list[str], given: dict[str, str]) -> list[str]:
    """The command without what stands before it: NAME=VALUE, also as `env` takes them, which goes into `given`."""
    left = list(words)
    by_env = False
    while left:
        if _VARIABLE.match(left[0]):
            name, _, value = left.pop(0).partition("=")
            given[name] = value.rstrip(";")
        elif left[0].rsplit("/", 1)[-1] == "env":
            by_env = bool(left.pop(0))
        elif by_env and left[0] in ("-u", "--unset"):
            given.pop("".join(left[1:2]), None)
            del left[:2]
        elif left[0] in _BEFORE or (by_env and left[0] in ("-", "-i", "--ignore-environment", "--")):
            left.pop(0)
        else:
            break
    return left


def _after_run(words: list[str]) -> list[str] | None:
    """The words after `docker run`, `podman container run` and the like; None for any other command."""
    if not words or words[0].rsplit("/", 1)[-1] not in _CONTAINERS:
        return None
    place = 2 if words[1:2] == ["container"] else 1
    return words[place + 1 :] if words[place : place + 1] == ["run"] else None


def _run_options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Name and value of the options of `docker run`, up to the image."""
    left = iter(words)
    for word in left:
        if word == "--" or not word.startswith("-"):
            return
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name, value if equals or name in _SWITCHES else next(left, "")
        elif letters := word[1:].lstrip(_SHORT_SWITCHES):
            yield letters[0], letters[1:].removeprefix("=") or next(left, "")


def _variables(options: list[str], shell: Mapping[str, str]) -> dict[str, str]:
    named = [text if "=" in text else f"{text}={shell[text]}" for text in options if "=" in text or text in shell]
    return dict(text.split("=", 1) for text in named)


def _published(options: list[str]) -> dict[int, int]:
    """[ADDRESS:]HOST:INSIDE[/tcp]; ranges, and ports that the engine draws, tell of no single port."""
    ends = (text.removesuffix("/tcp").rsplit(":", 2)[-2:] for text in options)
    return {int(pair[0]): int(pair[1]) for pair in ends if len(pair) == 2 and all(map(str.isdigit, pair))}


def _flags(words: list[str]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not _is_flag(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name if word.startswith("--") else _SHORT[name]
        if not equals and place < len(words) and not _is_flag(words[place]):
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


def _is_flag(word: str) -> bool:
    long = word.startswith("--") and word != "--"
    return long or (word.startswith("-") and word[1:].partition("=")[0] in _SHORT)


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
