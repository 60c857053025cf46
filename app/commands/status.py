"""`tierserve status`: what the tiers of the running application hold, node by node."""

import json
from typing import Any

import click

from app.errors import ServingError
from app.local.quiet import quiet_ray, quiet_vllm
from app.local.ray_token import use_ray_token
from app.local.record import living_runs

MIB = 1 << 20


@click.command("status")
@click.option("--address", help="Ray cluster; default: the run on this machine, else Ray's own `auto`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(address: str | None, as_json: bool) -> None:
    """Applications, replicas, and what each node's cache holds."""
    quiet_vllm()
    report = read_status(address)
    if as_json:
        click.echo(json.dumps(report))
        return
    for name, application in report["applications"].items():
        click.echo(f"{name}: {application['status']}")
        for deployment, states in application["deployments"].items():
            click.echo(f"  {deployment}: {', '.join(f'{count} {state}' for state, count in states.items())}")
    for cache in report["caches"]:
        click.echo(_cache_line(cache))
    for url in report["metrics"]:
        click.echo(f"metrics {url}")


def read_status(address: str | None) -> dict[str, Any]:
    """Raises ServingError if there is no cluster."""
    runs = living_runs()
    where = address or (runs[0].ray_address if runs else "auto")
    use_ray_token()
    import ray
    from ray import serve

    from app.tiers.node_cache import node_caches

    try:
        ray.init(address=where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ServingError(f"no Ray cluster at {where}: start one with `make serve` ({error})") from None
    quiet_ray()
    applications = {
        name: {
            "status": str(application.status.value),
            "deployments": {key: dict(one.replica_states) for key, one in application.deployments.items()},
        }
        for name, application in serve.status().applications.items()
    }
    return {
        "applications": applications,
        "caches": ray.get([cache.status.remote() for cache in node_caches()], timeout=30),
        "metrics": [
            f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for node in ray.nodes()
            if node["Alive"]
        ],
    }


def _cache_line(cache: dict[str, Any]) -> str:
    return (
        f"cache {cache['key']} on node {cache['node_id'][:8]}: {_state(cache)}, {len(cache['replicas'])} replicas, "
        f"{cache['restarts']} restarts, L1 {_l1(cache)}, L2 {_l2(cache)}"
    )


def _state(cache: dict[str, Any]) -> str:
    if cache["healthy"]:
        return "healthy"
    down = [str(one.get("path", one.get("type"))) for one in cache.get("l2", ()) if not one.get("is_healthy")]
    if down and not cache.get("error"):
        return f"serving without L2 (look at {', '.join(down)})"
    return f"not healthy ({cache.get('error') or 'starting'})"


def _l1(cache: dict[str, Any]) -> str:
    """A server that does not answer says of neither tier anything: what they hold is not known, not nothing."""
    l1 = cache.get("l1")
    return f"{l1['used_bytes'] / MIB:,.0f} of {l1['capacity_bytes'] / MIB:,.0f} MiB" if l1 else "unreachable"


def _l2(cache: dict[str, Any]) -> str:
    if "l2" not in cache:
        return "unreachable"
    return ", ".join(f"{one.get('type')} {'ok' if one.get('is_healthy') else 'DOWN'}" for one in cache["l2"]) or "off"
