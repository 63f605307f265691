"""GPU memory through the CUDA driver alone, so that the probe needs neither torch nor the CUDA toolkit."""

from __future__ import annotations

import ctypes

import numpy as np

from pdbench.errors import Unreachable
from pdbench.littles_law.plan_text import binary_size
from pdbench.probe.transfer.memory import Bytes, Memory

LIBRARY = "libcuda.so.1"


def gpus() -> tuple[int, str]:
    """How many GPUs the driver shows, and why none where it is 0."""
    try:
        cuda = _driver()
        count = ctypes.c_int()
        _check(cuda, cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    except Unreachable as error:
        return 0, str(error).rstrip(".")
    return count.value, "the driver shows none"


def pci_address(device: int) -> str | None:
    """Where the GPU is, since CUDA and NVML may number it differently; None where the driver does not tell."""
    cuda, handle, text = _driver(), ctypes.c_int(), ctypes.create_string_buffer(32)
    if not hasattr(cuda, "cuDeviceGetPCIBusId") or cuda.cuDeviceGet(ctypes.byref(handle), device):
        return None
    return None if cuda.cuDeviceGetPCIBusId(text, 32, handle) else text.value.decode("ascii", "replace")


def gpu_memory(nbytes: int, device: int) -> Memory:
    """Memory of one GPU, in its primary context, which becomes this thread's."""
    cuda = _driver()
    handle, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    _check(cuda, cuda.cuDeviceGet(ctypes.byref(handle), device), f"GPU {device}")
    _check(cuda, cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"GPU {device}")
    _check(cuda, cuda.cuCtxSetCurrent(context), f"GPU {device}")
    what = f"{binary_size(nbytes)} on GPU {device}"
    _check(cuda, cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)), what)
    base = address.value or 0

    def write(offset: int, data: Bytes) -> None:
        copied = cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(base + offset), _pointer(data), ctypes.c_size_t(len(data)))
        _check(cuda, copied, what)

    def read(offset: int, count: int) -> Bytes:
        data = np.empty(count, dtype=np.uint8)
        copied = cuda.cuMemcpyDtoH_v2(_pointer(data), ctypes.c_uint64(base + offset), ctypes.c_size_t(count))
        _check(cuda, copied, what)
        return data

    return Memory("VRAM", base, nbytes, device, write, read)


def _pointer(data: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(data.ctypes.data)


def _driver() -> ctypes.CDLL:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        raise Unreachable("there is no CUDA driver here (libcuda.so.1).", "Measure --memory dram.") from None
    _check(cuda, cuda.cuInit(0), "cuInit")
    return cuda


def _check(cuda: ctypes.CDLL, result: int, what: str) -> None:
    """Raise Unreachable with the driver's own words."""
    if result == 0:
        return
    text = ctypes.c_char_p()
    known = cuda.cuGetErrorString(result, ctypes.byref(text)) == 0 and text.value
    said = text.value.decode("utf-8", "replace") if known and text.value else f"error {result}"
    raise Unreachable(f"the CUDA driver refuses {what}: {said}.", "nvidia-smi shows what is in use.")
