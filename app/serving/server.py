"""TieredLLMServer: one vLLM engine behind Ray Serve, attached to its node's cache, that says where tokens came from."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict
from functools import partial
from multiprocessing import util
from typing import Any
from uuid import uuid4

from fastapi import HTTPException
from ray import serve
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer

from app.serving.adapter_loader import AdapterLoader
from app.serving.announcement import METADATA_KEY, ReplicaFeed
from app.serving.announcer import Announcer
from app.serving.auth import storable_salt
from app.serving.engine_end import EngineEnd
from app.serving.executor import use_one_process
from app.serving.field_checks import check_token_ids
from app.serving.form_checks import asks_for_form
from app.serving.form_errors import blaming_the_form
from app.serving.grammar_backend import use_one_backend
from app.serving.model_checks import ModelBounds, bounds_of, check_for_model
from app.serving.prefill_stats import tap_prefill_stats
from app.serving.report_book import Origin
from app.serving.reporter import Reporter
from app.serving.request_checks import check_request
from app.serving.single_flight import SingleFlight
from app.serving.size_checks import check_count, check_length
from app.serving.stopping import Stopping
from app.serving.stream_preface import is_asked_for
from app.serving.tokenization import attach_tokenization
from app.settings import GRACEFUL_SHUTDOWN_TIMEOUT_S, LoraSettings
from app.tiers.cache_spec import CacheSpec
from app.tiers.events import LookupFeed
from app.tiers.node_cache import CacheLease
from app.tiers.node_host import node_host
from app.tiers.transfer import transfer_config

logger = logging.getLogger(__name__)


class TieredLLMServer(LLMServer):
    """Ray Serve calls the async constructor once, then the endpoint methods, all on one event loop."""

    _end: EngineEnd | None = None
    _adapters: AdapterLoader | None = None
    _of_model: ModelBounds | None = None

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        llm_config: LLMConfig,
        *,
        cache: CacheSpec | None = None,
        kv_events: bool = False,
        lora: LoraSettings | None = None,
        grace_s: float = GRACEFUL_SHUTDOWN_TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        context = serve.get_replica_context()
        self._replica = context.replica_id.unique_id
        self._stopping = Stopping(grace_s)
        self._lease: CacheLease | None = None
        self._feed: LookupFeed | None = None
        if cache is not None:
            self._lease = await CacheLease.acquire(cache, context.app_name, self._replica)
            self._feed = LookupFeed(self._lease.endpoint.events_url)
            llm_config.update_engine_kwargs(kv_transfer_config=transfer_config(self._lease.endpoint))
        cache_url = self._lease.endpoint.ask_url if self._lease is not None else ""
        self._announcer = Announcer(node_host(), kv_events=kv_events, cache_url=cache_url)
        self._reporter = Reporter(self._replica, self._feed, self._announcer.first_token)
        if kv_events:
            llm_config.update_engine_kwargs(kv_events_config=self._announcer.engine_arguments())
        if llm_config.accelerator_config.kind == "cpu":
            use_one_process(llm_config)
        use_one_backend(llm_config)
        self._resolving = SingleFlight()
        await super().__init__(llm_config, model_downloader=partial(self._loader, lora), **kwargs)
        tap_prefill_stats(self.engine._engine_client, self._reporter.prefilled)
        attach_tokenization(self.engine)
        await self._bounds()  # the first request need not wait for them
        self._end = EngineEnd(self.engine._engine_client, self._reporter, self.__del__)

    def _loader(self, lora: LoraSettings | None, **kwargs: Any) -> AdapterLoader:
        """Ray calls it while it is made, if the model has adapters."""
        assert lora is not None, "an LLMConfig with a lora_config that is not ours"
        self._adapters = AdapterLoader(lora.directory, **kwargs)
        return self._adapters

    async def _maybe_resolve_lora_from_multiplex(self) -> None:
        """Ray's, once at a time for each adapter: vLLM refuses to load one twice, which two first requests at once
        would ask for, and Ray would never again tell routers that it is gone.

        Different adapters do not wait for each other here. Where they must, Ray and vLLM see to it: Ray copies one at
        a time, and vLLM's engine takes one at a time between its steps. For a loaded one nothing is waited for.

        Raises HTTPException: there is no such adapter (404), or vLLM cannot load it (400, with its reason).
        """
        adapter = serve.get_multiplexed_model_id()
        if not adapter:
            return
        try:
            await self._resolving.run(adapter, partial(self._resolve, adapter))
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    async def _resolve(self, adapter: str) -> None:
        if self._adapters is None:
            return await super()._maybe_resolve_lora_from_multiplex()  # type: ignore[no-any-return]
        await self._adapters.renew(adapter)
        try:
            await super()._maybe_resolve_lora_from_multiplex()
        except ValueError:
            self._adapters.refused(adapter)
            raise

    def record_replica_metadata(self) -> dict[str, Any]:
        """Ray Serve asks once, when the replica is ready, and gives it to every router: where this replica is heard."""
        at = self._lease.endpoint if self._lease is not None else None
        feed = ReplicaFeed(
            self._announcer.events_url,
            self._announcer.replay_url,
            at.tiers_url if at else "",
            at.ask_url if at else "",
            self.engine._engine_client.model_config.model,
        )
        return {METADATA_KEY: asdict(feed)}

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        responses = await self._call(super().chat, request, raw_request_info)
        return self._answer(request, responses, raw_request_info)

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        responses = await self._call(super().completions, request, raw_request_info)
        return self._answer(request, responses, raw_request_info)

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        await self._check(request)
        return await super().embeddings(request, raw_request_info)  # type: ignore[no-any-return]

    async def score(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        await self._check(request)
        return await super().score(request, raw_request_info)  # type: ignore[no-any-return]

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Ray's, for texts that the model could be asked about."""
        check_request(request)
        check_length(request, (await self._bounds()).characters)
        return await super().tokenize(request, raw_request_info)  # type: ignore[no-any-return]

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Ray's, for ids that the tokenizer has: the others would be left out of the text without a word."""
        check_count("tokens", request.tokens)
        check_token_ids(request.tokens, (await self._bounds()).token_ids)
        return await super().detokenize(request, raw_request_info)  # type: ignore[no-any-return]

    async def _check(self, request: Any) -> None:
        """Also what has passed the ingress: callers through handles (app.client) do not.

        Raises ReplicaLostError: the engine is gone. Raises FieldError: the request cannot be served by any.
        """
        if self._end is not None:
            self._end.check()
        check_request(request)
        check_for_model(request, await self._bounds())

    async def _bounds(self) -> ModelBounds:
        if self._of_model is None:
            self._of_model = await asyncio.to_thread(bounds_of, self.engine._engine_client)
        return self._of_model

    async def __del__(self) -> None:
        """Serve calls it when the replica is to end. Ends the engine's process cleanly: Ray would kill it, and
        killed it leaves semaphores in /dev/shm."""
        if self._end is not None:
            self._end.expected()
        await super().__del__()
        if self._feed is not None:
            self._feed.close()
        self._announcer.close()
        if self._adapters is not None:
            self._adapters.close()
        if self._lease is not None:
            await self._lease.release()
        client = getattr(self.engine, "_engine_client", None)
        if client is not None:
            await asyncio.to_thread(client.shutdown)
            util._run_finalizers(0)  # type: ignore[attr-defined]

    async def cache_status(self, request: Any = None, raw_request_info: Any = None) -> dict[str, Any]:
        """This replica's id and the state of its node's cache (see NodeCache.status). The arguments are not read: they
        let a caller name the replica (app.client)."""
        cache = await self._lease.actor.status.remote() if self._lease else None
        endpoint = asdict(self._lease.endpoint) if self._lease else None
        return {"replica": self._replica, "open_requests": len(self._reporter), "cache": cache, "endpoint": endpoint}

    async def clear_caches(self, request: Any = None, raw_request_info: Any = None) -> dict[str, Any]:
        """Empty this replica's L0 and, unless `request` is {"l1": False}, its node's L1. L2 keeps what it has."""
        await self.reset_prefix_cache()
        with_l1 = self._lease is not None and (request or {}).get("l1", True)
        cleared = await self._lease.actor.clear.remote() if self._lease and with_l1 else None
        return {"replica": self._replica, "l1_cleared": cleared}

    async def _call(self, method: Any, request: Any, raw_request_info: Any) -> AsyncGenerator[Any, None]:
        # An id of our own: clients may repeat theirs, and the engine's word on a prompt comes back under this one.
        request.request_id = uuid4().hex
        await self._check(request)
        if hasattr(request, "cache_salt"):
            request.cache_salt = storable_salt(request.cache_salt)
        return await method(request, raw_request_info)  # type: ignore[no-any-return]

    def _answer(
        self, request: Any, responses: AsyncGenerator[Any, None], raw_request_info: Any
    ) -> AsyncGenerator[Any, None]:
        if asks_for_form(request):
            responses = blaming_the_form(responses)
        responses = self._stopping.bounded(responses)
        return self._reporter.reported(request, responses, self._origin(request), is_asked_for(raw_request_info))

    def _origin(self, request: Any) -> Origin | None:
        """None outside Serve (tests, plain use of the class)."""
        context = serve.context._serve_request_context.get()
        if context is None:
            return None
        prompt = getattr(request, "prompt", None)
        is_batch = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
        adapter = self._adapters.identity(context.multiplexed_model_id) if self._adapters is not None else ""
        return Origin(context._internal_request_id, time.monotonic(), is_batch, adapter)
