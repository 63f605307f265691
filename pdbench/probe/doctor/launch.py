"""A server's command line and environment, as a recipe's `launch` and `env` give them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pdbench.probe.doctor.container import Container, container
from pdbench.probe.doctor.shell import VARIABLE, Command, Unread, after_variables, commands, expanded, is_open
from pdbench.probe.doctor.written import env_file, listed, systemd

TRANSFER = "kv-transfer-config"
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
# Commands beside a server's own that start none.
_BESIDE = {
    "cd", "echo", "set", "unset", "ulimit", "mkdir", "rm", "sleep", "wait", "trap", "exit", "kill", "true", "cat",
    "tee", "module", "conda", "pip", "pip3", "shopt", "umask", "printf", "git", "mount", "sysctl", "nvidia-smi",
}  # fmt: skip
_SSH_VALUES = re.compile(r"-[BbcDEeFIiJLlmOopQRSWw]$")
_GIVES_ENV = re.compile(r"--(?:[a-z]+-)?(?:env|export)|-[ex](?:$|[A-Z]\w*=)")  # of a wrapper: srun, apptainer, mpirun
# A variable whose name says that it is several words.
_MORE = re.compile(r"ARGS?(?![A-Za-z])|OPT(?:S|IONS)?(?![A-Za-z])|FLAGS|EXTRA|[@*]", re.IGNORECASE)
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
    """`words` of the server's own command, `flags` by name without leading dashes (`max-num-seqs`); one without a value
    is True, `--no-x` sets x False. `engine`: vllm or sglang, empty where the command is neither's."""

    words: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[int, int] = field(default_factory=dict)  # of a container: port of the host -> port inside
    broken: str = ""  # why no shell and no vLLM can read the command line
    engine: str = ""
    unread: str = ""  # why it is not known what the command line starts
    elsewhere: str = ""  # where more of its environment stands
    unsaid: frozenset[str] = frozenset()  # flags whose value only the running shell knows
    open_end: str = ""  # where more flags may come from
    own_network: bool = False  # of a container or pod
    in_pod: bool = False  # a Service decides of its ports

    @property
    def given(self) -> bool:
        return bool(self.words or self.broken or self.unread)

    @property
    def opaque(self) -> str:
        """Why the command line tells nothing of a vLLM server; empty where it does, or where there is none."""
        if self.broken:
            return "its launch cannot be read"
        if self.unread:
            return f"its launch {self.unread}"
        if self.words and self.engine != "vllm":
            return "its launch starts " + ("SGLang, not vLLM" if self.engine else "no server that pdbench knows")
        return ""

    def leaves(self, name: str) -> bool:
        """Whether an option is surely left to vLLM's default: nothing gives it, and no more options stand elsewhere."""
        read = self.engine == "vllm" and not self.broken and not self.unread and not self.open_end
        return read and name not in self.flags and name not in self.unsaid

    @property
    def transfer(self) -> Mapping[str, Any] | None:
        """--kv-transfer-config as a table; None when it is not given."""
        found = self.flags.get(TRANSFER)
        return found if isinstance(found, Mapping) else None


def launch_of(command: object, env: object, folder: Path | None = None) -> Launch:
    """What is known of a server that is started so. `folder`: where files that the command names are looked for.

    Read are shell texts, also inside `bash -c` and `ssh`, `docker run`, lists of words as a pod has them, and systemd
    units. Of everything else is said that it cannot be read.
    """
    given = {str(name): str(value) for name, value in (env.items() if isinstance(env, Mapping) else ())}
    given = {name: expanded(value, {**given, name: ""}) for name, value in given.items()}
    text = shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")
    if not text.strip():
        return Launch(env=given)
    try:
        return _with_flags(_read(text, _Recipe(given, folder)))
    except Unread as why:
        return Launch(env=given, unread=str(why))
    except ValueError as error:
        return Launch(env=given, broken=f"launch cannot be read: {error}")


class _Recipe(NamedTuple):
    """What the recipe says beside the command; it holds inside a container and on another host too."""

    env: Mapping[str, str]
    folder: Path | None


def _read(text: str, recipe: _Recipe) -> Launch:
    if (unit := systemd(text)) is not None:
        start, environment, files = unit
        found = _chosen(commands(f"export {environment}\n{start}", recipe.env), recipe)
        read = {path: env_file(path, recipe.folder, {}) for path in files}
        missing = ", ".join(path for path, table in read.items() if table is None)
        more = {name: value for table in read.values() for name, value in (table or {}).items()}
        return replace(found, env={**more, **found.env}, elsewhere=found.elsewhere or missing)
    if (words := listed(text)) is None:
        return _chosen(commands(text, recipe.env), recipe)
    if not words:
        raise Unread("is an empty list")
    pod = "the pod's own env" if not recipe.env else ""
    found = _started(Command(tuple(words), recipe.env), recipe) or Launch(tuple(words), env=recipe.env)
    return replace(found, elsewhere=found.elsewhere or pod, in_pod=True, own_network=True)


def _chosen(every: list[Command], recipe: _Recipe) -> Launch:
    """Of all commands the one that starts a server; else the last one that could."""
    found = [one for command in every if (one := _started(command, recipe)) is not None]
    servers = [one for one in found if one.engine]
    if len(servers) > 1:
        raise Unread("starts several servers")
    if not found:
        raise Unread("starts nothing")
    chosen = servers[0] if servers else found[-1]
    sourced = [
        " ".join(command.words)
        for command in every
        if command.words[0] in ("source", ".") and not command.words[-1].endswith("activate")
    ]
    return replace(chosen, elsewhere=chosen.elsewhere or ", ".join(sourced))


def _started(command: Command, recipe: _Recipe) -> Launch | None:
    """What a simple command starts, wrappers such as numactl, srun, and uv run taken off; None if it starts nothing."""
    words, env = list(command.words), dict(command.env)
    first = words[0].rsplit("/", 1)[-1]
    if first in _BESIDE or first in ("source", "."):
        return None
    if first == "ssh":
        return _chosen(commands(" ".join(_after_host(words[1:])), recipe.env), recipe)
    if first == "eval":
        return _chosen(commands(" ".join(words[1:]), env), recipe)
    for place, word in enumerate(words):
        name, left = word.rsplit("/", 1)[-1], words[place:]
        by = next((one for one in words[:place] if _GIVES_ENV.match(one)), "")
        if (inside := container(left, env, recipe.folder)) is not None:
            return _contained(inside, recipe)
        if name == "env" and place:
            inner = after_variables(left, env)
            return _started(Command(tuple(inner), env), recipe) if inner else None
        if engine := _engine(left):
            before = ["", *words[:place]]
            own = [one for last, one in pairwise(before) if not last.startswith("-")]  # an option's value is not
            after_variables([one for one in own if VARIABLE.match(one)], env)
            return Launch(tuple(left), env=env, engine=engine, elsewhere=by and f"{words[0]} {by}")
        if name in _SHELLS and (script := _script(left[1:])) is not None:
            return _chosen(commands(script, env), recipe)
    if (file := next((word for word in words if word.endswith((".sh", ".bash", ".sbatch"))), None)) is not None:
        raise Unread(f"starts {file}, which is not read")
    return Launch(tuple(words), env=env)


def _engine(words: list[str]) -> str:
    """What these words start: vllm or sglang, else nothing that is known."""
    program, served = words[0].rsplit("/", 1)[-1], words[1:2] == ["serve"]
    if (program == "vllm" and served) or re.search(r"(?:^|/)vllm[./]entrypoints", words[0]):
        return "vllm"
    return "sglang" if words[0].startswith("sglang.launch_server") or (program == "sglang" and served) else ""


def _contained(inside: Container, recipe: _Recipe) -> Launch:
    env = {**recipe.env, **inside.env}
    found = _started(Command(inside.command, env), recipe) if inside.command else None
    if (found is None or not found.engine) and inside.image.rsplit("/", 1)[-1].startswith("vllm"):
        found = Launch(("vllm", "serve", *inside.command), env=env, engine="vllm")  # what the image starts by itself
    found = found or Launch((inside.image,), env=env)
    missing = ", ".join(inside.missing)
    return replace(
        found,
        published=inside.published,
        elsewhere=found.elsewhere or (f"--env-file {missing}, which is not here" if missing else ""),
        own_network=inside.own_network,
    )


def _script(words: list[str]) -> str | None:
    """The text in `bash -lc TEXT`; None where a shell is not given one."""
    left = iter(words)
    for word in left:
        if not word.startswith(("-", "+")):
            return None
        if not word.startswith("--") and "c" in word:
            return next(left, "")
        if word.endswith("o"):
            next(left, "")
    return None


def _after_host(words: list[str]) -> list[str]:
    left = list(words)
    while left and left[0].startswith("-"):
        del left[: 2 if _SSH_VALUES.match(left[0]) else 1]
    return left[1:]


def whole_number(text: str) -> int | None:
    """A whole number as vLLM reads it: 8k is 8,000 and 8K is 8,192, likewise m, g and t; None for anything else."""
    found = _WHOLE.fullmatch(text.strip())
    if found is None or ("." in found[1] and not found[2].islower()):
        return None
    return int(float(found[1]) * (1024 if found[2].isupper() else 1000) ** _POWER.get(found[2].lower(), 0))


def _with_flags(launch: Launch) -> Launch:
    try:
        flags, unsaid, more = _flags(launch.words)
    except ValueError as error:
        return replace(launch, broken=str(error))
    open_end = f"--config {flags['config']}, which is not read" if "config" in flags else more
    engine = launch.engine
    if not engine and not launch.unread and (TRANSFER in flags or TRANSFER in unsaid):
        engine, open_end = "vllm", open_end or "what the image starts"  # no other engine has such a flag
    return replace(launch, flags=flags, unsaid=frozenset(unsaid), open_end=open_end, engine=engine)


def _flags(words: Sequence[str]) -> tuple[dict[str, Any], set[str], str]:
    """Flags with their values, those whose value is not known, and a word that may stand for more flags."""
    flags: dict[str, Any] = {}
    unsaid, more = set(), ""
    for name, value, place in _pairs(words):
        if not name or is_open(value):
            if is_open(value) and (_MORE.search(value) or (not name and words[place - 1 : place] != ["serve"])):
                more = more or value
            if name:
                unsaid.add(TRANSFER if name.startswith(TRANSFER) else name)
        elif name == TRANSFER:
            flags[name] = {**flags.get(name, {}), **_table(value)}
        elif name.startswith(f"{TRANSFER}."):
            _put(flags.setdefault(TRANSFER, {}), name.split(".")[1:], str(value))
        elif value is True and name.startswith("no-"):
            flags[name.removeprefix("no-")] = False
        else:
            flags[name] = value
    return {name: value for name, value in flags.items() if name not in unsaid}, unsaid, more


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, Any, int]]:
    """(flag, its value or True, its place); with an empty name words that are no flag's."""
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not _is_flag(word):
            yield "", word, place - 1
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name if word.startswith("--") else _SHORT[name]
        if not equals and place < len(words) and not _is_flag(words[place]):
            value, equals, place = words[place], "=", place + 1
        first, dot, path = name.partition(".")
        yield first.replace("_", "-") + dot + path, value if equals else True, place - 1


def _is_flag(word: str) -> bool:
    long = word.startswith("--") and word != "--"
    return long or (word.startswith("-") and word[1:].partition("=")[0] in _SHORT)


def _table(text: object) -> dict[str, Any]:
    try:
        found = json.loads(str(text))
    except ValueError as error:
        raise ValueError(f"--{TRANSFER} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"--{TRANSFER} is no JSON object")
    return found


def _put(table: dict[str, Any], path: list[str], text: str) -> None:
    """vLLM's dotted form of a JSON option: --kv-transfer-config.kv_connector NixlConnector."""
    for name in path[:-1]:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"--{TRANSFER}.{'.'.join(path)} is given twice in different forms")
        table = inner
    try:
        table[path[-1]] = json.loads(text)
    except ValueError:
        table[path[-1]] = text
