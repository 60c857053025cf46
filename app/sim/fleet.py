"""Discrete events: requests arrive, the routing core chooses, engines compute, tiers fill.

Everything in one heap of (time, number, action); the number makes the order of simultaneous events the order in which
they were made, so a run is the same every time. The routing core is production's, with this clock.
"""

import heapq
import random
from collections.abc import Callable, Iterator

from app.routing.core import RoutingCore
from app.routing.policy import Replica, Request
from app.routing.prompt import Prompt, chain
from app.sim.engine import Engine
from app.sim.events import MODEL, POOL, Listening, Publisher, node_name
from app.sim.flight import Flight
from app.sim.gauges import Watching
from app.sim.outcome import Outcome
from app.sim.spec import FleetSpec
from app.sim.storage import Storage
from app.sim.workload import Job, Workload, token_bytes, tokens_of

_SEED = 1
"""Where chains of prompt pieces start; any number, the same for all requests."""
MakeCore = Callable[[Callable[[], float], random.Random, int], RoutingCore]
"""(clock, random source, tokens of a chunk) -> a routing core with the policy under test."""


class Fleet:
    """One run: make it, call `run` once. It is the engines' Host."""

    def __init__(self, spec: FleetSpec, workload: Workload, make_core: MakeCore, prompt: int = 4096) -> None:
        self.now = 0.0
        self.outcome = Outcome()
        self._spec, self._workload = spec, workload
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        self.core = make_core(lambda: self.now, random.Random(spec.seed), workload.block_tokens)
        policy = self.core.policy
        listener = policy if isinstance(policy, Listening) else None
        self._publisher = Publisher(listener, workload.block_tokens)
        if isinstance(policy, Watching):
            policy.watch(lambda name: self._engines[name].gauge())
        self._storage = Storage(spec, workload.block_tokens, prompt, self._publisher, self.later)
        self._engines: dict[str, Engine] = {}
        self._places: list[Engine] = []
        self._lost_s: dict[int, float] = {}
        self._start_replicas(range(spec.replicas))
        if listener is not None:
            for node in range(spec.nodes if spec.l1_bytes > 0 else 0):
                self._publisher.start_tier(listener.l1, node_name(node))
            if spec.l2_bytes > 0:
                self._publisher.start_tier(listener.l2, POOL)

    def run(self) -> Outcome:
        """Until every request is answered."""
        self._arrive_next(self._workload.jobs())
        outage = self._spec.outage
        if outage is not None:
            self.later(outage.at, lambda now: self._node_dies(outage.node))
            self.later(outage.back_at, lambda now: self._node_returns(outage.node))
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action(self.now)
        return self._finish()

    # --- Host, for the engines --------------------------------------------------------------------------------------

    def later(self, at: float, action: Callable[[float], None]) -> None:
        self._made += 1
        heapq.heappush(self._heap, (max(at, self.now), self._made, action))

    def find(self, engine: Engine, flight: Flight, now: float) -> float:
        block = self._workload.block_tokens
        held = flight.l0 // block
        full = (flight.job.tokens - 1) // block
        names = flight.job.names[held:full]
        if not names:
            return now
        loaded = self._storage.load(engine.node, self._place(engine), names, now)
        flight.l1, flight.l2 = loaded.l1 * block, loaded.l2 * block
        return loaded.there_at

    def evicted(self, engine: Engine, names: list[int]) -> None:
        slot = self.core.roster.slot(engine.name)
        if slot is not None:
            self._publisher.engine_removed(slot, names)

    def prefilled(self, engine: Engine, flight: Flight, new: list[int], seconds: float, now: float) -> None:
        job, block = flight.job, self._workload.block_tokens
        full = job.names[: job.tokens // block]
        slot = self.core.roster.slot(engine.name)
        if slot is not None and flight.tokens is not None:
            self._publisher.engine_stored(slot, full, new, flight.tokens)
        flight.tokens = None
        held = flight.cached // block
        self._storage.observe_prefill(engine.node, flight.computed, seconds)
        if held < len(full):
            self._storage.store(engine.node, held, full[held:], now)
        self.core.first_token(flight.id, engine.name)
        outcome = self.outcome
        outcome.ttft.append(now - job.at)
        outcome.queued_s += flight.opened_at - flight.sent_at
        outcome.loading_s += flight.there_at - flight.opened_at
        outcome.passed_s += flight.began_at - flight.there_at
        outcome.prefilling_s += now - flight.began_at
        outcome.prompt_tokens += job.tokens
        outcome.l0, outcome.l1, outcome.l2 = outcome.l0 + flight.l0, outcome.l1 + flight.l1, outcome.l2 + flight.l2

    def finished(self, engine: Engine, flight: Flight, now: float) -> None:
        assert flight.first_at is not None
        self.core.completed(flight.id, flight.report, engine.name, first_token_s=flight.first_at - flight.sent_at)
        self.core.ended(flight.id, engine.name)
        self.outcome.output_tokens += flight.job.output
        self.outcome.ended_at = now

    # --- requests ---------------------------------------------------------------------------------------------------

    def _arrive_next(self, jobs: Iterator[Job]) -> None:
        """One arrival in the heap at a time: the workload may be longer than memory."""
        job = next(jobs, None)
        if job is not None:
            self.later(job.at, lambda now: self._arrived(job, jobs))

    def _arrived(self, job: Job, jobs: Iterator[Job]) -> None:
        self._made += 1
        self._send(job, f"q{self._made}", 0)
        self._arrive_next(jobs)

    def _send(self, job: Job, name: str, retries: int) -> None:
        packed = token_bytes(job, self._workload.block_tokens)
        tokens = tokens_of(packed) if self._publisher.listening else None
        self._publisher.learn(job.names[: job.tokens // self._workload.block_tokens], packed)
        prompt = Prompt("tokens", MODEL, job.tenant, (chain(packed, _SEED),), (len(packed),))
        request = Request(name, prompt, job.session or None, tokens)
        best = self.core.choose(request).best
        if best is None:
            self.later(self.now + 1.0, lambda now: self._send(job, f"{name}'", retries + 1))
            return
        self.core.settled(name, best.replica)
        self.core.accepted(name, best.replica)
        flight = Flight(job, name, request, tokens, best.replica, self.now, retries=retries)
        self._engines[best.replica].submit(flight, self.now)

    # --- replicas ---------------------------------------------------------------------------------------------------

    def _start_replicas(self, places: range) -> None:
        spec = self._spec
        for place in places:
            self._made += 1
            name = f"r{place}.{self._made}"
            engine = Engine(name, place // spec.per_node, spec.speed, self._workload.block_tokens, self)
            engine.advance(self.now)
            self._engines[name] = engine
            if place < len(self._places):
                self._places[place] = engine
            else:
                self._places.append(engine)
        self.core.update_replicas([Replica(one.name, node_name(one.node)) for one in self._engines.values()])
        for place in places:
            slot = self.core.roster.slot(self._places[place].name)
            assert slot is not None
            self._publisher.start_engine(slot)

    def _node_dies(self, node: int) -> None:
        for place in self._places_of(node):
            engine = self._places[place]
            engine.advance(self.now)
            self._lost_s[place] = self._lost_s.get(place, 0.0) + engine.busy_s
            del self._engines[engine.name]
            self.core.replica_died(engine.name)
            for flight in engine.kill():
                if flight.first_at is None:
                    self.outcome.retries += 1
                    self._send(flight.job, f"{flight.id}'", flight.retries + 1)
        self._storage.node_died(node)

    def _node_returns(self, node: int) -> None:
        self._start_replicas(self._places_of(node))

    def _places_of(self, node: int) -> range:
        first = node * self._spec.per_node
        return range(first, min(first + self._spec.per_node, self._spec.replicas))

    def _place(self, engine: Engine) -> int:
        return int(engine.name[1 : engine.name.index(".")])

    def _finish(self) -> Outcome:
        outcome = self.outcome
        outcome.busy_s = [one.busy_s + self._lost_s.get(place, 0.0) for place, one in enumerate(self._places)]
        outcome.l2_read_bytes = self._storage.l2_read_bytes
        outcome.l2_written_bytes = self._storage.l2_written_bytes
        outcome.l2_dropped_blocks = self._storage.dropped
        return outcome

    def check_integrity(self) -> None:
        self.core.check_integrity()
        self._storage.check_integrity()
        for engine in self._engines.values():
            engine.check_integrity()
