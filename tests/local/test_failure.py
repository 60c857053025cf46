"""Tracebacks as Serve hands them on become one line that a person can act on."""

from pathlib import Path

import pytest

from app.local.failure import cause, remedy

HEAD = """\x1b[36mray::ServeReplica:one:engine:m.initialize_and_get_metadata()\x1b[39m (pid=1, ip=192.0.2.2)
  File "/lib/concurrent/futures/_base.py", line 456, in result
    return self.__get_result()
           ^^^^^^^^^^^^^^^^^^^
RuntimeError: Traceback (most recent call last):
  File "/app/serving/server.py", line 50, in __init__
    await super().__init__(llm_config, **kwargs)
"""
CONFIG = """RuntimeError: Failed to create vLLM engine config: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (max_position_embeddings=8.0).
 [type=value_error, input_value=ArgsKwargs((), {'model': ...nderer_num_workers': 1}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error"""
FIELD = """RuntimeError: Failed to create vLLM engine config: 1 validation error for SchedulerConfig
max_num_seqs
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal"""
ENGINE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
PRINTED = """(EngineCore pid=7) ERROR 11-29 19:39:02 [core.py:1374] ValueError: logged form
(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)     raise ValueError(
(EngineCore pid=7) ValueError: (0.18 GiB KV cache is needed, which is larger than the available KV cache memory
RuntimeError: of another process
"""


def test_the_last_error_is_the_cause() -> None:
    assert cause(f"{HEAD}ValueError: no such thing") == "no such thing"
    assert cause(f"{HEAD}app.errors.ServingError: replica r has no L1 cache: gone") == "replica r has no L1 cache: gone"


def test_what_only_pydantic_says_is_left_out() -> None:
    assert cause(HEAD + CONFIG) == (
        "User-specified max_model_len (9) is greater than the derived max_model_len (max_position_embeddings=8.0)."
    )
    assert cause(HEAD + FIELD) == "max_num_seqs Input should be greater than or equal to 1"


def test_the_engines_own_error_is_found_in_the_logs(tmp_path: Path) -> None:
    (tmp_path / "worker-a-1.err").write_text(PRINTED)
    (tmp_path / "worker-b-2.err").write_text("nothing of an engine\n")
    assert cause(HEAD + ENGINE, tmp_path).startswith("(0.18 GiB KV cache is needed")
    assert cause(HEAD + ENGINE, tmp_path / "none").startswith("Engine core initialization failed")
    assert cause(HEAD + ENGINE).startswith("Engine core initialization failed")


def test_a_long_story_is_cut() -> None:
    said = cause(f"{HEAD}ValueError: {'word ' * 200}")
    assert len(said) < 330
    assert said.endswith(" ...")
    assert cause(f"{HEAD}ValueError: It is so. {'word ' * 200}") == "It is so."


def test_text_without_an_error_is_its_last_line() -> None:
    assert cause('nothing known\n  File "x", line 1\nthe replica\'s process died\n') == "the replica's process died"
    assert cause("") == ""


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        (cause(HEAD + CONFIG), "lower `engine.max_model_len`"),
        ("(0.18 GiB KV cache is needed, which is larger", "raise `l0.gib` or lower `engine.max_model_len`"),
        ("Please pass the argument `trust_remote_code=True`", "set `engine.trust_remote_code: true`"),
        ("x/y is not a local folder and is not a valid model identifier", "look at the model's `source`"),
        ("replica r has no L1 cache: it did not start", "look at `l1` and `l2`"),
    ],
)
def test_what_helps(said: str, helps: str) -> None:
    found = remedy(said)
    assert found is not None
    assert found.startswith(helps)


def test_what_nobody_knows_has_no_remedy() -> None:
    assert remedy("the moon is full") is None
