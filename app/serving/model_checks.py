"""What one model cannot take, though another might: token ids that it has no row for, texts beyond its context, media.

vLLM looks at some of it too late (an id that is the size of the vocabulary is an IndexError in the engine, which ends
it), some only for some requests, and fetches media from any address for a model that reads text alone. Pure, but for
`bounds_of`, which reads vLLM's client.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.serving.field_checks import check_token_ids
from app.serving.field_error import FieldError
from app.serving.plain_data import inner
from app.serving.size_checks import BATCHES, check_length

_TRUNCATING = ("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc")
"""Fields with which vLLM looks at no length itself."""
_MEDIA: Final = frozenset(
    {"image_url", "image_pil", "image_embeds", "audio_url", "audio_embeds", "input_audio", "video_url"}
)


@dataclass(frozen=True, slots=True)
class ModelBounds:
    """Of one engine."""

    token_ids: int
    """The highest that its tokenizer knows. vLLM's own `max_token_id` may be one that does not exist: it takes the size
    of the vocabulary for one."""
    rows: int
    """Of its embedding: ids of a prompt lie below, those that the tokenizer does not know too."""
    characters: int
    """Of a text: its context times its longest token, vLLM's own bound on a prompt."""
    reads_media: bool


def bounds_of(client: Any) -> ModelBounds:
    """Of vLLM's engine client. Goes through the whole vocabulary. Without a tokenizer (`skip_tokenizer_init`) every id
    with a row is one, and no text is taken anyway."""
    config, rows = client.model_config, int(client.model_config.get_vocab_size())
    try:
        tokenizer = client.get_tokenizer()
    except ValueError:
        return ModelBounds(rows - 1, rows, 0, bool(config.is_multimodal_model))
    highest, longest = max(tokenizer.get_vocab().values()), tokenizer.max_chars_per_token
    return ModelBounds(int(highest), rows, int(config.max_model_len * longest), bool(config.is_multimodal_model))


def check_for_model(body: Any, bounds: ModelBounds) -> None:
    """After check_request. Raises FieldError: 400, with the field and the bound."""
    for field in ("prompt", "input"):
        _check_ids(field, getattr(body, field, None), bounds.rows - 1)
    if any(getattr(body, field, None) is not None for field in _TRUNCATING):
        check_length(body, bounds.characters)
    if not bounds.reads_media and (found := next(_media(body), None)) is not None:
        raise FieldError(found[0], f"this model reads text only, not `{found[1]}`.")


def _check_ids(field: str, prompt: object, highest: int) -> None:
    """One prompt of ids, or several of them."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        for at, one in enumerate(prompt):
            check_token_ids(one, highest, f"{field}[{at}]")
    else:
        check_token_ids(prompt, highest, field)


def _media(body: Any) -> Iterator[tuple[str, str]]:
    """(field, kind) of every part that is no text, in all fields that hold prompts."""
    messages = getattr(body, "messages", None)
    places = [
        (f"messages[{at}].content", message.get("content"))
        for at, message in enumerate(messages if isinstance(messages, list) else ())
        if isinstance(message, Mapping)
    ]
    places += [(field, getattr(body, field, None)) for field in BATCHES]
    for place, value in places:
        stack = [value]
        while stack:
            value = stack.pop()
            if isinstance(value, Mapping):
                yield from ((place, kind) for kind in _MEDIA.intersection(value))
                if isinstance(kind := value.get("type"), str) and kind in _MEDIA:
                    yield place, kind
            stack.extend(inner(value))
