"""What a file asks for and neither this machine nor Ray has: told before anything is started."""

from typing import Any

import pytest

from app.errors import SettingsError
from app.local.accelerators import check_accelerator
from app.local.preflight import check_keys
from app.settings import AuthSettings, ModelSettings, load_settings


def model(**fields: Any) -> ModelSettings:
    return load_settings({"models": [{"id": "m", **fields}]}).models[0]


def auth(**entry: Any) -> AuthSettings:
    return load_settings({"models": [{"id": "m"}], "auth": {"api_keys": [{"tenant": "a", **entry}]}}).auth


def test_a_key_that_the_environment_lacks_is_named_with_the_remedy() -> None:
    with pytest.raises(
        SettingsError, match=r"KEY_OF_A \(tenant a\) is not set here: export KEY_OF_A=\.\.\. before serving"
    ):
        check_keys(auth(key_env="KEY_OF_A"), {"KEY_OF_A": ""})
    check_keys(auth(key_env="KEY_OF_A"), {"KEY_OF_A": "12345678"})
    check_keys(auth(key="12345678"), {})


@pytest.mark.parametrize("accelerator", ["cpu", "gpu", "L40S"])
def test_accelerators_that_ray_has(accelerator: str) -> None:
    check_accelerator(model(accelerator=accelerator))


@pytest.mark.parametrize(
    ("accelerator", "says"), [("l40s", "did you mean L40S?"), ("L-40", "write cpu, gpu, or a type")]
)
def test_one_that_ray_has_not_is_told(accelerator: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_accelerator(model(accelerator=accelerator))
    assert says in str(caught.value)
