"""Two requests share pieces exactly when the engine could share their KV, whatever their shape; nothing raises."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.routing.prompt import MAX_SEQUENCES, PIECE_BYTES, Prompt, read_prompt

LONG = "The quick brown fox jumps over the lazy dog. " * 40


def chat(*contents: Any, **more: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    messages = [
        {"role": roles[min(at, 1) if at < 2 else 1 + at % 2], "content": one} for at, one in enumerate(contents)
    ]
    return {"model": "m", "messages": messages, **more}


def shared(one: Any, other: Any) -> int:
    """How many pieces two requests share, and a proof that they agree on nothing after the first difference."""
    left, right = read_prompt(one).pieces, read_prompt(other).pieces
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    assert not set(left[count:]) & set(right[count:])
    return count


class TestSharing:
    def test_a_longer_conversation_extends_a_shorter_one(self) -> None:
        short = chat(LONG, "Hello there, who are you?" * 20)
        long = {**short, "messages": [*short["messages"], {"role": "assistant", "content": LONG}]}
        assert shared(short, long) == len(read_prompt(short).pieces) > 0
        assert len(read_prompt(long).pieces) > len(read_prompt(short).pieces)

    def test_a_shared_system_prompt_is_shared_up_to_the_piece_where_users_differ(self) -> None:
        assert shared(chat(LONG, "one" * 200), chat(LONG, "two" * 200)) == len(LONG) // PIECE_BYTES

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "adapter"},
            {"cache_salt": "tenant"},
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            {"chat_template": "{{ x }}"},
            {"chat_template_kwargs": {"thinking": True}},
            {"reasoning_effort": "high"},
            {"documents": [{"title": "t", "text": "x"}]},
        ],
    )
    def test_what_changes_the_beginning_of_the_prompt_shares_nothing(self, change: dict[str, Any]) -> None:
        assert shared(chat(LONG), chat(LONG, **change)) == 0

    @pytest.mark.parametrize(
        "same", [{"temperature": 0.5}, {"max_tokens": 9}, {"user": "u"}, {"stream": True}, {"n": 2}]
    )
    def test_what_only_changes_sampling_shares_everything(self, same: dict[str, Any]) -> None:
        assert read_prompt(chat(LONG)).pieces == read_prompt(chat(LONG, **same)).pieces

    def test_model_and_salt_cannot_run_into_each_other(self) -> None:
        one, other = chat(LONG, model="a", cache_salt="b\0c"), chat(LONG, model="a\0b", cache_salt="c")
        one["model"], other["model"] = "a", "a\0b"
        assert shared(one, other) == 0

    def test_text_parts_read_like_their_lines(self) -> None:
        parts = [{"type": "text", "text": LONG}, {"type": "text", "text": "more" * 100}]
        assert read_prompt(chat(parts)).pieces == read_prompt(chat(LONG + "\n" + "more" * 100)).pieces

    def test_images_differ_by_content_and_do_not_lengthen_the_prompt(self) -> None:
        def picture(data: str) -> dict[str, Any]:
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
            return chat([{"type": "text", "text": LONG}, image, {"type": "text", "text": LONG}])

        one, other = picture("A" * 100_000), picture("B" * 100_000)
        assert shared(one, picture("A" * 100_000)) == len(read_prompt(one).pieces)
        assert 0 < shared(one, other) < len(read_prompt(one).pieces)
        assert read_prompt(one).size < 2 * len(LONG) + 200

    def test_tool_calls_and_their_results_are_part_of_the_prompt(self) -> None:
        def with_call(argument: str) -> dict[str, Any]:
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": argument}}
            body = chat(LONG)
            body["messages"] += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": LONG},
            ]
            return body

        assert shared(with_call("{}"), with_call("[]")) < len(read_prompt(with_call("{}")).pieces)

    def test_text_cannot_imitate_a_frame(self) -> None:
        honest = {"messages": [{"role": "user", "content": "a" * 300}, {"role": "assistant", "content": "b" * 300}]}
        forged = {"messages": [{"role": "user", "content": "a" * 300 + "\0\1assistant\0\3" + "b" * 300}]}
        assert read_prompt(honest).pieces[-1] != read_prompt(forged).pieces[-1]

    @given(st.text(min_size=300, max_size=900), st.text(max_size=300), st.text(max_size=300))
    def test_pieces_are_shared_exactly_as_far_as_texts_agree(self, head: str, left: str, right: str) -> None:
        one, other = (head + left).encode("utf-8", "surrogatepass"), (head + right).encode("utf-8", "surrogatepass")
        agree = next(
            (at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other))
        )
        if "\0" not in head + left + right:
            assert shared({"prompt": head + left}, {"prompt": head + right}) == agree // PIECE_BYTES


class TestShapes:
    @pytest.mark.parametrize(
        ("body", "form", "sequences"),
        [
            ({"prompt": LONG}, "text", 1),
            ({"prompt": [LONG, LONG]}, "text", 2),
            ({"prompt": list(range(200))}, "tokens", 1),
            ({"prompt": [list(range(200)), list(range(99))]}, "tokens", 2),
            ({"token_ids": list(range(200))}, "tokens", 1),
            ({"prompt_embeds": b"x" * 900}, "embeds", 1),
            ({"input": LONG}, "text", 1),
            ({"input": [LONG] * 3}, "text", 3),
            ({"input": [{"role": "user", "content": LONG}], "instructions": "be short"}, "chat", 1),
            ({"messages": [[{"role": "user", "content": LONG}]] * 2}, "chat", 2),
            ({"text_1": LONG, "text_2": [LONG, "x"]}, "text", 2),
            ({"queries": [LONG, LONG], "documents": [LONG, "x"]}, "text", 2),
            ({"query": LONG, "documents": ["a", "b", "c"]}, "text", 3),
            ({"system": LONG, "messages": [{"role": "user", "content": "hi"}]}, "chat", 1),
            ({"tokens": [1, 2]}, "none", 0),
            ({"prompt": []}, "none", 0),
            ({}, "none", 0),
        ],
    )
    def test_every_endpoint_is_read(self, body: dict[str, Any], form: str, sequences: int) -> None:
        for request in (body, SimpleNamespace(**body)):
            prompt = read_prompt(request)
            assert (prompt.form, len(prompt.sequences), prompt.problem) == (form, sequences, None)

    def test_vllm_models_read_like_their_json(self) -> None:
        completion = pytest.importorskip("vllm.entrypoints.openai.completion.protocol").CompletionRequest
        chatting = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionRequest
        tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
        parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
        for kind, body in (
            (completion, {"model": "m", "prompt": LONG, "cache_salt": "s"}),
            (completion, {"model": "m", "prompt": list(range(300))}),
            (chatting, chat(LONG, parts, cache_salt="s")),
        ):
            assert read_prompt(kind(**body)) == read_prompt(body)
        with_tools = read_prompt(chatting(**chat(LONG, tools=tools)))
        assert with_tools.problem is None
        assert len(with_tools.pieces) >= len(LONG) // PIECE_BYTES

    def test_the_model_of_the_route_counts_when_the_request_names_none(self) -> None:
        assert read_prompt({"prompt": LONG}, model="a").pieces != read_prompt({"prompt": LONG}, model="b").pieces


class Hostile:
    """Everything about it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


class TestNeverRaises:
    @pytest.mark.parametrize(
        "request_",
        [
            None,
            7,
            object(),
            {"messages": 5},
            {"messages": [None, 3]},
            {"prompt": [-1]},
            {"prompt": [2**40]},
            {"prompt": [1, "a"]},
            {"prompt": {"prompt_embeds": "x"}},
            {"messages": [{"role": "user", "content": nested(3000)}]},
            {"messages": [{"role": "user", "content": [{"type": "x", "deep": nested(3000)}]}]},
            {"prompt": "\ud800" * 400},
            {"model": 3, "cache_salt": 4, "prompt": LONG},
        ],
    )
    def test_on_nonsense(self, request_: Any) -> None:
        assert isinstance(read_prompt(request_), Prompt)

    def test_on_objects_that_raise(self) -> None:
        for request in (Hostile(), {"messages": Hostile()}, {"messages": [Hostile()]}, {"prompt": Hostile()}):
            prompt = read_prompt(request)
            assert prompt.form == "none"
            assert "RuntimeError" in str(prompt.problem)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(["messages", "role", "content", "prompt", "input", "text"]), inner, max_size=4
                )
            ),
            max_leaves=12,
        )
    )
    def test_on_anything_shaped_like_json(self, request_: Any) -> None:
        prompt = read_prompt(request_)
        assert len(prompt.sequences) == len(prompt.sizes) <= MAX_SEQUENCES
        hash(prompt.pieces[-1] if prompt.pieces else 0)


class TestBounds:
    def test_longer_than_the_bound_is_cut_and_says_so(self) -> None:
        prompt = read_prompt({"prompt": "x" * 9000}, max_bytes=4096)
        assert (prompt.size, prompt.truncated) == (4096, True)
        assert prompt.pieces == read_prompt({"prompt": "x" * 4096}).pieces

    def test_a_batch_is_represented_by_its_first_prompts(self) -> None:
        assert len(read_prompt({"prompt": ["a"] * 1000}).sequences) == MAX_SEQUENCES

    def test_cost_grows_linearly(self) -> None:
        """Sixteen times the text costs at most forty times as much, in the best of a few alternating rounds."""

        def cost(length: int) -> float:
            body = {"prompt": "x" * length}
            started = time.perf_counter()
            read_prompt(body)
            return time.perf_counter() - started

        rounds = [(cost(62_500), cost(1_000_000)) for _ in range(7)]
        assert min(long for _, long in rounds) < 40 * min(short for short, _ in rounds)
