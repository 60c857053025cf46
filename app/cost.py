"""Seconds: to prefill tokens, to load them from a tier, to wait. Ground that routing and tiers share, calibrated
while serving.

Each cost is a line, seconds = fixed + tokens * slope, fitted by least squares over recent observations, with a prior
that counts as a few observations: before calibration the prior answers, afterwards it is forgotten. Two parameters
are enough to see that a tier has latency and a rate; attention's quadratic part is folded into the slope of the
lengths that occur.
"""

import threading
from typing import Literal

import msgspec

Tier = Literal["l1", "l2"]


class Prior(msgspec.Struct, frozen=True):
    """What is believed before anything was measured. Rates in tokens per second, fixed costs in seconds.

    The defaults suit a 7B model on one mid-range GPU. What matters before calibration is their order: an L1 load
    beats an L2 load beats computing, except that a short prompt is computed sooner than it is fetched from L2.
    """

    prefill_rate: float = 5_000.0
    prefill_fixed_s: float = 0.01
    l1_rate: float = 100_000.0
    l1_fixed_s: float = 0.003
    l2_rate: float = 25_000.0
    l2_fixed_s: float = 0.02


class Cost(msgspec.Struct, frozen=True):
    """Seconds to the first token, by where they go."""

    wait_s: float
    load_s: float
    prefill_s: float

    @property
    def total_s(self) -> float:
        return self.wait_s + self.load_s + self.prefill_s


class CostModel:
    """Thread safe; nothing blocks beyond a handful of additions under a lock, nothing raises. Reads take no lock: a
    line's two numbers are replaced together as one tuple.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self.prior = prior = prior or Prior()
        self._lock = threading.Lock()
        self._declined: dict[Tier, int] = {"l1": 0, "l2": 0}
        self._prefill = Line(prior.prefill_fixed_s, 1.0 / prior.prefill_rate)
        self._loads: dict[Tier, Line] = {
            "l1": Line(prior.l1_fixed_s, 1.0 / prior.l1_rate),
            "l2": Line(prior.l2_fixed_s, 1.0 / prior.l2_rate),
        }

    def prefill_s(self, tokens: int) -> float:
        return self._prefill.at(tokens)

    def load_s(self, tier: Tier, tokens: int) -> float:
        """Until loads of the tier were observed, the prior's, as much dearer as computing has turned out to be: a model
        that computes slowly has more bytes a token, or a slow machine.
        """
        line = self._loads[tier]
        seconds = line.at(tokens)
        return seconds if line.observations else seconds * self._prefill.slope * self.prior.prefill_rate

    def wait_s(self, pending_tokens: int) -> float:
        """Behind so many tokens still to prefill.

        Half of the pending tokens: at a random moment, what is in flight is half done.
        """
        return 0.5 * pending_tokens * self._prefill.slope

    def first_token(self, computed: int, l1: int = 0, l2: int = 0, *, pending_tokens: int = 0) -> Cost:
        """The seconds until a request's first token, given what must be computed and loaded for it and who is ahead
        of it.
        """
        load = self.load_s("l1", l1) + self.load_s("l2", l2)
        return Cost(self.wait_s(pending_tokens), load, self.prefill_s(computed))

    def worth_loading(self, tier: Tier, tokens: int) -> bool:
        """Whether fetching is sooner than computing. Used by the tiers' load-or-recompute decision.

        A tier that was found too slow is tried again every `_RETRY`-th time: what is not loaded is not measured
        either, and one slow minute would be believed for ever.
        """
        if self.load_s(tier, tokens) < self.prefill_s(tokens):
            return True
        with self._lock:
            self._declined[tier] += 1
            return self._declined[tier] % _RETRY == 0

    def observations(self, tier: Tier) -> int:
        """What `worth_loading` rests on: how often prefill and that tier's loads were observed, whichever was less."""
        return min(self._prefill.observations, self._loads[tier].observations)

    def tokens_in(self, seconds: float) -> int:
        """How many tokens could be prefilled in that time: turns any cost into load counting's units."""
        return int(seconds / self._prefill.slope)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        with self._lock:
            self._prefill.observe(tokens, seconds)

    def observe_load(self, tier: Tier, tokens: int, seconds: float) -> None:
        with self._lock:
            self._loads[tier].observe(tokens, seconds)

    def observe_first_token(
        self, seconds: float, computed: int, l1: int = 0, l2: int = 0, *, waited_s: float = 0.0
    ) -> None:
        """One response's time to first token, waiting known apart. Of a prompt that was mostly computed, what is left
        after the loads' expected time is prefill; of one that was mostly loaded, what is left after the prefill's is
        the loads'. The lesser part is never learned from: the remainder of two estimates is noise.
        """
        loads = self.load_s("l1", l1) + self.load_s("l2", l2)
        if computed < l1 + l2:
            # Of two tiers it cannot be told which was slow: both are taken to be. No time at all is no measurement,
            # but it was quick; left out, only the slow ones would count.
            ratio = max((seconds - waited_s - self.prefill_s(computed)) / loads, 1 / _OUTLIER)
            self.observe_load("l1", l1, ratio * self.load_s("l1", l1))
            self.observe_load("l2", l2, ratio * self.load_s("l2", l2))
        elif (rest := seconds - waited_s - loads) > 0:
            self.observe_prefill(computed, rest)

    def status(self) -> dict[str, float]:
        lines = {"prefill": self._prefill, "l1": self._loads["l1"], "l2": self._loads["l2"]}
        figures: dict[str, float] = {}
        for name, line in lines.items():
            figures[f"{name}_tokens_per_s"] = 1.0 / line.slope
            figures[f"{name}_fixed_s"] = line.fixed
            figures[f"{name}_observations"] = float(line.observations)
        return figures

    def check_integrity(self) -> None:
        for line in (self._prefill, *self._loads.values()):
            assert line.slope > 0, f"slope {line.slope}"
            assert line.fixed >= 0, f"fixed {line.fixed}"


_RETRY = 16
_PRIOR_TOKENS = (64.0, 1024.0)
_KEEP = 0.98
"""Weight kept per observation: the last fifty count, so a change of load or hardware is learned in about a minute."""
_OUTLIER = 8.0
"""An observation is bounded to this many times the expectation and its inverse: one hiccup must not move traffic."""


class Line:
    """seconds = fixed + tokens * slope, by decayed least squares. Both stay non-negative. Not thread safe for
    writers.
    """

    def __init__(self, fixed: float, slope: float) -> None:
        self._line = (fixed, slope)
        self.observations = 0
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        for tokens in _PRIOR_TOKENS:
            self._add(tokens, fixed + tokens * slope)

    @property
    def fixed(self) -> float:
        return self._line[0]

    @property
    def slope(self) -> float:
        return self._line[1]

    def at(self, tokens: int) -> float:
        """Zero tokens cost nothing: no request is made for them."""
        if tokens <= 0:
            return 0.0
        fixed, slope = self._line
        return fixed + tokens * slope

    def observe(self, tokens: int, seconds: float) -> None:
        if tokens <= 0 or not 0.0 < seconds < 3600.0:
            return
        if self.observations >= 3:
            expected = self.at(tokens)
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        self.observations += 1
        # The first observations replace the prior quickly: a laptop is a hundred times slower than the prior's GPU.
        keep = _KEEP if self.observations > 3 else 0.1
        self._n, self._x, self._y = self._n * keep, self._x * keep, self._y * keep
        self._xx, self._xy = self._xx * keep, self._xy * keep
        self._add(float(tokens), seconds)
        self._fit()

    def _add(self, x: float, y: float) -> None:
        # Weighted by 1/x, so that relative and not absolute errors are balanced and long prompts do not drown short
        # ones.
        weight = 1.0 / x
        self._n += weight
        self._x += weight * x
        self._y += weight * y
        self._xx += weight * x * x
        self._xy += weight * x * y

    def _fit(self) -> None:
        spread = self._n * self._xx - self._x * self._x
        mean = self._y / self._x
        if spread <= 1e-9 * self._n * self._xx:
            self._line = (0.0, mean)
            return
        slope = (self._n * self._xy - self._x * self._y) / spread
        fixed = (self._y - slope * self._x) / self._n
        if slope <= 0 or fixed < 0:
            # All lengths alike, or noise: a line through the origin with the mean rate.
            fixed, slope = 0.0, mean
        self._line = (fixed, slope)
