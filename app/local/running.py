"""Is what holds a port an application of ours? It is asked over HTTP: the note of a run only says that one was started.

A run of `tierserve serve` is found by its note, one that `serve deploy` started on this machine by what Ray Serve's
proxy says of its routes and by how our ingress answers `/health`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from app.local.record import RunRecord, living_runs

_ANSWER_S = 2.0
_HEALTHY = {"status": "ok"}  # app.serving.ingress
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1"}


@dataclass(frozen=True)
class Running:
    """An application of ours that holds a port."""

    url: str
    names: tuple[str, ...]
    pid: int | None
    """Of its `tierserve serve`; None if it was deployed to a Ray that runs here."""
    healthy: bool

    def told(self) -> str:
        who = f"`tierserve serve`, process {self.pid}" if self.pid else "deployed to a Ray on this machine"
        state = "it answers" if self.healthy else "it does not answer: it is starting or stopping"
        stop = f"Ctrl-C or `kill {self.pid}`" if self.pid else "`serve shutdown`"
        return f"{self.url} is held by {', '.join(self.names)} ({who}; {state}); {stop} stops it"


def running_at(host: str, port: int) -> Running | None:
    """None: nobody listens there, or somebody else. Blocks for a few seconds at most."""
    url = f"http://{_WILDCARDS.get(host, host)}:{port}"
    noted = next((run for run in living_runs() if run.url.endswith(f":{port}")), None)
    with httpx.Client(timeout=_ANSWER_S, trust_env=False) as http:
        routes = _json(http, f"{url}/-/routes")
        healthy = [
            name for prefix, name in _named(routes) if _json(http, url + prefix.rstrip("/") + "/health") == _HEALTHY
        ]
    return _noted(noted, url, healthy) if noted else Running(url, tuple(healthy), None, True) if healthy else None


def _noted(run: RunRecord, url: str, healthy: list[str]) -> Running:
    names = tuple(run.name.split(","))
    return Running(url, names, run.pid, set(names) <= set(healthy))


def _named(routes: object) -> list[tuple[str, str]]:
    """(route prefix, application) as Ray Serve's proxy lists them; [] of anything else."""
    pairs = routes.items() if isinstance(routes, Mapping) else ()
    return [(prefix, name) for prefix, name in pairs if isinstance(prefix, str) and isinstance(name, str)]


def _json(http: httpx.Client, url: str) -> object:
    try:
        return http.get(url).json()
    except (httpx.HTTPError, ValueError):
        return None
