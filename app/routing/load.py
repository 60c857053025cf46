"""How busy each replica is, as far as this router knows: what it has sent and not heard back about, and what others
sent.

Counts cannot drift, because nothing is ever just added or subtracted: every unit of load belongs to a lease, a lease
ends exactly once, and a replica that goes takes its leases along. The states of a lease:

    (none) --assign--> tentative --settle--> running --release--> (none)
                           |                     |
                           +-- cancelled, timed out, replica gone: (none), its units given back

What a request still has to compute ends with its first token (`units`); the KV blocks that its prompt takes do not
(crowding, in `weight`): an engine whose blocks are all held admits nobody, even if it has nothing left to prefill.

Units are whole numbers (pieces of prompt still to prefill, plus a constant per running request), so that zero means
zero.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from app.routing.roster import any_slot, slots_of

TENTATIVE_S = 30.0
"""A choice that was never sent (Serve tells nobody about a caller that left in between) is given back after this
long.
"""
FOREIGN_S = 10.0
"""What a replica said about its queue is believed this long: Serve's own queue length cache uses the same."""

RECENT_S = 60.0
"""Half-life of `recent`: about the pause between a conversation's turns, which is what it anticipates."""
_OVERFULL = 2.0
_ROOM = 1024
"""Units that an engine surely has room for: pieces of 64 tokens, and no more than a third of one mid-range GPU."""


class Busy(msgspec.Struct, frozen=True):
    """One replica's load."""

    requests: int
    """Ours, in flight."""
    units: int
    """Work of ours and of others, in the policy's units."""


@dataclass(slots=True)
class _Lease:
    request: str
    slot: int
    units: int
    prefill: int
    holds: int
    loads: bool = False
    running: bool = False


class LoadBook:
    """Not thread safe: one owner calls it under its lock. Nothing blocks or raises; unknown replicas and requests
    are no-ops.

    `assign` at choice, so that a burst sees itself; `settle` when it is known where the request went; `first_token`
    when its prefill is over; `release` when it ended. Each may come late, twice or never.
    """

    def __init__(self, clock: Callable[[], float], request_units: int = 4) -> None:
        self._clock = clock
        self.request_units = request_units
        self.room = 0
        """Units of prompts that an engine has KV blocks for, if somebody knows. Else it is taken to be the most that
        was ever in flight on one, and `_ROOM` at least.
        """
        self._most_held = _ROOM
        self.crowd_weight = 0.6
        """Units charged per unit of the prompts in flight where they just fill the engine."""
        self._tentative: dict[str, _Lease] = {}
        self._running: dict[tuple[str, int], list[_Lease]] = {}
        self._deadlines: deque[tuple[float, _Lease]] = deque()
        self._requests: dict[int, int] = {}
        self._own: dict[int, int] = {}
        # Work given to each replica lately: (amount, when), halved every RECENT_S. An average, not a count: nothing
        # is owed back.
        self._recent: dict[int, tuple[float, float]] = {}
        self._holds: dict[int, int] = {}
        self._crowd: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self.loading = 0
        """The replicas that have a request of ours which loads KV and has no first token yet."""
        self._foreign: dict[int, int] = {}
        self._foreign_requests: dict[int, int] = {}
        self.total_requests = 0
        """In flight on all replicas together, ours and others'."""
        self._foreign_until: dict[int, float] = {}
        self._foreign_deadlines: deque[tuple[float, int]] = deque()
        # Replicas by load, as masks in ascending order of load class; `_occupied` says which classes have any.
        self._classes: list[int] = [0] * (load_class(1 << 62) + 1)
        self._class_of: dict[int, int] = {}
        self._occupied = 0

    # --- replicas come and go ---------------------------------------------------------------------------------------

    def add_replica(self, slot: int) -> None:
        if slot not in self._class_of:
            self._requests[slot] = self._own[slot] = self._foreign[slot] = self._foreign_requests[slot] = 0
            self._holds[slot] = self._crowd[slot] = self._loads[slot] = 0
            self._place(slot)

    def drop_replica(self, slot: int) -> None:
        """Forget the replica and everything in flight on it."""
        if slot not in self._class_of:
            return
        for request in [name for name, lease in self._tentative.items() if lease.slot == slot]:
            del self._tentative[request]
        for key in [key for key in self._running if key[1] == slot]:
            del self._running[key]
        self.total_requests -= self.requests(slot)
        self._recent.pop(slot, None)
        for table in (self._requests, self._own, self._holds, self._crowd, self._loads):
            table.pop(slot, None)
        self.loading &= ~(1 << slot)
        for table in (self._foreign, self._foreign_requests):
            table.pop(slot, None)
        self._foreign_until.pop(slot, None)
        klass = self._class_of.pop(slot)
        self._unfile(slot, klass)

    # --- requests ---------------------------------------------------------------------------------------------------

    def assign(self, request: str, slot: int, prefill_units: int, held_units: int = 0, *, loads: bool = False) -> None:
        """The request will probably go to `slot`: counts at once. A second choice for the same request replaces the
        first. `held_units` is how much more of its KV takes room until it ends, computed or not; `loads` that it waits
        for KV from another tier before its prefill.
        """
        self._end(self._tentative.pop(request, None))
        if slot not in self._class_of:
            return
        lease = _Lease(request, slot, self.request_units + prefill_units, prefill_units, held_units, loads)
        self._tentative[request] = lease
        now = self._clock()
        self._recent[slot] = (self._decayed(slot, now) + lease.units, now)
        self._deadlines.append((now + TENTATIVE_S, lease))
        self._begin(lease)

    def has_tentative(self, request: str) -> bool:
        return request in self._tentative

    def settle(self, request: str, slot: int | None) -> None:
        """It is known where the request went; None means nowhere, the caller left."""
        lease = self._tentative.pop(request, None)
        if lease is None:
            return
        if slot != lease.slot:
            self._end(lease)
            if slot is None or slot not in self._class_of:
                return
            lease = _Lease(request, slot, lease.units, lease.prefill, lease.holds, lease.loads)
            self._deadlines.append((self._clock() + TENTATIVE_S, lease))
            self._begin(lease)
        self._running.setdefault((request, slot), []).append(lease)

    def confirm(self, request: str, slot: int) -> None:
        """The replica accepted: from now on only its end gives the units back, not the clock."""
        for lease in self._running.get((request, slot), ()):
            lease.running = True

    def first_token(self, request: str, slot: int) -> None:
        """The request's prefill is over: only its constant part still counts."""
        for lease in self._running.get((request, slot), ()):
            if lease.loads:
                self._loaded(slot)
                lease.loads = False
            if lease.prefill:
                self._own[slot] -= lease.prefill
                lease.units -= lease.prefill
                lease.prefill = 0
                self._place(slot)

    def release(self, request: str, slot: int) -> None:
        """The request ended there, whichever way. One call ends one lease; calls without a lease do nothing."""
        leases = self._running.get((request, slot))
        if leases:
            self._end(leases.pop(0))
            if not leases:
                del self._running[(request, slot)]
        elif (lease := self._tentative.get(request)) is not None and lease.slot == slot:
            # It ended before it was settled: sending failed. The settling that follows then finds nothing.
            self._end(self._tentative.pop(request))

    # --- what others sent -------------------------------------------------------------------------------------------

    def observe(self, slot: int, ongoing: int) -> None:
        """The replica said how many requests it has, ours among them: the rest came through other routers."""
        if slot not in self._class_of:
            return
        mine = self._requests[slot]
        average = self._own[slot] // mine if mine else self.request_units
        self._set_foreign(slot, max(0, ongoing - mine), max(self.request_units, average))
        until = self._clock() + FOREIGN_S
        self._foreign_until[slot] = until
        self._foreign_deadlines.append((until, slot))

    def expire(self) -> None:
        """Give back what nobody will tell us about any more. Called before each choice; amortised O(1)."""
        now = self._clock()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or self._is_over(deadlines[0][1])):
            lease = deadlines.popleft()[1]
            if not self._is_over(lease):
                self._end(lease)
                self._remove(lease)
        foreign = self._foreign_deadlines
        while foreign and foreign[0][0] <= now:
            until, slot = foreign.popleft()
            if self._foreign_until.get(slot) == until:
                del self._foreign_until[slot]
                self._set_foreign(slot, 0, 0)

    # --- questions --------------------------------------------------------------------------------------------------

    def busy(self, slot: int) -> Busy:
        return Busy(self._requests.get(slot, 0), self.units(slot))

    def units(self, slot: int) -> int:
        return self._own.get(slot, 0) + self._foreign.get(slot, 0)

    def weight(self, slot: int) -> int:
        """What replicas are ordered by: their units and their crowding, which is nearly nothing far below an engine's
        room. Crowding is as of the last change of what is in flight there.
        """
        return self.units(slot) + self._crowd.get(slot, 0)

    def recent(self, slot: int) -> float:
        """Work given to the replica lately, done or not: what will come back to it, since conversations return."""
        return self._decayed(slot, self._clock())

    def requests(self, slot: int) -> int:
        """In flight on the replica, ours and others'."""
        return self._requests.get(slot, 0) + self._foreign_requests.get(slot, 0)

    def least(self, mask: int, count: int, random: Callable[[], float]) -> list[int]:
        """Up to `count` of the least loaded replicas in `mask`, in ascending order of load class, ties shuffled.

        By `weight`; classes are exact up to 15 units and an eighth wide above. O(occupied classes), not O(replicas).
        """
        if not mask & (mask - 1):
            # A conversation's own step has one holder: half of all questions.
            return [mask.bit_length() - 1] if mask else []
        found: list[int] = []
        occupied = self._occupied
        while occupied and mask:
            low = occupied & -occupied
            occupied ^= low
            here = self._classes[low.bit_length() - 1] & mask
            if here:
                mask ^= here
                while here:
                    slot = any_slot(here, random)
                    here ^= 1 << slot
                    found.append(slot)
                    if len(found) >= count:
                        return found
        return found

    def check_integrity(self) -> None:
        """Raises AssertionError, with the numbers, unless every unit belongs to a live lease and every mask is
        right.
        """
        leases = [*self._tentative.values(), *(one for group in self._running.values() for one in group)]
        for slot in self._class_of:
            mine = [lease for lease in leases if lease.slot == slot]
            units = sum(lease.units for lease in mine)
            assert self._requests[slot] == len(mine), (
                f"slot {slot}: {self._requests[slot]} requests counted, {len(mine)} leased"
            )
            holds = sum(lease.holds for lease in mine)
            assert self._holds[slot] == holds, f"slot {slot}: {self._holds[slot]} units held, {holds} leased"
            loads = sum(lease.loads for lease in mine)
            assert self._loads[slot] == loads, f"slot {slot}: {self._loads[slot]} loads counted, {loads} leased"
            assert bool(loads) == bool(self.loading >> slot & 1), f"slot {slot} is wrongly marked as loading"
            assert self._own[slot] == units, f"slot {slot}: {self._own[slot]} units counted, {units} leased"
            klass = load_class(self.weight(slot))
            assert self._class_of[slot] == klass, f"slot {slot} is in class {self._class_of[slot]}, not {klass}"
            assert self._recent.get(slot, (0.0, 0.0))[0] >= 0.0
            assert self._classes[klass] >> slot & 1, f"slot {slot} is missing from its class"
        assert self._class_of.keys() >= set(slots_of(self.loading)), "a replica that is gone is marked as loading"
        assert all(lease.slot in self._class_of for lease in leases), "a lease outlived its replica"
        total = sum(self.requests(slot) for slot in self._class_of)
        assert self.total_requests == total, f"{self.total_requests} requests in total, {total} counted"
        assert self._recent.keys() <= self._class_of.keys(), "recent work is kept of a replica that is gone"
        everywhere = 0
        for klass, mask in enumerate(self._classes):
            assert not everywhere & mask, "a replica is in two classes"
            assert bool(mask) == bool(self._occupied >> klass & 1), f"class {klass} is wrongly marked"
            everywhere |= mask
        assert everywhere == sum(1 << slot for slot in self._class_of), "a replica is in no class"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _decayed(self, slot: int, now: float) -> float:
        amount, when = self._recent.get(slot, (0.0, now))
        return amount * math.exp2((when - now) / RECENT_S)

    def _begin(self, lease: _Lease) -> None:
        self._requests[lease.slot] += 1
        self.total_requests += 1
        self._own[lease.slot] += lease.units
        if lease.loads:
            self._loads[lease.slot] += 1
            self.loading |= 1 << lease.slot
        self._hold(lease.slot, lease.holds)

    def _end(self, lease: _Lease | None) -> None:
        if lease is not None and lease.slot in self._class_of:
            self._requests[lease.slot] -= 1
            self.total_requests -= 1
            self._own[lease.slot] -= lease.units
            if lease.loads:
                self._loaded(lease.slot)
            self._hold(lease.slot, -lease.holds)

    def _loaded(self, slot: int) -> None:
        self._loads[slot] -= 1
        if not self._loads[slot]:
            self.loading ^= 1 << slot

    def _set_foreign(self, slot: int, requests: int, units_each: int) -> None:
        self.total_requests += requests - self._foreign_requests[slot]
        self._foreign_requests[slot] = requests
        self._foreign[slot] = requests * units_each
        self._place(slot)

    def _is_over(self, lease: _Lease) -> bool:
        """Whether the clock has nothing to do with this lease: it is confirmed, or it has ended."""
        if lease.running:
            return True
        if self._tentative.get(lease.request) is lease:
            return False
        return not any(one is lease for one in self._running.get((lease.request, lease.slot), ()))

    def _remove(self, lease: _Lease) -> None:
        if self._tentative.get(lease.request) is lease:
            del self._tentative[lease.request]
            return
        key = (lease.request, lease.slot)
        left = [one for one in self._running.get(key, ()) if one is not lease]
        if left:
            self._running[key] = left
        else:
            self._running.pop(key, None)

    def _hold(self, slot: int, more: int) -> None:
        held = self._holds[slot] = self._holds[slot] + more
        self._most_held = max(self._most_held, held)
        full = min(held / (self.room or self._most_held), _OVERFULL)
        self._crowd[slot] = int(self.crowd_weight * full * full * held)
        self._place(slot)

    def _place(self, slot: int) -> None:
        klass = load_class(self._own[slot] + self._foreign[slot] + self._crowd[slot])
        old = self._class_of.get(slot)
        if klass == old:
            return
        if old is not None:
            self._unfile(slot, old)
        self._class_of[slot] = klass
        self._classes[klass] |= 1 << slot
        self._occupied |= 1 << klass

    def _unfile(self, slot: int, klass: int) -> None:
        self._classes[klass] &= ~(1 << slot)
        if not self._classes[klass]:
            self._occupied &= ~(1 << klass)


def load_class(units: int) -> int:
    """A logarithmic class with eight steps per doubling, exact below 16: monotone, and 480 classes reach 2**62."""
    shift = units.bit_length() - 4
    return units if shift <= 0 else (shift << 3) + (units >> shift)
