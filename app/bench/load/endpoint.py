"""Where a load goes: any OpenAI-compatible endpoint."""

from dataclasses import dataclass

import httpx

from app.errors import ServingError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` is with or without /v1. `name` tells systems apart where several are compared."""

    url: str
    model: str
    api_key: str = ""
    name: str = "tierserve"

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def find_endpoint(url: str, api_key: str = "", model: str | None = None, name: str = "tierserve") -> Endpoint:
    """Ask the endpoint for its model, unless one is named.

    Raises:
        ServingError: nothing answers there, or it has several models.
    """
    endpoint = Endpoint(url, model or "", api_key, name)
    if model:
        return endpoint
    try:
        answer = httpx.get(f"{endpoint.base}/v1/models", headers=endpoint.headers, timeout=30)
        answer.raise_for_status()
        models = [str(each["id"]) for each in answer.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise ServingError(f"{url} does not list its models ({error}): is an OpenAI endpoint there?") from None
    if len(models) != 1:
        raise ServingError(f"{url} has {len(models)} models ({', '.join(models)}): name one with --model")
    return Endpoint(url, models[0], api_key, name)
