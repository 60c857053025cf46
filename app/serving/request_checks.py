"""All that is looked at in a request before an engine sees it."""

from typing import Any

from app.serving.field_checks import check_fields
from app.serving.form_checks import check_form
from app.serving.size_checks import check_sizes


def check_request(body: Any) -> None:
    """`body` is one of Ray's request models, of any endpoint (mutated: lazy fields become lists). On the event loop.

    Fields that its model does not declare hold whatever the client sent.

    Raises:
        FieldError: 400, with the field and what is wrong with it. Nothing else, whatever the body holds.
    """
    check_fields(body)
    check_form(body)
    check_sizes(body)
