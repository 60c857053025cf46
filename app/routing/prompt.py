"""Any request -> what a routing policy needs to know of its prompt: a bounded chain of piece hashes.

The request is first written out as one canonical byte stream, in the order a chat template writes it (options and
tools, then message after message), so that a longer conversation is an extension of a shorter one. The stream is cut
every `PIECE_BYTES` bytes, and piece i is hashed with the hash of piece i-1 as its seed. So one 64-bit number names a
whole prefix: two requests share pieces[i] exactly when their streams agree up to there, and a tree can compare a run of
pieces by looking at its last one. The chain starts from (form, model or adapter, tenant salt): prompts that an
engine would keep apart never share a piece.

What differs from the engine, knowingly: a template may put tools after the system text (we call the rest different, the
engine would share the system text), and the tail shorter than a piece is not represented (the engine shares whole
blocks only).
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import msgspec
import xxhash

PIECE_BYTES = 256
"""About 64 tokens of English text, and exactly 64 token ids. 512 halves the hashing and doubles the part of a match
lost to rounding.
"""
MAX_BYTES = 4_000_000
"""The stream is cut here (about a million tokens): what lies beyond cannot change which replica is best."""
MAX_SEQUENCES = 32
"""A batch is represented by its first prompts only."""
_BLOCK = 64
_digest = xxhash.xxh3_64_intdigest

Form = Literal["chat", "text", "tokens", "embeds", "none"]


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """What routing knows of one request. Immutable; a Struct and not a dataclass because it is made once per request
    (0.2 us against 0.8), and out of the garbage collector's sight because nothing in it can lead back to it.
    """

    form: Form
    model: str
    """Model id as the client named it, which for a LoRA adapter is the adapter's."""
    salt: str
    sequences: tuple[list[int], ...]
    """One chain of piece hashes per prompt of the request. Lists for speed; nobody changes them."""
    sizes: tuple[int, ...]
    """Bytes of each sequence's stream, whole pieces or not."""
    truncated: bool = False
    problem: str | None = None
    """Why the request could not be read, if it could not: it is then routed by load."""
    user: str = ""
    """Who the client says it asks for: names the conversation if nothing better does."""

    @property
    def pieces(self) -> list[int]:
        """The longest sequence: what a policy matches on."""
        sequences = self.sequences
        return sequences[0] if len(sequences) == 1 else max(sequences, key=len, default=[])

    @property
    def work(self) -> int:
        """Pieces of all sequences together: what an engine that knows none of them has to compute."""
        sequences = self.sequences
        return len(sequences[0]) if len(sequences) == 1 else sum(map(len, sequences))

    @property
    def size(self) -> int:
        return sum(self.sizes)


def read_prompt(
    request: object, *, model: str = "", piece_bytes: int = PIECE_BYTES, max_bytes: int = MAX_BYTES
) -> Prompt:
    """Read any request: a vLLM or Ray Serve LLM model, a dict, or something else.

    Never raises, never blocks; linear in the prompt (6 us for 8,000 characters, 0.6 ms for a million) and bounded by
    `max_bytes`. `model` is used when the request does not name one.
    """
    name, salt = model, ""
    try:
        get = _reader(request)
        given, salted, user = get("model"), get("cache_salt"), get("user")
        name = given if given and isinstance(given, str) else model
        salt = salted if salted and isinstance(salted, str) else ""
        form, streams = _streams(get, max_bytes)
        seed = _seed(form, name, salt)
        sequences, sizes, left, truncated = [], [], max_bytes, False
        for stream in streams:
            data = (stream if isinstance(stream, bytes) else stream.encode("utf-8", "surrogatepass"))[:left]
            size = len(data)
            left -= size
            sizes.append(size)
            sequences.append(chain(data, seed, piece_bytes))
            if left <= 0 or len(sizes) >= MAX_SEQUENCES:
                truncated = True
                break
        who = user if user and isinstance(user, str) else ""
        return Prompt(form, name, salt, tuple(sequences), tuple(sizes), truncated, None, who)
    except Exception as error:  # Contract: whatever a client sends, a request is routed.
        return Prompt("none", name, salt, (), (), problem=f"{type(error).__name__} while reading the prompt")


def chain(data: bytes, seed: int, piece_bytes: int = PIECE_BYTES) -> list[int]:
    """Hash every whole piece of `data`, each seeded with the hash before it. The remainder is left out."""
    digest, names = _digest, []
    for at in range(0, len(data) // piece_bytes, _BLOCK):
        # Cut by the block, a prompt of 31 pieces is hashed in 2.9 us instead of 5.5.
        count = min(_BLOCK, len(data) // piece_bytes - at)
        for piece in _cutter(piece_bytes, count).unpack_from(data, at * piece_bytes):
            seed = digest(piece, seed)
            names.append(seed)
    return names


@lru_cache(_BLOCK * 4)
def _cutter(piece_bytes: int, count: int) -> struct.Struct:
    return struct.Struct(f"{piece_bytes}s" * count)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as unsigned 32-bit numbers. Raises OverflowError or TypeError for what is not a token id."""
    return array("I", tokens).tobytes()


@lru_cache(1024)
def _seed(form: Form, model: str, salt: str) -> int:
    return xxhash.xxh3_64_intdigest(msgspec.json.encode((form, model, salt)))


# --- request shapes -------------------------------------------------------------------------------------------------

_Get = Callable[[str], Any]
_Streams = Iterable[str | bytes]

# What a chat template or tokenizer sees besides the messages. A field that is absent or None adds nothing.
_OPTIONS = (
    "tools",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "truncate_prompt_tokens",
    "system",
    "instructions",
)
_NO_OPTION = [None] * len(_OPTIONS)


def _reader(request: object) -> _Get:
    """A function from field name to value or None. Pydantic keeps fields in `__dict__`, which is ten times faster
    than a failing getattr.
    """
    if isinstance(request, dict):
        return request.get
    # Asking whether something is a Mapping costs more than all of this, so pydantic's models are told by their type.
    if hasattr(type(request), "__pydantic_fields__"):
        extra: dict[str, Any] | None = getattr(request, "__pydantic_extra__", None)
        return {**extra, **request.__dict__}.get if extra else request.__dict__.get
    if isinstance(request, Mapping):
        return request.get
    fields = getattr(request, "__dict__", None)
    return fields.get if isinstance(fields, dict) else lambda name: getattr(request, name, None)


def _streams(get: _Get, limit: int) -> tuple[Form, _Streams]:
    """Which kind of prompt, and one canonical stream for each prompt of the request."""
    messages = get("messages")
    if messages is None and (given := get("input")) is not None and _is_chat(given):
        messages = given
    if messages is not None:
        head = _head(get)
        items = messages if isinstance(messages, list) else list(messages)
        if not items or not isinstance(items[0], list):
            return "chat", (_conversation(head, items, limit),)
        return "chat", (_conversation(head, one, limit) for one in items[:MAX_SEQUENCES])
    for field in ("prompt", "input", "prompt_token_ids", "token_ids"):
        value = get(field)
        if value is not None:
            return _plain(value, _head(get), limit)
    embeds = get("prompt_embeds")
    if embeds is not None:
        items = embeds if isinstance(embeds, list) else [embeds]
        return "embeds", (bytes(one) if isinstance(one, bytes) else _json(one) for one in items[:MAX_SEQUENCES])
    for left, right in (
        ("queries", "documents"),
        ("queries", "items"),
        ("query", "documents"),
        ("data_1", "data_2"),
        ("text_1", "text_2"),
    ):
        if get(left) is not None and get(right) is not None:
            return "text", _pairs(get(left), get(right), _head(get), limit)
    return "none", ()


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and _is_message(value[0][0] if isinstance(value[0], list) and value[0] else value[0])
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or "content" in value)


def _plain(value: Any, head: str, limit: int) -> tuple[Form, _Streams]:
    """A completion's or embedding's prompt: text, token ids, or a list of either."""
    if isinstance(value, str):
        return "text", (head + _escape(value[:limit]),)
    if isinstance(value, Mapping):
        return "text", (head + _escape(_json(value).decode()),)
    items = list(value)
    if not items:
        return "none", ()
    if isinstance(items[0], int):
        return "tokens", (head.encode() + token_bytes(items[: limit // 4]),)
    if isinstance(items[0], str):
        return "text", (head + _escape(one[:limit]) for one in items[:MAX_SEQUENCES])
    return "tokens", (head.encode() + token_bytes(one[: limit // 4]) for one in items[:MAX_SEQUENCES])


def _pairs(left: Any, right: Any, head: str, limit: int) -> _Streams:
    """Scoring and reranking: each pair is one prompt of a cross-encoder, the left text first."""
    lefts = left if isinstance(left, list) else [left]
    rights = right if isinstance(right, list) else [right]
    if len(lefts) == 1:
        lefts = lefts * len(rights)
    for one, other in list(zip(lefts, rights, strict=False))[:MAX_SEQUENCES]:
        yield f"{head}{_content(one)[:limit]}\0\1{_content(other)[:limit]}"


def _head(get: _Get) -> str:
    values = list(map(get, _OPTIONS))
    present = (
        {}
        if values == _NO_OPTION
        else {name: value for name, value in zip(_OPTIONS, values, strict=True) if value is not None}
    )
    special = get("add_special_tokens")
    if special is not None and get("messages") is None and special is not True:
        present["add_special_tokens"] = special
    return f"\0\6{_escape(_json(present).decode())}" if present else ""


def _conversation(head: str, messages: Sequence[Any], limit: int) -> str:
    """Frames are NUL and a small number, and a NUL in the text is doubled, so no text can imitate a frame."""
    parts, left = [head], limit - len(head)
    for message in messages:
        get = _reader(message)
        text = f"\0\1{_escape(_text(get('role')) or '')}"
        if (name := get("name")) is not None:
            text += f"\0\2{_escape(str(name))}"
        text += f"\0\3{_content(get('content'))}"
        for mark, field in (
            ("\4", "tool_calls"),
            ("\5", "tool_call_id"),
            ("\7", "reasoning"),
            ("\7", "reasoning_content"),
        ):
            if (value := get(field)) is not None:
                text += f"\0{mark}{_escape(_json(value).decode())}"
        parts.append(text)
        left -= len(text)
        if left <= 0:
            break
    return "".join(parts)


def _content(content: Any) -> str:
    """Text of a message. A list of text parts reads like its lines joined, which is how string templates see it."""
    if isinstance(content, str):
        return _escape(content)
    if content is None:
        return ""
    if isinstance(content, Mapping):
        content = content.get("content", [content])
        if isinstance(content, str):
            return _escape(content)
    lines = []
    for part in content:
        get = _reader(part)
        text = part if isinstance(part, str) else get("text")
        if isinstance(text, str):
            lines.append(_escape(text))
        else:
            # Images, audio, files, tool results: by digest, so a 10 MB data URL is 32 characters of stream.
            lines.append(f"\0\x08{_text(get('type')) or ''}:{xxhash.xxh3_128_hexdigest(_json(part))}")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace("\0", "\0\0") if "\0" in text else text


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _json(value: Any) -> bytes:
    """Key order is kept on purpose: a template prints tools in the order given, so another order is another prompt."""
    return msgspec.json.encode(value, enc_hook=_plain_value)


def _plain_value(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(exclude_none=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"
