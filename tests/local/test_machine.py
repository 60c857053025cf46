"""Made-up machines: each thing that is missing is one line that names the remedy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import MachineError
from app.local.machine import (
    OBJECT_STORE_BYTES,
    Machine,
    _gpus,
    check_machine,
    check_resources,
    needed_bytes,
)
from app.settings import GiB, Settings, load_settings

FIT = Machine("Linux", "x86_64", frozenset({"avx2"}), 64 * GiB, 16 * GiB, 100 * GiB, 8, 0)


def settings(*models: dict[str, Any]) -> Settings:
    return load_settings({"models": [{"id": f"m{number}", **model} for number, model in enumerate(models)]})


def refusal(machine: Machine, of: Settings | None = None) -> str:
    with pytest.raises(MachineError) as caught:
        check_machine(of or settings({"replicas": 2}), machine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_fit_machine_passes() -> None:
    check_machine(settings({"replicas": 2}), FIT)


@pytest.mark.parametrize("other", [replace(FIT, system="Darwin"), replace(FIT, architecture="aarch64")])
def test_another_platform(other: Machine) -> None:
    assert refusal(other).endswith(f"needs Linux on x86-64; this is {other.system} on {other.architecture}")


def test_a_cpu_without_avx2() -> None:
    assert "use another machine, or the gpu extra" in refusal(replace(FIT, cpu_flags=frozenset({"sse4_2"})))
    check_machine(settings({"accelerator": "gpu"}), replace(FIT, cpu_flags=frozenset()))


def test_too_little_memory_says_how_much_and_what_to_lower() -> None:
    wanted = settings({"replicas": 2})
    message = refusal(replace(FIT, available_bytes=needed_bytes(wanted) - 1), wanted)
    assert "needs about 11.0 GiB of memory" in message
    assert "lower `replicas`, `l0.gib` or `l1.gib`" in message
    check_machine(wanted, replace(FIT, available_bytes=needed_bytes(wanted)))


def test_too_little_shared_memory() -> None:
    need = OBJECT_STORE_BYTES + GiB
    message = refusal(replace(FIT, shm_free_bytes=need - 1))
    assert "lower `l1.gib`, or enlarge it (mount -o remount,size=4G /dev/shm; in a container --shm-size)" in message
    check_machine(settings({}), replace(FIT, shm_free_bytes=need))


def test_no_disk(tmp_path: Path) -> None:
    message = refusal(replace(FIT, home_free_bytes=GiB))
    assert str(tmp_path / "home") in message
    assert "set TIERSERVE_HOME" in message


def test_memory_grows_with_replicas_pools_and_weights(tmp_path: Path) -> None:
    one = needed_bytes(settings({}))
    assert needed_bytes(settings({"replicas": 3})) == one + 2 * 4 * GiB
    assert needed_bytes(settings({"autoscaling": {"max_replicas": 3}})) == one + 2 * 4 * GiB
    assert needed_bytes(settings({"l1": {"gib": 5}})) == one + 4 * GiB
    assert needed_bytes(settings({"l0": {"gib": 3}})) == one + 2 * GiB
    assert needed_bytes(settings({"l1": {"enabled": False}, "l2": {"enabled": False}})) == one - GiB
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(2 * GiB)
    assert needed_bytes(settings({"source": str(tmp_path)})) == one + int(1.4 * GiB)


def test_models_pay_for_one_pool_only_if_they_share_it() -> None:
    shared = needed_bytes(settings({}, {}))
    assert needed_bytes(settings({}, {"l1": {"eviction_policy": "ARC"}})) == shared + GiB
    assert needed_bytes(settings({}, {"l2": {"path": "/elsewhere"}})) == shared + GiB
    check_machine(settings({}, {}), replace(FIT, shm_free_bytes=OBJECT_STORE_BYTES + GiB))
    refusal(replace(FIT, shm_free_bytes=OBJECT_STORE_BYTES + GiB), settings({}, {"l1": {"workers": 3}}))


def unplaceable(machine: Machine, *of: Settings) -> str:
    with pytest.raises(MachineError) as caught:
        check_resources(of, machine)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_more_cpus_than_there_are() -> None:
    wanted = settings({"num_cpus": 4, "replicas": 2})
    message = unplaceable(FIT, wanted)
    assert message.startswith("this file reserves 8.1 CPUs (m0 2 x 4, the rest for ingresses), this machine has 8: ")
    assert "lower `num_cpus` (0.5 does for a replica" in message
    check_resources([settings({"num_cpus": 3.9, "replicas": 2})], FIT)


def test_applications_share_the_machine() -> None:
    half = settings({"num_cpus": 4})
    check_resources([half], FIT)
    assert "reserves 8.2 CPUs" in unplaceable(FIT, half, half)


def test_autoscaling_needs_room_for_its_smallest_size() -> None:
    check_resources([settings({"num_cpus": 4, "autoscaling": {"min_replicas": 1, "max_replicas": 4}})], FIT)


def test_gpus_that_are_not_there() -> None:
    wide = {"accelerator": "gpu", "engine": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}
    assert "needs 4 GPUs, this machine has none" in unplaceable(FIT, settings(wide))
    assert "needs 1 GPU, this machine has none" in unplaceable(FIT, settings({"accelerator": "L40S"}))
    assert "needs 4 GPUs, this machine has 3" in unplaceable(replace(FIT, gpus=3), settings(wide))
    check_resources([settings(wide)], replace(FIT, gpus=4))
    check_resources([settings(wide)], replace(FIT, gpus=None))


def test_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    assert _gpus(tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert _gpus(tmp_path) == 2
    (tmp_path / "dxg").touch()
    assert _gpus(tmp_path) is None


def test_this_machine_can_be_read() -> None:
    machine = Machine.read()
    assert machine.system
    assert machine.available_bytes > 0
    assert machine.home_free_bytes > 0, "a home that does not exist yet is measured where it will be"
