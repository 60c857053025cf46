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

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

import msgspec

from app.routing.load_row import Lease, Row
from app.routing.roster import any_slot, slots_of

TENTATIVE_S = 30.0
"""A choice that was never sent (Serve tells nobody about a caller that left in between) is given back after this
long.
"""
FOREIGN_S = 10.0
"""What a replica said about its queue is believed this long: Serve's own queue length cache uses the same."""

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
        self._tentative: dict[str, Lease] = {}
        self._running: dict[tuple[str, int], list[Lease]] = {}
        self._deadlines: deque[tuple[float, Lease]] = deque()
        self._rows: dict[int, Row] = {}
        self.total_requests = 0
        """In flight on all replicas together, ours and others'."""
        self.loading = 0
        """The replicas that have a request of ours which loads KV and has no first token yet."""
        self._foreign_deadlines: deque[tuple[float, int]] = deque()
        # Replicas by load: a mask for each load class, and the classes that have any, ascending.
        self._classes: list[int] = [0] * (load_class(1 << 62) + 1)
        self._occupied: list[int] = []

    # --- replicas come and go ---------------------------------------------------------------------------------------

    def add_replica(self, slot: int) -> None:
        if slot not in self._rows:
            self._rows[slot] = Row()
            self._file(slot, 0)

    def drop_replica(self, slot: int) -> None:
        """Forget the replica and everything in flight on it."""
        row = self._rows.pop(slot, None)
        if row is None:
            return
        for request in [name for name, lease in self._tentative.items() if lease.slot == slot]:
            del self._tentative[request]
        for key in [key for key in self._running if key[1] == slot]:
            del self._running[key]
        self.total_requests -= row.requests + row.foreign_requests
        self.loading &= ~(1 << slot)
        self._unfile(slot, row.klass)

    # --- requests ---------------------------------------------------------------------------------------------------

    def assign(self, request: str, slot: int, prefill_units: int, held_units: int = 0, *, loads: bool = False) -> None:
        """The request will probably go to `slot`: counts at once. A second choice for the same request replaces the
        first. `held_units` is how much more of its KV takes room until it ends, computed or not; `loads` that it waits
        for KV from another tier before its prefill.
        """
        if request in self._tentative:
            self._end(self._tentative.pop(request))
        row = self._rows.get(slot)
        if row is None:
            return
        lease = Lease(request, slot, self.request_units + prefill_units, prefill_units, held_units, loads)
        self._tentative[request] = lease
        now = self._clock()
        row.recent, row.recent_at = row.recently(now) + lease.units, now
        self._deadlines.append((now + TENTATIVE_S, lease))
        self._begin(lease, row)

    def has_tentative(self, request: str) -> bool:
        return request in self._tentative

    def settle(self, request: str, slot: int | None) -> None:
        """It is known where the request went; None means nowhere, the caller left."""
        lease = self._tentative.pop(request, None)
        if lease is None:
            return
        if slot != lease.slot:
            self._end(lease)
            row = None if slot is None else self._rows.get(slot)
            if slot is None or row is None:
                return
            lease = Lease(request, slot, lease.units, lease.prefill, lease.holds, lease.loads)
            self._deadlines.append((self._clock() + TENTATIVE_S, lease))
            self._begin(lease, row)
        self._running.setdefault((request, slot), []).append(lease)

    def confirm(self, request: str, slot: int) -> None:
        """The replica accepted: from now on only its end gives the units back, not the clock."""
        for lease in self._running.get((request, slot), ()):
            lease.running = True

    def first_token(self, request: str, slot: int) -> None:
        """The request's prefill is over: only its constant part still counts."""
        for lease in self._running.get((request, slot), ()):
            if lease.loads:
                self._loaded(slot, self._rows[slot])
                lease.loads = False
            if lease.prefill:
                row = self._rows[slot]
                row.own -= lease.prefill
                lease.units -= lease.prefill
                lease.prefill = 0
                self._place(slot, row)

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
        row = self._rows.get(slot)
        if row is None:
            return
        if ongoing <= row.requests and not row.foreign_requests:
            return  # nobody else's, as before
        average = row.own // row.requests if row.requests else self.request_units
        self._set_foreign(slot, row, max(0, ongoing - row.requests), max(self.request_units, average))
        row.foreign_until = self._clock() + FOREIGN_S
        self._foreign_deadlines.append((row.foreign_until, slot))

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
            row = self._rows.get(slot)
            if row is not None and row.foreign_until == until:
                row.foreign_until = None
                self._set_foreign(slot, row, 0, 0)

    # --- questions --------------------------------------------------------------------------------------------------

    def busy(self, slot: int) -> Busy:
        row = self._rows.get(slot, _NOBODY)
        return Busy(row.requests, row.own + row.foreign)

    def units(self, slot: int) -> int:
        row = self._rows.get(slot, _NOBODY)
        return row.own + row.foreign

    def weight(self, slot: int) -> int:
        """What replicas are ordered by: their units and their crowding, which is nearly nothing far below an engine's
        room. Crowding is as of the last change of what is in flight there.
        """
        return self._rows.get(slot, _NOBODY).weight()

    def recent(self, slot: int) -> float:
        """Work given to the replica lately, done or not: what will come back to it, since conversations return."""
        return self._rows.get(slot, _NOBODY).recently(self._clock())

    def score(self, slot: int, work: float, per_unit: float, per_recent: float, now: float) -> float:
        """`work` with what the replica's weight and its recent work add to it: what policies minimise."""
        row = self._rows.get(slot, _NOBODY)
        return work + per_unit * row.weight() + per_recent * row.recently(now)

    def requests(self, slot: int) -> int:
        """In flight on the replica, ours and others'."""
        row = self._rows.get(slot, _NOBODY)
        return row.requests + row.foreign_requests

    def least(self, mask: int, count: int, random: Callable[[], float]) -> list[int]:
        """Up to `count` of the least loaded replicas in `mask`, in ascending order of load class, ties shuffled.

        By `weight`; classes are exact up to 15 units and an eighth wide above. O(occupied classes), not O(replicas).
        """
        if not mask & (mask - 1):
            # A conversation's own step has one holder: half of all questions.
            return [mask.bit_length() - 1] if mask else []
        found: list[int] = []
        classes = self._classes
        for klass in self._occupied:
            here = classes[klass] & mask
            if not here:
                continue
            mask ^= here
            while here:
                slot = any_slot(here, random) if here & (here - 1) else here.bit_length() - 1
                here ^= 1 << slot
                found.append(slot)
                if len(found) >= count:
                    return found
            if not mask:
                break
        return found

    def check_integrity(self) -> None:
        """Raises AssertionError, with the numbers, unless every unit belongs to a live lease and every mask is
        right.
        """
        leases = [*self._tentative.values(), *(one for group in self._running.values() for one in group)]
        for slot, row in self._rows.items():
            mine = [lease for lease in leases if lease.slot == slot]
            units = sum(lease.units for lease in mine)
            assert row.requests == len(mine), f"slot {slot}: {row.requests} requests counted, {len(mine)} leased"
            holds = sum(lease.holds for lease in mine)
            assert row.holds == holds, f"slot {slot}: {row.holds} units held, {holds} leased"
            assert row.own == units, f"slot {slot}: {row.own} units counted, {units} leased"
            loads = sum(lease.loads for lease in mine)
            assert row.loads == loads, f"slot {slot}: {row.loads} loads counted, {loads} leased"
            assert bool(loads) == bool(self.loading >> slot & 1), f"slot {slot} is wrongly marked as loading"
            klass = load_class(row.weight())
            assert row.klass == klass, f"slot {slot} is in class {row.klass}, not {klass}"
            assert row.recent >= 0.0
            assert self._classes[klass] >> slot & 1, f"slot {slot} is missing from its class"
        assert self._rows.keys() >= set(slots_of(self.loading)), "a replica that is gone is marked as loading"
        assert all(lease.slot in self._rows for lease in leases), "a lease outlived its replica"
        total = sum(self.requests(slot) for slot in self._rows)
        assert self.total_requests == total, f"{self.total_requests} requests in total, {total} counted"
        everywhere = 0
        for klass, mask in enumerate(self._classes):
            assert not everywhere & mask, "a replica is in two classes"
            assert bool(mask) == (klass in self._occupied), f"class {klass} is wrongly marked"
            everywhere |= mask
        assert self._occupied == sorted(set(self._occupied)), "the occupied classes are out of order"
        assert everywhere == sum(1 << slot for slot in self._rows), "a replica is in no class"

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, lease: Lease, row: Row) -> None:
        row.requests += 1
        row.own += lease.units
        self.total_requests += 1
        if lease.loads:
            row.loads += 1
            self.loading |= 1 << lease.slot
        self._hold(lease.slot, row, lease.holds)

    def _end(self, lease: Lease) -> None:
        row = self._rows.get(lease.slot)
        if row is not None:
            row.requests -= 1
            row.own -= lease.units
            self.total_requests -= 1
            if lease.loads:
                self._loaded(lease.slot, row)
            self._hold(lease.slot, row, -lease.holds)

    def _loaded(self, slot: int, row: Row) -> None:
        row.loads -= 1
        if not row.loads:
            self.loading ^= 1 << slot

    def _set_foreign(self, slot: int, row: Row, requests: int, units_each: int) -> None:
        self.total_requests += requests - row.foreign_requests
        row.foreign_requests = requests
        row.foreign = requests * units_each
        self._place(slot, row)

    def _is_over(self, lease: Lease) -> bool:
        """Whether the clock has nothing to do with this lease: it is confirmed, or it has ended."""
        if lease.running:
            return True
        if self._tentative.get(lease.request) is lease:
            return False
        return not any(one is lease for one in self._running.get((lease.request, lease.slot), ()))

    def _remove(self, lease: Lease) -> None:
        if self._tentative.get(lease.request) is lease:
            del self._tentative[lease.request]
            return
        key = (lease.request, lease.slot)
        left = [one for one in self._running.get(key, ()) if one is not lease]
        if left:
            self._running[key] = left
        else:
            self._running.pop(key, None)

    def _hold(self, slot: int, row: Row, more: int) -> None:
        held = row.holds = row.holds + more
        if held > self._most_held:
            self._most_held = held
        full = min(held / (self.room or self._most_held), _OVERFULL)
        row.crowd = int(self.crowd_weight * full * full * held)
        self._place(slot, row)

    def _place(self, slot: int, row: Row) -> None:
        klass = load_class(row.own + row.foreign + row.crowd)
        if klass != row.klass:
            self._unfile(slot, row.klass)
            row.klass = klass
            self._file(slot, klass)

    def _file(self, slot: int, klass: int) -> None:
        if not self._classes[klass]:
            insort(self._occupied, klass)
        self._classes[klass] |= 1 << slot

    def _unfile(self, slot: int, klass: int) -> None:
        self._classes[klass] ^= 1 << slot
        if not self._classes[klass]:
            del self._occupied[bisect_left(self._occupied, klass)]


def load_class(units: int) -> int:
    """A logarithmic class with eight steps per doubling, exact below 16: monotone, and 480 classes reach 2**62."""
    shift = units.bit_length() - 4
    return units if shift <= 0 else (shift << 3) + (units >> shift)


_NOBODY = Row()
"""The load of a replica that is not there."""
