"""One replica: a queue, one prefill at a time, a batch of decodes, and blocks.

Steps are not simulated one by one but as flows between events, which costs O(log batch) an event. While a prompt is
prefilled, each step carries one chunk of it and every decode's next token, so both slow each other down:

    seconds per step = step_s + context * context_s                  only decodes
                     = chunk_s + context * context_s                 with a chunk of prefill

All decodes advance by one token a step, so one number (`_steps`) counts for all of them.

Simplifications: blocks for prompt and answer are taken together when a request is admitted, so nothing is preempted;
a request that loads KV lets others compute meanwhile and then goes before those that still wait.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from app.sim.blocks import BlockPool
from app.sim.flight import Flight
from app.sim.gauges import Gauge
from app.sim.hardware import Speed

MAX_BATCH = 256
"""vLLM's default max_num_seqs on most GPUs."""


class Host(Protocol):
    """The world around an engine. Called in simulated time; may not call the engine back."""

    def find(self, engine: "Engine", flight: Flight, now: float) -> float:
        """Fill in `l1` and `l2` for what follows `l0` and is worth loading, and return when it will be there."""

    def evicted(self, engine: "Engine", names: list[int]) -> None:
        """These names are no longer in L0."""

    def prefilled(self, engine: "Engine", flight: Flight, new: list[int], seconds: float, now: float) -> None:
        """The first token is out. `new` are the names that L0 has since; `seconds` is what the prefill took."""

    def finished(self, engine: "Engine", flight: Flight, now: float) -> None:
        """The answer is complete."""

    def later(self, at: float, action: Callable[[float], None]) -> None:
        """Call back at that time."""


class Engine:
    """`advance(now)` must be called before anything else happens at `now`; `next_at` says when it is due again."""

    def __init__(self, name: str, node: int, speed: Speed, block_tokens: int, host: Host) -> None:
        self.name, self.node = name, node
        self.pool = BlockPool(max(1, speed.l0_tokens // block_tokens), block_tokens)
        self.alive = True
        self.busy_s = 0.0
        self._speed, self._host = speed, host
        self._waiting: deque[Flight] = deque()
        self._ready: deque[Flight] = deque()
        self._loading: dict[str, Flight] = {}
        self._prefill: Flight | None = None
        self._prefill_left_s = 0.0
        self._prefill_began = 0.0
        self._decodes: list[tuple[float, int, Flight]] = []
        self._context = 0.0
        self._steps = 0.0
        self._now = 0.0
        self._made = 0
        self._wake_at = -1.0

    @property
    def ongoing(self) -> int:
        """Requests that it has, in whatever state."""
        return len(self._waiting) + len(self._ready) + len(self._loading) + len(self._decodes) + bool(self._prefill)

    def gauge(self) -> Gauge:
        return Gauge(len(self._waiting) + len(self._ready), self.pool.used_blocks / self.pool.size)

    def submit(self, flight: Flight, now: float) -> None:
        self.advance(now)
        self._waiting.append(flight)
        self._plan(now)

    def kill(self) -> list[Flight]:
        """The process is gone. Returns the requests it had, oldest first."""
        self.alive = False
        had = [*self._waiting, *self._ready, *self._loading.values(), *(one[2] for one in self._decodes)]
        if self._prefill is not None:
            had.append(self._prefill)
        self._waiting, self._ready, self._decodes, self._prefill = deque(), deque(), [], None
        self._loading = {}
        return sorted(had, key=lambda flight: flight.job.at)

    # --- time -------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Let the flows run until `now`, ending what ends on the way."""
        while self.alive and min(due := self._due()) <= now:
            self._flow(max(min(due), self._now))
            # Ended by which is first and not by what is left: of a clock at 10,000 s the last digit is 2e-12.
            if due[0] <= due[1]:
                self._end_prefill()
            else:
                self._end_decode()
            self._admit()
        self._flow(now)

    def _flow(self, until: float) -> None:
        passed = until - self._now
        self._now = until
        if passed <= 0:
            return
        if self._prefill is not None:
            step = self._step_s()
            self._prefill_left_s = max(0.0, self._prefill_left_s - passed * self._speed.chunk_s / step)
            self._steps += passed / step
            self.busy_s += passed
        elif self._decodes:
            self._steps += passed / self._step_s()
            self.busy_s += passed

    def _step_s(self) -> float:
        base = self._speed.step_s if self._prefill is None else self._speed.chunk_s
        return base + self._context * self._speed.context_s

    def _due(self) -> tuple[float, float]:
        """When the prefill and the first of the decodes end, if nothing changes."""
        step, prefill, decode = self._step_s(), math.inf, math.inf
        if self._prefill is not None:
            prefill = self._now + self._prefill_left_s * step / self._speed.chunk_s
        if self._decodes:
            decode = self._now + max(0.0, self._decodes[0][0] - self._steps) * step
        return prefill, decode

    def _plan(self, now: float) -> None:
        """Admit what can be, and ask to be woken when the next thing ends."""
        self._admit()
        due = min(self._due())
        if due < math.inf and not now <= self._wake_at <= due:
            self._wake_at = due
            self._host.later(due, self._wake)

    def _wake(self, now: float) -> None:
        if not self.alive:
            return
        if now >= self._wake_at:
            self._wake_at = -1.0
        self.advance(now)
        self._plan(now)

    # --- states -----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start the next prefill; requests before it that have something to load start loading."""
        while self._prefill is None:
            if self._ready:
                self._begin_prefill(self._ready.popleft())
            elif not self._waiting or not self._open(self._waiting[0]):
                return

    def _open(self, flight: Flight) -> bool:
        """Give the first in the queue its blocks. False if there is no room now: then everybody waits."""
        pool, job = self.pool, flight.job
        if len(self._decodes) + len(self._loading) + len(self._ready) >= MAX_BATCH:
            return False
        full = (job.tokens - 1) // pool.block_tokens
        # At least the last token is computed, whatever is here.
        held = pool.hit(job.names[:full])
        table = pool.allocate(job.names[:held], job.tokens + job.output)
        if table is None:
            return False
        self._tell_evicted()
        self._waiting.popleft()
        flight.table, flight.l0 = table, held * pool.block_tokens
        flight.opened_at = flight.there_at = self._now
        there_at = self._host.find(self, flight, self._now)
        if there_at <= self._now:
            self._begin_prefill(flight)
        else:
            self._loading[flight.id] = flight
            self._host.later(there_at, lambda now: self._loaded(flight, now))
        return True

    def _loaded(self, flight: Flight, now: float) -> None:
        if self._loading.pop(flight.id, None) is None:
            return
        self.advance(now)
        flight.there_at = now
        self._ready.append(flight)
        self._plan(now)

    def _begin_prefill(self, flight: Flight) -> None:
        self._prefill = flight
        flight.began_at = self._prefill_began = self._now
        self._prefill_left_s = self._speed.prefill_s(flight.cached, flight.computed)

    def _end_prefill(self) -> None:
        flight = self._prefill
        assert flight is not None
        self._prefill = None
        job, block = flight.job, self.pool.block_tokens
        new = self.pool.name(flight.table, 0, job.names[: job.tokens // block])
        # Blocks that hold the answer are cached too, under names that no prompt of the workload has.
        first = job.tokens // block
        ends = (job.tokens + job.output) // block
        self.pool.name(flight.table, first, [self._private() for _ in range(first, ends)])
        flight.first_at = self._now
        self._made += 1
        self._context += job.tokens + 0.5 * job.output
        heapq.heappush(self._decodes, (self._steps + max(0, job.output - 1), self._made, flight))
        self._host.prefilled(self, flight, new, self._now - self._prefill_began, self._now)

    def _end_decode(self) -> None:
        _, _, flight = heapq.heappop(self._decodes)
        self._context -= flight.job.tokens + 0.5 * flight.job.output
        if not self._decodes:
            self._context = 0.0
        self.pool.free(flight.table)
        self._host.finished(self, flight, self._now)

    def _private(self) -> int:
        self._made += 1
        return -self._made

    def _tell_evicted(self) -> None:
        gone = [name for name in self.pool.evicted if name >= 0]
        self.pool.evicted.clear()
        if gone:
            self._host.evicted(self, gone)

    def check_integrity(self) -> None:
        """Raises AssertionError unless blocks are held by exactly the requests that should."""
        self.pool.check_integrity()
        holders = [*self._ready, *self._loading.values(), *(one[2] for one in self._decodes)]
        holders += [self._prefill] if self._prefill is not None else []
        held = {block for flight in holders for block in flight.table.blocks}
        assert len(held) == self.pool.used_blocks, f"{self.pool.used_blocks} blocks in use, {len(held)} held"
        assert not any(flight.table.blocks for flight in self._waiting), "a waiting request holds blocks"
        context = sum(one[2].job.tokens + 0.5 * one[2].job.output for one in self._decodes)
        assert abs(context - self._context) < 1e-3 * (1 + context), f"context {self._context}, not {context}"
