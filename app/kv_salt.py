"""The salt under which L1 and L2 keep a request's KV. Pure; ground that tiers and routing share.

LMCache 0.5.6 names a chunk by model, tokens (images among them) and salt. KV depends on more: on the LoRA adapter,
which its keys leave out, and on prompt embeddings, whose positions all carry the same token. Left alone, one adapter's
KV would be loaded for another's request. So whatever the keys do not tell apart goes into the salt.
"""

import hashlib
from pathlib import PurePath


def kv_salt(salt: str | None, adapter: str | None = None, unshared: str | None = None) -> str:
    """`salt` as it is for plain requests of the base model; with an adapter, a digest of both.

    `unshared` names a request whose KV nobody may share, itself excepted: its salt is then its own.
    """
    salt = salt or ""
    if not adapter and not unshared:
        return salt
    parts = "\0".join((salt, adapter or "", unshared or ""))
    # 32 characters of [0-9a-f]: LMCache allows 128 and no separators.
    return hashlib.blake2b(parts.encode(errors="surrogatepass"), digest_size=16, person=b"tierserve-kv").hexdigest()


def adapter_identity(name: str, path: str) -> str:
    """What names an adapter in `kv_salt`: its name, and of its weights the digest that its directory is called by
    (app/serving/adapter_loader.py). A retrained adapter may keep its name, and L2 outlives both."""
    return f"{name}@{PurePath(path).name}"
