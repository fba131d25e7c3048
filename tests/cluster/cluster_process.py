"""A Ray cluster on this machine: a head without CPUs, and nodes with one CPU each.

    python cluster_process.py NODES

Prints the address. A line `kill` on standard input kills the node that came last. A line
`add NAME=VALUE` starts one whose environment has that variable. The end of the input ends the cluster.
"""

from __future__ import annotations

import os
import sys

from ray.cluster_utils import Cluster

STORE = 100 << 20  # bytes of Ray's object store on each node; 80 MB is the least


def main(count: int) -> None:
    options = {"object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**options, **head})
    nodes = [cluster.add_node(num_cpus=1, wait=False, **options) for _ in range(count)]
    cluster.wait_for_nodes()
    print(cluster.address, flush=True)
    for line in sys.stdin:
        order, _, setting = line.strip().partition(" ")
        if order == "kill":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
        else:
            name, _, value = setting.partition("=")
            before = dict(os.environ)
            os.environ[name] = value
            nodes.append(cluster.add_node(num_cpus=1, **options))
            os.environ.clear()
            os.environ.update(before)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
