"""Where a deployment comes from: flags, else a recipe, else `pdbench.toml`, else the default ports.

A recipe and a `pdbench.toml` have one format: the servers, what is known of them, and the workload's defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdbench.deployment import (
    DEFAULT_PORTS,
    DEFAULT_TARGET,
    GUIDE_PORTS,
    MODES,
    ROLES,
    Deployment,
    api_key,
    build,
    with_logs,
    with_slots,
)
from pdbench.errors import UsageError

CONFIG_FILE = Path("pdbench.toml")

_TOP = {"name", "engine", "mode", "model", "max_num_seqs", "prefill_max_num_seqs", "link_gb_s", "server", "sweep"}
_TOP |= {"api_key_env", "api_key_file"}
_SERVER = {"role", "url", "metrics_url", "max_num_seqs", "env", "launch"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One TOML file: a deployment and the workload's defaults (`sweep`, names as the flags, with underscores)."""

    path: Path
    document: Mapping[str, Any]

    @property
    def sweep(self) -> Mapping[str, Any]:
        table: Mapping[str, Any] = self.document.get("sweep", {})
        return table

    @property
    def has_servers(self) -> bool:
        return bool(self.document.get("server"))

    def facts(self) -> dict[str, Any]:
        """Deployment fields that the file gives."""
        return {k: self.document[k] for k in ("engine", "mode", "model", "link_gb_s") if k in self.document}

    def deployment(
        self, target: str, key: str | None, urls: Sequence[tuple[str, str]] = (), **flags: Any
    ) -> Deployment:
        """The recipe's deployment; `urls` take the place of the servers of their roles, `flags` of what it says."""
        doc = self.document
        given = {role for role, _ in urls}
        entries: list[Mapping[str, Any]] = [entry for entry in doc.get("server", []) if entry["role"] not in given]
        entries += [{"role": role, "url": url} for role, url in urls]
        pages: dict[str, str] = {}
        slots: dict[str, int] = {}
        seen: dict[str, int] = {}
        for entry in entries:
            role = entry["role"]
            name = f"{role}-{seen.setdefault(role, 0)}"
            seen[role] += 1
            if "metrics_url" in entry:
                pages[name] = entry["metrics_url"]
            if "max_num_seqs" in entry:
                slots[name] = entry["max_num_seqs"]
        known = self.facts()
        known |= {k: v for k, v in flags.items() if v is not None}
        places = [(entry["role"], entry["url"]) for entry in entries]
        built = build(target, places, key=key, metrics_urls=pages, slots=slots, source=str(self.path), **known)
        return with_slots(built, doc.get("max_num_seqs"), doc.get("prefill_max_num_seqs"), keep=True)

    def api_key(self) -> str | None:
        file = self.document.get("api_key_file")
        return api_key(self.document.get("api_key_env"), (self.path.parent / file) if file else None)


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe or a pdbench.toml. Raises UsageError with the file, the key and the remedy."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}.") from None
    _refuse_unknown(path, "", document, _TOP)
    kinds: dict[str, Any] = {
        "max_num_seqs": int,
        "prefill_max_num_seqs": int,
        "link_gb_s": (int, float),
        "server": list,
        "sweep": dict,
    }
    for key, value in document.items():
        if not isinstance(value, kinds.get(key, str)) or isinstance(value, bool):
            raise UsageError(f"{path}: {key} has the wrong type ({type(value).__name__}).")
    for entry in document.get("server", []):
        _refuse_unknown(path, "server.", entry, _SERVER)
        if entry.get("role") not in ROLES or not isinstance(entry.get("url"), str):
            raise UsageError(f"{path}: each [[server]] needs role ({', '.join(ROLES)}) and url.")
        if not isinstance(entry.get("max_num_seqs", 1), int):
            raise UsageError(f"{path}: server.max_num_seqs is a number of slots.")
    if document.get("mode", "pull") not in MODES:
        raise UsageError(f"{path}: mode is one of {', '.join(MODES)}.")
    return Recipe(path, document)


def _refuse_unknown(path: Path, prefix: str, table: Any, known: set[str]) -> None:
    if not isinstance(table, Mapping):
        raise UsageError(f"{path}: {prefix.rstrip('.')} is a table.")
    for key in table:
        if key not in known:
            raise UsageError(f"{path}: unknown key {prefix}{key}.", f"Known are: {', '.join(sorted(known))}.")


@dataclass(frozen=True, slots=True)
class TargetFlags:
    """What the command line says of the deployment. Empty and `None` mean that it does not say."""

    proxy: Sequence[str] = ()
    prefill: Sequence[str] = ()
    decode: Sequence[str] = ()
    server: Sequence[str] = ()
    render: Sequence[str] = ()
    target: Sequence[str] = ()  # NAME=RECIPE_OR_PROXY_URL
    recipe: Path | None = None
    metrics_url: Sequence[str] = ()  # SERVER=URL, e.g. decode-0=http://...
    decode_log: Sequence[str] = ()  # FILE, or SERVER=FILE where there are several
    prefill_log: Sequence[str] = ()
    engine: str | None = None
    mode: str | None = None
    model: str | None = None
    max_num_seqs: int | None = None
    prefill_max_num_seqs: int | None = None
    link_gb_s: float | None = None
    api_key_env: str | None = None
    api_key_file: Path | None = None

    @property
    def urls(self) -> list[tuple[str, str]]:
        roles = {
            "proxy": self.proxy,
            "prefill": self.prefill,
            "decode": self.decode,
            "colocated": self.server,
            "render": self.render,
        }
        return [(role, url) for role, urls in roles.items() for text in urls for url in text.split(",") if url.strip()]

    @property
    def logs(self) -> dict[str, str]:
        """Logs by server name."""
        found = {}
        for role, texts in (("decode", self.decode_log), ("prefill", self.prefill_log)):
            for text in texts:
                name, equals, path = text.partition("=")
                found.update({name: path} if equals and name.startswith(f"{role}-") else {f"{role}-0": text})
        return found

    @property
    def known(self) -> dict[str, Any]:
        facts = {"engine": self.engine, "mode": self.mode, "model": self.model, "link_gb_s": self.link_gb_s}
        return {name: value for name, value in facts.items() if value is not None}


def chosen(flags: TargetFlags, file: Recipe | None) -> list[Deployment]:
    """The deployments that a command measures: one, or one for each --target. `file` is the recipe or pdbench.toml."""
    if flags.mode is not None and flags.mode not in MODES:
        raise UsageError(f"--mode is one of {', '.join(MODES)}, not {flags.mode!r}.")
    if flags.target:
        if flags.urls:
            raise UsageError(
                "--target and --proxy/--prefill/--decode/--server exclude each other.",
                "Write the servers of a target into a recipe file: --target NAME=RECIPE.toml (recipes/README.md).",
            )
        if flags.metrics_url or flags.logs:
            raise UsageError(
                "--metrics-url and logs name servers of one deployment: they do not go with --target.",
                "A recipe file says where a page is (metrics_url); measure one target at a time to read logs.",
            )
        deployments = [_named(text, flags) for text in flags.target]
        if len({deployment.target for deployment in deployments}) < len(deployments):
            raise UsageError("--target: two targets have the same name.")
        return deployments
    key = api_key(flags.api_key_env, flags.api_key_file)
    if key is None and file is not None:
        key = file.api_key()
    if flags.urls and not (flags.recipe and file):
        inherited = file.facts() if file is not None else {}
        built = build(
            DEFAULT_TARGET,
            flags.urls,
            key=key,
            metrics_urls=_pages(flags),
            source="flags",
            **{**inherited, **flags.known},
        )
        if file is not None:
            built = with_slots(built, file.document.get("max_num_seqs"), file.document.get("prefill_max_num_seqs"))
    elif file is not None and file.has_servers:
        built = file.deployment(DEFAULT_TARGET, key, flags.urls, **flags.known)
    else:
        urls = [(role, f"http://127.0.0.1:{port}") for role, port in GUIDE_PORTS.items()]
        built = build(DEFAULT_TARGET, urls, key=key, source=DEFAULT_PORTS, **flags.known)
    return [with_logs(with_slots(built, flags.max_num_seqs, flags.prefill_max_num_seqs), flags.logs)]


def _named(text: str, flags: TargetFlags) -> Deployment:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"--target wants NAME=RECIPE_OR_PROXY_URL, not {text!r}.")
    key = api_key(flags.api_key_env, flags.api_key_file)
    if value.endswith(".toml"):
        recipe = read_recipe(Path(value))
        built = recipe.deployment(name, key or recipe.api_key(), **flags.known)
    else:
        built = build(name, [("proxy", value)], key=key, source="flags", **flags.known)
    return with_slots(built, flags.max_num_seqs, flags.prefill_max_num_seqs)


def _pages(flags: TargetFlags) -> dict[str, str]:
    pages = {}
    for text in flags.metrics_url:
        name, equals, url = text.partition("=")
        if not equals or not url:
            raise UsageError(
                f"--metrics-url wants SERVER=URL (such as decode-0=http://HOST:PORT/metrics), not {text!r}."
            )
        pages[name if name[-1:].isdigit() else f"{name}-0"] = url
    return pages


def config_file(recipe: Path | None) -> Recipe | None:
    """The file that applies: --recipe, else pdbench.toml in the working directory, else none."""
    if recipe is not None:
        return read_recipe(recipe)
    return read_recipe(CONFIG_FILE) if CONFIG_FILE.is_file() else None
