"""What Kubernetes, KubeRay and AWS accept as names and quantities: checked here, before anything is touched."""

import re
from decimal import Decimal

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[munkMGTPE]?|[eE][+-]?[0-9]+)")
_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
}

# KubeRay makes the names of a RayService's cluster and services from its own, which leaves 47 of 63 characters; pods of
# Redis carry a label NAME-redis-HASH, whose hash has up to 10, which leaves one less.
RAYSERVICE_NAME = 46
NAMESPACE_NAME = 63
# Kubernetes takes longer ones of most kinds, but labels and services that are made from them end here.
OBJECT_NAME = 63


def check_label(value: str, limit: int, what: str, *, letter_first: bool = False) -> str:
    """Return `value` if it is a DNS label of at most `limit` characters; raise ValueError that says what is wrong."""
    if len(value) > limit:
        raise ValueError(f"{what} has {len(value)} characters, at most {limit} are allowed")
    pattern = _LABEL_1035 if letter_first else _LABEL
    if not pattern.fullmatch(value):
        start = "a letter" if letter_first else "a letter or digit"
        raise ValueError(f"{what} must be lower-case letters, digits and -, starting with {start}, not ending with -")
    return value


def quantity(value: str) -> Decimal:
    """A Kubernetes quantity as a number (`1500m` -> 1.5, `2Gi` -> 2147483648). Raises ValueError."""
    match = _QUANTITY.fullmatch(value)
    if not match:
        raise ValueError(f"{value!r} is not a Kubernetes quantity (examples: 500m, 2, 16Gi)")
    number, suffix = match.groups()
    if suffix in _BINARY:
        return Decimal(number) * _BINARY[suffix]
    return Decimal(number) * Decimal(_DECIMAL.get(suffix, f"1{suffix}"))


def check_quantity(value: str) -> str:
    if quantity(value) <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    return value
