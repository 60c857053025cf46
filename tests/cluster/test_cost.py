"""The arithmetic of a plan, by hand for one case and by its properties for all."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from app.errors import ClusterError
from cluster.cost.command import command
from cluster.cost.model import GIB, Load, Model, plan
from cluster.cost.prices import parse_own, prices
from cluster.instances import instance, instances

QWEN = Model("qwen2-7b", 28, 4, 128, 7.62e9)


def test_kv_bytes_per_token() -> None:
    assert QWEN.kv_bytes == 2 * 28 * 4 * 128 * 2 == 57_344


def test_one_plan_by_hand() -> None:
    load = Load(context=8000, concurrency=64, reuse=0.6, working_set=5_000_000)
    made = plan(QWEN, instance("ml.g6e.4xlarge"), load, 3.0)
    assert made is not None
    room = 45776 / 1024 * GIB * 0.9 - 7.62e9 * 2
    assert made.l0_tokens == made.replicas * int(room / 57_344)
    assert (made.nodes, made.replicas, made.gpus_per_replica) == (2, 2, 1)
    assert made.l2_tokens == int(2 * 600e9 * 0.7 / 57_344)
    assert made.hit_l2 == 0.6
    assert made.usd_per_hour == 6.0


def test_a_model_that_does_not_fit() -> None:
    load = Load(context=8000, concurrency=1, reuse=0, working_set=1)
    assert plan(Model("32b", 64, 8, 128, 32.8e9), instance("ml.g6e.4xlarge"), load, 1) is None
    wide = plan(Model("32b", 64, 8, 128, 32.8e9), instance("ml.g6e.12xlarge"), load, 1)
    assert wide is not None
    assert wide.gpus_per_replica == 2


@given(
    st.sampled_from([i for i in instances() if i.gpus]),
    st.integers(100, 100_000),
    st.integers(1, 2000),
    st.floats(0, 1),
    st.integers(1, 10**10),
)
def test_every_plan_holds_its_load(machine: Any, context: int, concurrency: int, reuse: float, working: int) -> None:
    made = plan(QWEN, machine, Load(context, concurrency, reuse, working), 1.0)
    if made is None:
        return
    assert made.l0_tokens >= context * concurrency
    assert 0 <= made.hit_l0 <= made.hit_l1 <= made.hit_l2 <= reuse
    assert made.replicas * made.gpus_per_replica <= made.nodes * machine.gpus


def test_prices_must_be_confirmed_or_given() -> None:
    with pytest.raises(ClusterError, match=r"not HyperPod.*nobody has confirmed.*--price TYPE=USD"):
        prices({}, confirmed=False)
    assert prices({"ml.g6e.4xlarge": 3.7}, confirmed=False).usd_per_hour == {"ml.g6e.4xlarge": 3.7}
    assert "e385a0d348eda9cefd9806423e7725944dc249e4" in prices({}, confirmed=True).note


@pytest.mark.parametrize("entry", ["ml.g6e.4xlarge=cheap", "ml.g6e.4xlarge", "ml.g6e.4xlarge=-1", "ml.g6e.5xlarge=1"])
def test_bad_prices(entry: str) -> None:
    with pytest.raises(ClusterError):
        parse_own([entry])


ARGUMENTS = ["--context", "8000", "--concurrency", "64", "--reuse", "0.6", "--working-set", "5000000"]


def test_table_and_json() -> None:
    text = CliRunner().invoke(command, [*ARGUMENTS, "--prices-confirmed"], catch_exceptions=False).output
    assert "KV per token   = 2 (K and V) x layers" in text
    assert "ml.p5.48xlarge" in text
    assert "No speed is assumed" in text
    body = json.loads(CliRunner().invoke(command, [*ARGUMENTS, "--price", "ml.g6e.4xlarge=3.5", "--json"]).output)
    assert body["plans"][0]["usd_per_hour"] == 7.0
    assert body["prices"] == "given on the command line"


@pytest.mark.parametrize("option", ["--layers", "--kv-heads", "--head-dim", "--parameters"])
def test_a_model_of_nothing_is_refused(option: str) -> None:
    result = CliRunner().invoke(command, [*ARGUMENTS, "--prices-confirmed", option, "0"])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


def test_unknown_model_asks_for_the_numbers() -> None:
    with pytest.raises(ClusterError, match="--layers, --kv-heads, --head-dim, --parameters"):
        CliRunner().invoke(command, [*ARGUMENTS, "--model", "x", "--prices-confirmed"], catch_exceptions=False)
