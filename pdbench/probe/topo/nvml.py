"""NVML through its maintained binding: numbers as nvidia-smi names them, and errors as reasons.

Every read may be refused by a driver, a GPU, a container or a MIG setting. `ask` turns that into None and a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

T = TypeVar("T")
Reasons = dict[str, str]

# What nvidia-smi topo -p2p asks, by name. Plain numbers: the binding's constant for reads is a tuple.
P2P_CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "prop": 4}
HANDOFF = ("read", "write")  # the capabilities without which KV bounces
P2P_STATUS = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
P2P_MEANING = {
    "OK": "allowed",
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "not over this I/O hub topology",
    "DR": "disabled by a driver registry key",
    "NS": "not supported",
    "U": "the driver does not know",
}
ANCESTORS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
REMOTE_DEVICES = {0: "gpu", 1: "npu", 2: "switch"}
LINK_STATES = {0: "inactive", 1: "active", 2: "asleep"}
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}

LOST, RESET_REQUIRED = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED
NO_MORE_LINKS = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_REASONS = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not supported",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "not in this driver",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission",
    LOST: "GPU is lost",
    RESET_REQUIRED: "GPU needs a reset",
}
# What stops everything -> (name in JSON, what is wrong, what to do).
TROUBLES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no-library",
        "no NVIDIA driver here: libnvidia-ml.so.1 is not found",
        "On a GPU host install the driver; in a container start it with --gpus all (NVIDIA container toolkit).",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "driver-not-loaded",
        "the NVIDIA kernel module is not loaded",
        "Try `sudo modprobe nvidia` and read `dmesg`; after a kernel update the module has to be built again.",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver-mismatch",
        "driver mismatch: the loaded NVIDIA kernel module and libnvidia-ml.so.1 are of different versions",
        "Reboot, or unload and load the nvidia modules; in a container the library must come from the host.",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "no-permission",
        "NVML may not be used: no permission on the NVIDIA devices",
        "Look at the owner and mode of /dev/nvidiactl and /dev/nvidia*.",
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "blocked",
        "the operating system blocks the NVIDIA devices",
        "Usually a container's device list: start it with --gpus all.",
    ),
}


def ask(reasons: Reasons, field: str, call: Callable[[], T]) -> T | None:
    """What `call` answers; None, with the reason under `field`, when NVML refuses."""
    try:
        return call()
    except pynvml.NVMLError as error:
        reasons[field] = reason(error)
    except (pynvml.NVMLLibraryMismatchError, AttributeError):
        reasons[field] = "not in this version of nvidia-ml-py"
    except UnicodeDecodeError:
        reasons[field] = "not readable text"
    return None


def reason(error: pynvml.NVMLError) -> str:
    """In few words; for a code that the binding does not know, what the driver calls it."""
    return _REASONS.get(error.value) or str(error).rstrip(".").lower()


def words(value: str | bytes) -> str:
    """Text of the driver; old versions of the binding give bytes."""
    return (value.decode("utf-8", "replace") if isinstance(value, bytes) else value).strip()
