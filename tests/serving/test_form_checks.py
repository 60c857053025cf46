import json
from typing import Any

import pytest
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from app.serving.field_error import FieldError
from app.serving.form_checks import MAX_ITEMS, asks_for_form, check_form

LARGE = {"type": "array", "minItems": 10**9}
TAG = {
    "type": "structural_tag",
    "format": {"type": "json_schema", "json_schema": {**LARGE, "items": {"type": "integer"}}},
}


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)


def tools(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": LARGE}}, "structured_outputs"),
        ({"structured_outputs": {"json": json.dumps(LARGE)}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"properties": {"a": {"maxProperties": 1e9}}}}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"anyOf": [LARGE]}}}},
            "response_format",
        ),
        ({"tools": tools({"type": "object", "properties": {"a": LARGE}})}, "tools"),
    ],
)
def test_a_form_that_would_fill_the_memory_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError, match=f"may be {MAX_ITEMS} at most, not 1e\\+09") as refused:
        check_form(chat(**fields))
    assert (refused.value.status_code, refused.value.param) == (400, param)


@pytest.mark.parametrize("form", [{"choice": ["a"] * 5001}, {"json": {"enum": list(range(5001))}}])
def test_a_choice_of_too_many_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="may have 5000 values at most, not 5001"):
        check_form(chat(structured_outputs=form))


@pytest.mark.parametrize("pattern", ["^[a-z]{2001}$", "(a{3}){1,99999}", "a{99999999999999999999}"])
def test_a_pattern_that_repeats_too_often_is_refused(pattern: str) -> None:
    with pytest.raises(FieldError, match="2000 times at most"):
        check_form(chat(structured_outputs={"json": {"type": "string", "pattern": pattern}}))


@pytest.mark.parametrize("key", ["regex", "grammar", "json"])
@pytest.mark.parametrize(
    ("expression", "says"),
    [("(" * 101 + "a" + ")" * 101, "nest deeper than 100"), ("a" * 50_001, "50000 characters at most, not 50001")],
)
def test_an_expression_that_a_library_would_recurse_over_is_refused(key: str, expression: str, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        check_form(chat(structured_outputs={key: {"pattern": expression} if key == "json" else expression}))


@pytest.mark.parametrize("level", ['{"anyOf":[', '{"type":"array","items":', '{"not":'])
def test_a_schema_in_a_text_nests_no_deeper_than_a_body(level: str) -> None:
    end = {"[": "]}", ":": "}"}[level[-1]]
    text = level * 200 + "{}" + end * 200
    with pytest.raises(FieldError, match="deeper than 100 levels"):
        check_form(chat(structured_outputs={"json": text}))
    check_form(chat(structured_outputs={"json": level * 40 + "{}" + end * 40}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"structured_outputs": {"regex": "[0-9]{100000}"}},
        {"structured_outputs": {"regex": "(a)" * 200 + r"\(" * 200}},
        {"structured_outputs": {"json": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2,}(x{,7}){}$"}}},
        {"structured_outputs": {"json": {"type": "array", "minItems": 3, "maxItems": MAX_ITEMS}}},
        {"structured_outputs": {"json": {"type": "string", "maxLength": 10**9}}},
        {"structured_outputs": {"json": "{ minItems"}},
        {"structured_outputs": {"choice": ["minItems", "1000000000"]}},
        {"structured_outputs": {"json": {"properties": {"minItems": {"type": "integer"}}}}},
        {"tools": tools({"type": "object"})},
    ],
)
def test_all_others_pass(fields: dict[str, Any]) -> None:
    check_form(chat(**fields))


def test_beams_have_a_length_penalty_that_can_be_computed() -> None:
    check_form(CompletionRequest(prompt="a", length_penalty=2.0))
    with pytest.raises(FieldError, match="from -16 to 16, not 1e\\+30"):
        check_form(CompletionRequest(prompt="a", length_penalty=1e30))


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"tools": tools({"type": "object"}), "tool_choice": "auto"}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"tools": tools({"type": "object"}), "tool_choice": "required"}, True),
    ],
)
def test_whether_a_grammar_is_made(fields: dict[str, Any], asks: bool) -> None:
    assert asks_for_form(chat(**fields)) is asks
