"""vLLM plugin: make NIXL usable on a machine with very few cores. Loaded by vLLM in each of its processes.

vLLM 0.32 with NIXL 1.5 expects cores to spare. On two cores three habits take them away from the model: an idle pair of
servers burns 1.5 cores (with this plugin 0.03), and requests take two to several times as long.

- Each worker binds its main thread to the last core of the NUMA node, so all servers compute on the same one.
- NIXL's progress thread polls UCX without a pause: a whole core a server, idle or not.
- Readers of the shared-memory queues spin for a second after each message. They now sleep between turns. Ending the
  spin earlier is no way out: a wake-up that falls into the gap is noticed only 5 s later.

What is transferred, and how, stays as it is. VLLM_TWO_CORES=0 switches all three off.
"""

import functools
import importlib
import os
import time

POLL_EVERY_US = 1000  # NIXL progress thread
SPIN_SLEEP_S = 0.0003  # queue readers


def register() -> None:
    """Entry point of the group vllm.general_plugins."""
    if os.environ.get("VLLM_TWO_CORES") == "0":
        return
    leave_cores_alone()
    sleep_while_spinning()
    for package in ("nixl_cu12", "nixl_cu13"):
        pause_progress_thread(package)


def leave_cores_alone() -> None:
    from vllm.platforms.cpu import CpuPlatform

    CpuPlatform.discover_numa_topology = classmethod(lambda platform: [])


def sleep_while_spinning() -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = functools.partial(time.sleep, SPIN_SLEEP_S)


def pause_progress_thread(package: str) -> None:
    """NIXL's Python layer sets pthrDelay to 0 just before it makes the agent: set it again in between."""
    try:
        bindings = importlib.import_module(f"{package}._api").nixlBind
    except ImportError:
        return
    make_agent = bindings.nixlAgent
    if hasattr(make_agent, "__wrapped__"):  # vLLM may call register() twice
        return

    @functools.wraps(make_agent, assigned=())
    def paused(name, config):
        config.pthrDelay = POLL_EVERY_US
        return make_agent(name, config)

    bindings.nixlAgent = paused
