"""Why NIXL refused: lines of its own and UCX's logs, captured but for those of RDMA, and the sentence they become."""

from __future__ import annotations

import pytest

from pdbench.probe.transfer.nixl import NixlRefused
from pdbench.probe.transfer.refusals import complaints, explained

NO_DEVICE = """\
[1796015935.039706] [vm:16854:0] ucp_context.c:1508 UCX  WARN  network device 'mlx5_0:1' is not available, please use \
one or more of: 'eth0'(tcp), 'lo'(tcp)
[1796015935.055053] [vm:16854:0] select.c:722  UCX  ERROR   no active messages transport to <no debug data>: \
self/memory - no peer failure handler, cma/memory - no am bcopy
W1130 05:18:55.055066   16854 ucx_enums.cpp:58] Unexpected UCX error: Destination is unreachable
E1130 05:18:55.055124   16854 ucx_utils.cpp:635] nixlUcxWorker x:0: UCX endpoint create failed: failed to create ep
"""
NO_TRANSPORT = """\
[1796015933.270724] [vm:16825:0] ucp_context.c:1508 UCX  WARN  transport 'rc' is not available, please use one or more \
of: cma, mm, posix, self, shm, sm, sysv, tcp
[1796015933.270741] [vm:16825:0] ucp_context.c:1770 UCX  ERROR no usable transports/devices (asked rc on network:lo)
"""
NO_HANDLER = """\
[1796015932.441231] [vm:16807:0] select.c:722  UCX  ERROR   no active messages transport to <no debug data>: \
posix/memory - no peer failure handler
"""
NO_CUDA = """\
E1130 05:18:51.697095   16800 ucx_utils.cpp:674] nixlUcxContext x: VRAM memory is detected as host by UCX. UCX is \
likely not configured with CUDA/ROCm support. VRAM registration cannot proceed.
E1130 05:18:51.697132   16800 nixl_agent.cpp:483] registerMem: registration failed for the specified or all backends
"""
NO_MEMLOCK = """\
[1796015932.4] [gpu1:16807:0] ib_md.c:287  UCX  ERROR ibv_reg_mr(address=0x7f, length=536870912, access=0xf) failed: \
Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' (current: 8192 kbytes)
"""
NO_PERMISSION = """\
[1796015932.4] [vm:16807:0] cma_ep.c:90 UCX  ERROR process_vm_readv(pid=71 length=8192) returned -1: \
Operation not permitted
"""


@pytest.mark.parametrize(
    ("log", "sentence", "hint"),
    [
        (NO_DEVICE, "UCX sees no network device mlx5_0:1 (UCX_NET_DEVICES)", "'eth0'(tcp), 'lo'(tcp)"),
        (NO_TRANSPORT, "UCX has no transport rc here (UCX_TLS)", "cma, mm, posix"),
        (NO_HANDLER, "no transport that UCX may use can tell that a peer died", "such as cma or tcp"),
        (NO_CUDA, "cannot tell GPU memory from host memory", "--memory dram"),
        (NO_MEMLOCK, "the NIC's driver will not register this memory (Cannot allocate memory)", "ulimit -l"),
        (
            NO_PERMISSION,
            "may not copy from the other process (cma, process_vm_readv: Operation not permitted)",
            "CAP_SYS_PTRACE",
        ),
    ],
    ids=["device", "transport", "handler", "cuda", "memlock", "permission"],
)
def test_known_refusals(log: str, sentence: str, hint: str) -> None:
    error = explained(NixlRefused("do it", "nixlBackendError", "NIXL_ERR_BACKEND"), f"noise\n{log}more noise\n")
    assert str(error).startswith("NIXL could not do it: ") and sentence in str(error)
    assert hint in error.hint and error.exit_code == 4 and "\n" not in str(error)


def test_an_unknown_refusal_is_told_in_its_own_words() -> None:
    log = "E1130 05:18:51.6   16800 x.cpp:6] the moon is in the wrong phase\n"
    assert "the moon is in the wrong phase" in str(explained(NixlRefused("do it", "nixlX", "NIXL_ERR_X"), log))
    assert str(explained(NixlRefused("do it", "nixlX", "NIXL_ERR_X"), "")) == "NIXL could not do it: nixlX."


def test_errors_come_before_warnings_and_each_once() -> None:
    assert [text[:20] for text in complaints(NO_DEVICE + NO_DEVICE)] == [
        "no active messages t",
        "nixlUcxWorker x:0: U",
        "network device 'mlx5",
        "Unexpected UCX error",
    ]
