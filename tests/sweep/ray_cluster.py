"""A Ray cluster of two nodes on this host, as a process: prints its address, then obeys.

`lose` on stdin kills the second node with all that runs on it; the end of stdin ends everything.
"""

from __future__ import annotations

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import psutil
from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 1, "object_store_memory": 80 << 20}


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    second = cluster.add_node(**SMALL)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "lose":
            (raylet,) = second.all_processes["raylet"]
            process = psutil.Process(raylet.process.pid)
            for one in [process, *process.children(recursive=True)]:
                one.kill()
            print("lost", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
