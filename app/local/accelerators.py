"""Is `accelerator` a type of accelerator that Ray has a name for? Asked of Ray Serve LLM's own configuration."""

from pydantic import ValidationError

from app.errors import SettingsError
from app.settings import ModelSettings


def check_accelerator(model: ModelSettings) -> None:
    """Imports Ray Serve LLM (seconds).

    Raises:
        SettingsError: with what was meant, if it is a matter of capitals.
    """
    named = model.accelerator
    if named in ("cpu", "gpu") or _is_known(named):
        return
    meant = f"did you mean {named.upper()}?" if _is_known(named.upper()) else "write cpu, gpu, or a type such as L40S"
    raise SettingsError(f"model {model.id}: accelerator: Ray has no type {named!r}; {meant}", ("accelerator",))


def _is_known(accelerator: str) -> bool:
    from ray.serve.llm import LLMConfig

    try:
        LLMConfig(model_loading_config={"model_id": "m"}, accelerator_type=accelerator)
    except ValidationError:
        return False
    return True
