"""NVML's side of a machine: driver, GPUs, and the matrices of what lies between them."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pynvml

from pdbench.probe.topo.gpu import Gpu, read_gpu
from pdbench.probe.topo.nvml import ANCESTORS, LOST, P2P_CAPABILITIES, P2P_STATUS, TROUBLES, Reasons, ask, reason, words

Matrix = tuple[tuple[str | None, ...], ...]
SELF = "X"
NVML_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why NVML tells nothing at all: a name, a sentence, and what to do."""

    code: str
    message: str
    advice: str


@dataclass(frozen=True, slots=True)
class Driver:
    version: str | None = None
    nvml: str | None = None
    cuda: str | None = None


@dataclass(frozen=True, slots=True)
class Nvml:
    """What NVML tells. The matrices are by GPU index, `X` on the diagonal, None where nothing was reported."""

    trouble: Trouble | None = None
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] = ()
    p2p: dict[str, Matrix] = field(default_factory=lambda: dict.fromkeys(P2P_CAPABILITIES, ()))
    ancestor: Matrix = ()
    not_reported: Reasons = field(default_factory=dict)


def read_nvml(limit_s: float) -> Nvml:
    """NVML's side. A wedged driver never answers, so the calls run in a thread that is left behind after `limit_s`."""
    answer: Future[Nvml] = Future()

    def read() -> None:
        try:
            answer.set_result(_read_nvml())
        except BaseException as error:  # noqa: BLE001 - goes on in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=read, daemon=True).start()
    try:
        return answer.result(limit_s)
    except TimeoutError:
        pass
    return Nvml(
        Trouble(
            "driver-hangs",
            f"the NVIDIA driver has not answered within {limit_s:g} s",
            "nvidia-smi will hang too: look for Xid lines in `dmesg`; the GPU, or the machine, needs a reset.",
        )
    )


def _read_nvml() -> Nvml:
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return Nvml(_trouble(error))
    no: Reasons = {}
    cuda = ask(no, "cuda", pynvml.nvmlSystemGetCudaDriverVersion)
    driver = Driver(
        ask(no, "driver", lambda: words(pynvml.nvmlSystemGetDriverVersion())),
        ask(no, "nvml", lambda: words(pynvml.nvmlSystemGetNVMLVersion())),
        f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    )
    try:
        handles = [_handle(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return Nvml(_trouble(error), driver, not_reported=no)
    gpus = tuple(
        Gpu(index, trouble=handle) if isinstance(handle, str) else read_gpu(index, handle)
        for index, handle in enumerate(handles)
    )
    p2p = {
        name: _matrix(no, f"p2p.{name}", handles, functools.partial(_p2p, number))
        for name, number in P2P_CAPABILITIES.items()
    }
    ancestor = _matrix(no, "ancestor", handles, _ancestor)
    ask({}, "", pynvml.nvmlShutdown)
    return Nvml(None, driver, gpus, p2p, ancestor, no)


def _trouble(error: Exception) -> Trouble:
    if not isinstance(error, pynvml.NVMLError):
        return Trouble("binding-mismatch", f"nvidia-ml-py and the driver do not fit: {error}", "Update nvidia-ml-py.")
    if error.value in TROUBLES:
        return Trouble(*TROUBLES[error.value])
    what = "an NVIDIA GPU is lost" if error.value == LOST else f"NVML does not start: {reason(error)}"
    return Trouble("nvml-error", what, "See what `nvidia-smi` and `dmesg` say.")


def _handle(index: int) -> Any:
    """The handle, or why there is none."""
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError as error:
        return reason(error)


def _matrix(no: Reasons, name: str, handles: list[Any], call: Callable[[Any, Any], str]) -> Matrix:
    """`call` for every ordered pair of GPUs that have a handle; the commonest reason for the rest goes into `no`."""
    refused: Reasons = {}
    rows = tuple(
        tuple(
            SELF
            if a == b
            else None
            if isinstance(one, str) or isinstance(other, str)
            else ask(refused, f"{a}-{b}", functools.partial(call, one, other))
            for b, other in enumerate(handles)
        )
        for a, one in enumerate(handles)
    )
    if refused:
        why, times = Counter(refused.values()).most_common(1)[0]
        no[name] = f"{why} ({times} of {len(handles) * (len(handles) - 1)} cells)"
    return rows


def _p2p(which: int, one: Any, other: Any) -> str:
    status = pynvml.nvmlDeviceGetP2PStatus(one, other, which)
    return P2P_STATUS.get(status, f"?{status}")


def _ancestor(one: Any, other: Any) -> str:
    level = pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)
    return ANCESTORS.get(level, f"?{level}")
