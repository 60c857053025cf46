"""`tierserve serve [FILE]`: the foreground run behind `make serve`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import click

from app.local.cache_state import CacheLosses, read_pulses
from app.local.run import LocalRun
from app.local.serve_file import load_serve_file
from app.local.serve_state import Losses, read_deployments

_LOOK_EVERY_S = 1.0
DEFAULT_FILE = Path(__file__).parents[2] / "serve_configs" / "local.yaml"


@click.command("serve")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=DEFAULT_FILE)
@click.option("--port", type=click.IntRange(1, 65535), help="Listen here instead of the file's http_options.port.")
def command(file: Path, port: int | None) -> None:
    """Serve FILE (default: serve_configs/local.yaml) on this machine until Ctrl-C."""
    stop = threading.Event()
    _on_signals(stop)
    try:
        with LocalRun(load_serve_file(file).on_port(port), _say) as run:
            _say(_welcome(run))
            _watch(stop)
    except KeyboardInterrupt:
        pass  # ended by Ctrl-C is how a serve ends
    # Nothing of it is left but this process, and Python would take seconds to put away what vLLM has imported.
    sys.stdout.flush()
    os._exit(0)


def _watch(stop: threading.Event) -> None:
    replicas, caches = Losses(), CacheLosses()
    while not stop.wait(_LOOK_EVERY_S):
        for line in [*replicas.changes(read_deployments()), *caches.changes(read_pulses())]:
            _say(f"{time.strftime('%H:%M:%S')}  {line}")


def _on_signals(stop: threading.Event) -> None:
    """The first Ctrl-C (or SIGTERM) ends the run; while it is starting that is an exception, afterwards an event.

    Later ones are ignored until it is being ended, where a second one is welcome (app.local.run).
    """

    def handle(number: int, _: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        stop.set()
        raise KeyboardInterrupt(number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, handle)


def _say(line: str) -> None:
    click.echo(line)
    sys.stdout.flush()


def _welcome(run: LocalRun) -> str:
    model = run.file.applications[0].settings.models[0].id
    body = (
        f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Why is the sky blue?"}}], "max_tokens": 48}}'
    )
    return f"""
Ready: {run.url}/v1

  curl -i {run.url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{body}'

  from openai import OpenAI
  client = OpenAI(base_url="{run.url}/v1", api_key="none")
  answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content, answer.usage.prompt_tokens_details)

Ctrl-C stops everything.
"""
