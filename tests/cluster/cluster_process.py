"""A Ray cluster on this machine: a head without CPUs, and nodes with one CPU each.

    python cluster_process.py NODES

Prints the address. Each line on standard input kills a node; the end of the input ends the cluster.
"""

from __future__ import annotations

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
    for _ in sys.stdin:
        cluster.remove_node(nodes.pop(), allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
