"""How busy each replica is, as far as this router knows: what it has sent and not heard back about, and what others
sent.

Counts cannot drift, because nothing is ever just added or subtracted: every unit of load belongs to a lease, a lease
ends exactly once, and a replica that goes takes its leases along. The states of a lease:

    assign -> TENTATIVE -- settle --> SENT -- confirm --> RUNNING -- release --> OVER
                  |                     |                                         |
                  +-- left, timed out, replica gone: its units are given back ----+

What a request still has to compute ends with its first token (`units`); the KV blocks that its prompt takes do not
(crowding, in `weight`): an engine whose blocks are all held admits nobody, even if it has nothing left to prefill.

Units are whole numbers (pieces of prompt still to prefill, plus a constant per running request), so that zero means
zero.
"""

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from app.routing.load_row import OVER, RUNNING, SENT, TENTATIVE, Lease, Row
from app.routing.order import Order
from app.routing.roster import slots_of

TENTATIVE_S = 30.0
"""A choice that was never sent (Serve tells nobody about a caller that left in between) is given back after this
long.
"""
FOREIGN_S = 10.0
"""What a replica said about its queue is believed this long: Serve's own queue length cache uses the same."""
RECENT_S = 60.0
"""Half-life of `recent`: about the pause between a conversation's turns, which is what it anticipates."""
FADE_S = RECENT_S / 16
"""`recent` fades in steps of this, of all replicas at once: 4 % each. Between steps nobody's place changes by itself,
so the order can be kept instead of made; a step costs 0.02 ms for 64 replicas.
"""

_OVERFULL = 2.0
_ROOM = 1024
"""Units that an engine surely has room for: pieces of 64 tokens, and no more than a third of one mid-range GPU."""


class Busy(msgspec.Struct, frozen=True):
    """One replica's load."""

    requests: int
    """Ours, in flight."""
    units: int
    """Work of ours and of others, in the policy's units."""


class LoadBook:
    """Not thread safe: one owner calls it under its lock. Nothing blocks or raises; unknown replicas and requests
    are no-ops.

    `assign` at choice, so that a burst sees itself; `settle` when it is known where the request went; `first_token`
    when its prefill is over; `release` when it ended. Each may come late, twice or never.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self.request_units = 4
        self.room = 0
        """Units of prompts that an engine has KV blocks for, if somebody knows. Else it is taken to be the most that
        was ever in flight on one, and `_ROOM` at least.
        """
        self._most_held = _ROOM
        self.crowd_weight = 0.6
        """Units charged per unit of the prompts in flight where they just fill the engine."""
        self.recent_share = 0.0
        """What a unit of `recent` counts in the order of replicas, beside one of `weight`. Policies set it once."""
        # By request, the newest try first: nearly always there is one, and only the newest can be TENTATIVE.
        self._leases: dict[str, Lease] = {}
        self._deadlines: deque[Lease] = deque()
        self._foreign_deadlines: deque[tuple[float, int]] = deque()
        self._fade_at = clock() + FADE_S
        self._rows: dict[int, Row] = {}
        self._order = Order(random)
        self.least = self._order.least
        """The least busy replica in a mask, by `weight + recent_share * recent`, ties at random. To look at, not to
        keep.
        """
        self.total_requests = 0
        """In flight on all replicas together, ours and others'."""
        self.loading = 0
        """The replicas that have a request of ours which loads KV and has no first token yet."""

    # --- replicas come and go ---------------------------------------------------------------------------------------

    def add_replica(self, slot: int) -> None:
        if slot not in self._rows:
            row = self._rows[slot] = Row(slot)
            self._order.add(row)

    def drop_replica(self, slot: int) -> None:
        """Forget the replica and everything in flight on it."""
        row = self._rows.pop(slot, None)
        if row is None:
            return
        for lease in [lease for head in self._leases.values() for lease in _tries(head) if lease.row is row]:
            lease.state = OVER
            self._forget(lease)
        self.total_requests -= row.requests + row.foreign_requests
        self.loading &= ~row.bit
        self._order.remove(row)

    # --- requests ---------------------------------------------------------------------------------------------------

    def assign(self, request: str, slot: int, prefill_units: int, held_units: int = 0, loads: bool = False) -> None:
        """The request will probably go to `slot`: counts at once. A second choice for the same request replaces the
        first. `held_units` is how much more of its KV takes room until it ends, computed or not; `loads` that it waits
        for KV from another tier before its prefill.
        """
        earlier = self._leases.get(request)
        if earlier is not None and earlier.state == TENTATIVE:
            self._end(earlier)
            earlier = self._forget(earlier)
        row = self._rows.get(slot)
        if row is None:
            return
        units, until = self.request_units + prefill_units, self._clock() + TENTATIVE_S
        lease = Lease(request, row, units, prefill_units, held_units, loads, until, earlier)
        self._leases[request] = lease
        self._deadlines.append(lease)
        row.recent += units
        self._begin(lease)

    def has_tentative(self, request: str) -> bool:
        lease = self._leases.get(request)
        return lease is not None and lease.state == TENTATIVE

    def settle(self, request: str, slot: int | None) -> None:
        """It is known where the request went; None means nowhere, the caller left."""
        lease = self._leases.get(request)
        if lease is None or lease.state != TENTATIVE:
            return
        if slot != lease.row.slot:
            self._end(lease)
            row = None if slot is None else self._rows.get(slot)
            if row is None:
                self._forget(lease)
                return
            lease.row = row
            self._begin(lease)
        lease.state = SENT

    def confirm(self, request: str, slot: int) -> None:
        """The replica accepted: from now on only its end gives the units back, not the clock."""
        lease = self._leases.get(request)
        while lease is not None:
            if lease.state == SENT and lease.row.slot == slot:
                lease.state = RUNNING
            lease = lease.earlier

    def first_token(self, request: str, slot: int) -> None:
        """The request's prefill is over: only its constant part still counts."""
        for lease in _tries(self._leases.get(request)):
            row = lease.row
            if row.slot != slot or lease.state == TENTATIVE:
                continue
            if lease.loads:
                self._loaded(row)
                lease.loads = False
            if lease.prefill:
                row.own -= lease.prefill
                lease.units -= lease.prefill
                lease.prefill = 0
                self._place(row)

    def release(self, request: str, slot: int) -> None:
        """The request ended there, whichever way. One call ends one lease; calls without a lease do nothing. If sending
        fails, this comes before the settling, which then finds nothing.
        """
        lease = self._leases.get(request)
        if lease is not None and lease.earlier is not None:
            # The oldest of its tries there.
            lease = next((one for one in reversed([*_tries(lease)]) if one.row.slot == slot), None)
        if lease is not None and lease.row.slot == slot:
            self._forget(lease)
            self._end(lease)

    # --- what others sent -------------------------------------------------------------------------------------------

    def observe(self, slot: int, ongoing: int) -> None:
        """The replica said how many requests it has, ours among them: the rest came through other routers."""
        row = self._rows.get(slot)
        if row is None:
            return
        if ongoing <= row.requests and not row.foreign_requests:
            return  # nobody else's, as before
        average = row.own // row.requests if row.requests else self.request_units
        self._set_foreign(row, max(0, ongoing - row.requests), max(self.request_units, average))
        row.foreign_until = self._clock() + FOREIGN_S
        self._foreign_deadlines.append((row.foreign_until, slot))

    def expire(self) -> None:
        """Give back what nobody will tell us about any more, and let time pass. Called before each choice; amortised
        O(1), apart from a step of fading.
        """
        now = self._clock()
        deadlines = self._deadlines
        while deadlines and (deadlines[0].state >= RUNNING or deadlines[0].until <= now):
            lease = deadlines.popleft()
            if lease.state < RUNNING:
                self._end(lease)
                self._forget(lease)
        foreign = self._foreign_deadlines
        while foreign and foreign[0][0] <= now:
            until, slot = foreign.popleft()
            row = self._rows.get(slot)
            if row is not None and row.foreign_until == until:
                row.foreign_until = None
                self._set_foreign(row, 0, 0)
        if now >= self._fade_at:
            self._fade(now)

    # --- questions --------------------------------------------------------------------------------------------------

    def busy(self, slot: int) -> Busy:
        row = self._rows.get(slot, _NOBODY)
        return Busy(row.requests, row.own + row.foreign)

    def units(self, slot: int) -> int:
        row = self._rows.get(slot, _NOBODY)
        return row.own + row.foreign

    def weight(self, slot: int) -> int:
        """Its units and its crowding, which is nearly nothing far below an engine's room. Crowding is as of the last
        change of what is in flight there.
        """
        return self._rows.get(slot, _NOBODY).weight

    def recent(self, slot: int) -> float:
        """Work given to the replica lately, done or not: what will come back to it, since conversations return."""
        return self._rows.get(slot, _NOBODY).recent

    def requests(self, slot: int) -> int:
        """In flight on the replica, ours and others'."""
        row = self._rows.get(slot, _NOBODY)
        return row.requests + row.foreign_requests

    def first(self, mask: int, count: int) -> list[int]:
        """Up to `count` of the least busy replicas in `mask`, in order."""
        return [row.slot for row in self._order.first(mask, count)]

    def check_integrity(self) -> None:
        """Raises AssertionError, with the numbers, unless every unit belongs to a live lease and every mask is
        right.
        """
        leases = [lease for head in self._leases.values() for lease in _tries(head)]
        for slot, row in self._rows.items():
            mine = [lease for lease in leases if lease.row is row]
            units = sum(lease.units for lease in mine)
            assert row.requests == len(mine), f"slot {slot}: {row.requests} requests counted, {len(mine)} leased"
            holds = sum(lease.holds for lease in mine)
            assert row.holds == holds, f"slot {slot}: {row.holds} units held, {holds} leased"
            assert row.own == units, f"slot {slot}: {row.own} units counted, {units} leased"
            loads = sum(lease.loads for lease in mine)
            assert row.loads == loads, f"slot {slot}: {row.loads} loads counted, {loads} leased"
            assert bool(loads) == bool(self.loading & row.bit), f"slot {slot} is wrongly marked as loading"
            assert row.weight == row.own + row.foreign + row.crowd, f"slot {slot} weighs {row.weight}"
            assert row.recent >= 0.0
        for request, head in self._leases.items():
            tries = [*_tries(head)]
            assert all(lease.request == request for lease in tries), f"a lease is filed under {request}"
            assert all(lease.state != TENTATIVE for lease in tries[1:]), f"{request} was chosen for over its head"
        assert all(lease.state != OVER for lease in leases), "a lease is kept after its end"
        assert all(lease.row is self._rows.get(lease.row.slot) for lease in leases), "a lease outlived its replica"
        assert self._rows.keys() >= set(slots_of(self.loading)), "a replica that is gone is marked as loading"
        total = sum(self.requests(slot) for slot in self._rows)
        assert self.total_requests == total, f"{self.total_requests} requests in total, {total} counted"
        self._order.check_integrity(self._number)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, lease: Lease) -> None:
        row = lease.row
        row.requests += 1
        row.own += lease.units
        row.holds += lease.holds
        self.total_requests += 1
        if lease.loads:
            row.loads += 1
            self.loading |= row.bit
        self._place(row)

    def _end(self, lease: Lease) -> None:
        row = lease.row
        row.requests -= 1
        row.own -= lease.units
        row.holds -= lease.holds
        self.total_requests -= 1
        if lease.loads:
            self._loaded(row)
        lease.state = OVER
        self._place(row)

    def _forget(self, lease: Lease) -> Lease | None:
        """Take it out of its request's tries; returns the newest one left."""
        head = self._leases.pop(lease.request)
        if head is lease:
            if lease.earlier is None:
                return None
            head = lease.earlier
        else:
            at = head
            while at.earlier is not lease:
                assert at.earlier is not None
                at = at.earlier
            at.earlier = lease.earlier
        self._leases[lease.request] = head
        return head

    def _loaded(self, row: Row) -> None:
        row.loads -= 1
        if not row.loads:
            self.loading ^= row.bit

    def _set_foreign(self, row: Row, requests: int, units_each: int) -> None:
        self.total_requests += requests - row.foreign_requests
        row.foreign_requests = requests
        row.foreign = requests * units_each
        self._place(row)

    def _place(self, row: Row) -> None:
        """Weigh the replica anew after a change."""
        held = row.holds
        if held > self._most_held:
            self._most_held = held
        full = held / (self.room or self._most_held)
        if full > _OVERFULL:
            full = _OVERFULL
        row.crowd = int(self.crowd_weight * full * full * held)
        row.weight = row.own + row.foreign + row.crowd
        self._order.move(row, row.weight + self.recent_share * row.recent)

    def _number(self, row: Row) -> float:
        return row.weight + self.recent_share * row.recent

    def _fade(self, now: float) -> None:
        steps = 1 + (now - self._fade_at) // FADE_S
        self._fade_at += steps * FADE_S
        left = 0.5 ** (steps * FADE_S / RECENT_S)
        for row in self._rows.values():
            row.recent *= left
        self._order.renew(self._number)


def _tries(lease: Lease | None) -> Iterator[Lease]:
    while lease is not None:
        yield lease
        lease = lease.earlier


_NOBODY = Row(0)
"""The load of a replica that is not there."""
