"""What `docker run` (podman, nerdctl) says: the command inside, and what goes in with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdbench.probe.doctor.written import env_file

_ENGINES = ("docker", "podman", "nerdctl")
# Options of their `run` without a value: any other takes the next word where no `=` gives it.
_SWITCHES = {
    "detach", "disable-content-trust", "env-host", "help", "init", "interactive", "no-healthcheck", "no-hosts",
    "oom-kill-disable", "privileged", "publish-all", "quiet", "read-only", "replace", "rm", "rmi", "sig-proxy", "tty",
}  # fmt: skip
_SHORT_SWITCHES = "ditPq"


@dataclass(frozen=True, slots=True)
class Container:
    """`published`: port of the host -> port inside. `missing`: files of variables that are not here to be read."""

    image: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    published: Mapping[int, int]
    missing: tuple[str, ...]
    own_network: bool


def container(words: list[str], shell: Mapping[str, str], folder: Path | None) -> Container | None:
    """The container that the words start; None for any other command.

    Into it come its -e, --env and --env-file alone; a name without value passes on what the shell has.
    """
    inside = _after_run(words)
    if inside is None:
        return None
    options, rest = _options(inside)
    env: dict[str, str] = {}
    missing = []
    for path in (value for name, value in options if name == "env-file"):
        found = env_file(path, folder, shell)
        missing += [path] if found is None else []
        env |= found or {}
    env |= _variables([value for name, value in options if name in ("e", "env")], shell)
    entry = [value for name, value in options if name == "entrypoint" and value]
    network = [value for name, value in options if name in ("network", "net")]
    published = _published([value for name, value in options if name in ("p", "publish")])
    return Container(
        rest[0] if rest else "",
        (*entry, *rest[1:]),
        env,
        published,
        tuple(missing),
        own_network="host" not in network and not any(one.startswith("container:") for one in network),
    )


def _after_run(words: list[str]) -> list[str] | None:
    if not words or words[0].rsplit("/", 1)[-1] not in _ENGINES:
        return None
    place = 2 if words[1:2] == ["container"] else 1
    return words[place + 1 :] if words[place : place + 1] == ["run"] else None


def _options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Names and values of the options of `run`; the image and what follows it."""
    left = iter(words)
    found: list[tuple[str, str]] = []
    for word in left:
        if word == "--":
            break
        if not word.startswith("-"):
            return found, [word, *left]
        found += _option(word, left)
    return found, list(left)


def _option(word: str, left: Iterator[str]) -> Iterator[tuple[str, str]]:
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
