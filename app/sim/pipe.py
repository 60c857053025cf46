"""A link or a disk with a bandwidth: transfers queue up behind each other, so contention costs time."""


class Pipe:
    """First in, first out. Serial transfers end when fairly shared ones would on average, and cost O(1) each."""

    def __init__(self, bytes_per_s: float) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self.carried = 0
        """Bytes accepted so far."""
        self._free_at = 0.0

    def backlog_s(self, now: float) -> float:
        return max(0.0, self._free_at - now)

    def send(self, now: float, size: int) -> float:
        """When these bytes have passed."""
        self._free_at = max(now, self._free_at) + size / self.bytes_per_s
        self.carried += size
        return self._free_at
