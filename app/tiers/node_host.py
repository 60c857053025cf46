"""The address at which this node's replica and cache server are heard by routers."""

import os

import ray

VARIABLE = "TIERSERVE_NODE_HOST"


def node_host() -> str:
    """Ray's address of this node, unless the environment names another: an application that lives on one machine only
    (app.local.run) listens on the loopback address, for nobody else on the network has any business with it."""
    return os.environ.get(VARIABLE) or str(ray.util.get_node_ip_address())
