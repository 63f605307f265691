"""NIXL: which module holds it here, an agent of one backend, and what its refusals mean."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from pdbench.errors import Unreachable

MODULES = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api", "nixl_rocm._api")
INSTALL = "pip install --no-deps nixl-cu12==1.5.1 (nixl-cu13 for CUDA 13, nixl-rocm for ROCm; its torch is not needed)"
# What NIXL's UCX backend and LIBFABRIC take; vLLM starts NIXL with 4 threads.
THREADED = ("UCX", "LIBFABRIC")


def require() -> None:
    """Raise Unreachable at once where there is no NIXL, without the cost of importing it."""
    if not any(importlib.util.find_spec(name.partition(".")[0]) for name in MODULES):
        load()


def load() -> ModuleType:
    """NIXL's Python API. Raises Unreachable that says how to install one."""
    why = []
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                continue
            why.append(f"{name} needs {error.name}")
        except ImportError as error:
            why.append(f"{name}: {error}")
    said = f" ({'; '.join(why)})" if why else ""
    raise Unreachable(f"NIXL is not installed in this Python environment{said}.", f"Install one: {INSTALL}")


def version(api: ModuleType) -> str | None:
    """Name and version of the distribution that holds NIXL, such as nixl_cu12 1.5.1."""
    package = api.__name__.partition(".")[0]
    for name in (package, package.replace("_", "-")):
        try:
            return f"{package} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return None


def plugin_folder(api: ModuleType) -> Path | None:
    """Where the wheel keeps its backends, as shared libraries named libplugin_NAME.so."""
    if os.environ.get("NIXL_PLUGIN_DIR"):
        return Path(os.environ["NIXL_PLUGIN_DIR"])
    package = Path(api.nixlBind.__file__ or "").parent
    folders = [package.parent / f".{package.name}.mesonpy.libs" / "plugins", package / "plugins"]
    return next((folder for folder in folders if folder.is_dir()), None)


def agent_of(api: ModuleType, name: str, backend: str, threads: int) -> Any:
    """An agent with one backend, set up as vLLM does: progress thread, telemetry, `threads` in the backend."""
    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=True, capture_telemetry=True, backends=[]))
    if backend not in agent.get_plugin_list():
        raise Unreachable(
            f"this NIXL has no backend {backend}.", f"It has: {', '.join(sorted(agent.get_plugin_list()))}."
        )
    options = {"num_threads": str(threads)} if threads and backend in THREADED else {}
    with refused(f"start the backend {backend}"):
        agent.create_backend(backend, options)
    return agent


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn NIXL's exceptions into ours. Why is in its log alone, which `refusals` reads."""
    try:
        yield
    except Exception as error:  # NIXL's own classes derive from Exception alone
        if not type(error).__module__.startswith("nixl"):
            raise
        raise NixlRefused(what, type(error).__name__, str(error)) from None


class NixlRefused(Unreachable):
    """NIXL could not do `what`; `kind` is the name of its exception, `why` the cause where it is known."""

    def __init__(self, what: str, kind: str, why: str, hint: str = "") -> None:
        said = why if why and not why.startswith("NIXL_ERR") else kind
        super().__init__(f"NIXL could not {what}: {said}.", hint or "The logs in the run directory say more.")
        self.what = what
        self.kind = kind
        self.why = why
