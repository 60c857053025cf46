"""What all parts of the tree of settings have in common."""

import re

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from app.settings_text import as_yaml, types_in

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of an environment variable."""
# Far above any machine: what is larger is a slip, and some of it would overflow.
MANY, VAST_GIB = 10**6, 10**9


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """pydantic takes true for 1, and YAML takes yes, no, on and off for true and false."""
        types = set(types_in(cls.model_fields[info.field_name or ""].annotation))
        if isinstance(value, bool) and types & {int, float} and bool not in types:
            raise ValueError(f"must be a number, not {as_yaml(value)} (which YAML makes of yes, no, on and off too)")
        return value
