"""Routes that read their bodies with `json_body`, whichever endpoint they belong to.

FastAPI's own way in (a route class with a request class); left alone it answers most of what it cannot read with one
sentence.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from app.serving.examples import smallest_body
from app.serving.json_body import MAX_BYTES, BodyError, parse_object


class _Request(Request):
    async def body(self) -> bytes:
        """Raises BodyError before anything of it is parsed, and before more is read than may be."""
        if not hasattr(self, "_body"):
            encoding = self.headers.get("content-encoding", "identity").strip().lower()
            if encoding != "identity":
                message = f"Content-Encoding: {encoding[:40]} is not supported. Send the body as it is."
                raise BodyError(message, status=415, code="unsupported_encoding")
            self._body = await self._bounded()
            if self._body and not _is_json(self.headers.get("content-type", "")):
                message = "The body is not read as JSON. Send it with the header `Content-Type: application/json`."
                raise BodyError(message, status=415, code="unsupported_media_type")
        return self._body

    async def json(self) -> Any:
        return parse_object(await self.body(), smallest_body(self.url.path))

    async def _bounded(self) -> bytes:
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > MAX_BYTES:
                raise BodyError(f"The body is larger than {MAX_BYTES >> 20} MiB.", status=413, code="body_too_large")
            pieces.append(piece)
        return b"".join(pieces)


def _is_json(content_type: str) -> bool:
    """As FastAPI sees it."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("application/") and kind.endswith(("/json", "+json"))


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return strictly
