from pathlib import Path

import vllm
from ray.llm._internal.serve.engines.vllm import vllm_engine

from app.serving.tokenization import attach_tokenization

REPAIRS = "app/serving/tokenization.py depends on it"


class State:
    serving_tokenization = "vllm's"


class Engine:
    def __init__(self, found: object) -> None:
        self._oai_serving_tokenization = found
        self._app_state = State()


def test_a_missing_tokenization_is_found_under_vllms_name() -> None:
    engine = Engine(None)
    attach_tokenization(engine)
    assert engine._oai_serving_tokenization == "vllm's"


def test_what_ray_found_itself_stays() -> None:
    engine = Engine("ray's")
    attach_tokenization(engine)
    assert engine._oai_serving_tokenization == "ray's"


def test_both_names_are_where_they_were() -> None:
    ray_source = Path(vllm_engine.__file__).read_text()
    assert "self._oai_serving_tokenization" in ray_source, f"Ray renamed _oai_serving_tokenization: {REPAIRS}"
    assert "self._app_state = state" in ray_source, f"Ray no longer keeps _app_state: {REPAIRS}"
    state = Path(vllm.__file__).parent / "entrypoints" / "launchers" / "api_server" / "app_state.py"
    assert "state.serving_tokenization" in state.read_text(), f"vLLM renamed serving_tokenization: {REPAIRS}"
