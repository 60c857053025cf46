"""`python -m cluster.probe`: what the Job of stage 5 runs. Prints the report, one line of JSON, to stdout."""

import json
import os
import secrets
import sys
import time

import click
import httpx

from app.errors import TierserveError
from cluster.probe.client import Endpoint
from cluster.probe.replicas import running
from cluster.probe.run import Plan, run


@click.command()
@click.option("--url", required=True, help="Base of the endpoint, without /v1.")
@click.option("--dashboard", required=True, help="Ray's dashboard.")
@click.option("--application", required=True)
@click.option("--model", required=True)
@click.option("--chunk-tokens", required=True, type=int)
@click.option("--bench", is_flag=True, help="The sweep and the dialogue too.")
@click.option("--nonce", default=lambda: secrets.token_hex(4), help="Makes the prompts new.")
def main(url: str, dashboard: str, application: str, model: str, chunk_tokens: int, bench: bool, nonce: str) -> None:
    """Prove that what one node computes another reads."""
    with httpx.Client(timeout=600) as http:
        endpoint = Endpoint(http, url, model, os.environ.get("TIERSERVE_API_KEY", ""))
        try:
            replicas = running(http, dashboard, application, os.environ.get("RAY_AUTH_TOKEN", ""))
            report = run(endpoint, replicas, Plan(chunk_tokens, nonce, bench), time.sleep)
        except TierserveError as error:
            click.echo(f"probe: {error}", err=True)
            sys.exit(1)
    click.echo(json.dumps(report))


if __name__ == "__main__":
    main()
