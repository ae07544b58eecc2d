"""How many tokens a forward pass may have, to take no longer than a target.

A pass takes a fixed time, in which a GPU's kernels are launched, and some for each token. Fewer
tokens shorten the latter only: where passes are slow because of the fixed time, smaller ones would
just answer fewer requests in the same time.
"""

FIRST_TOKENS = 2048
"""Tokens of the first passes, until it is known how long they take."""
FEW_TOKENS = 512
"""Tokens that a pass may always have: with fewer, it takes hardly less time."""
DECAY = 0.9
"""How much of the past counts, beside each new pass."""
PROPORTIONAL = 0.0003
"""The weight of the assumption that there is no fixed time, which decides if all passes have had
the same number of tokens."""


class Pace:
    """The line through the seconds of recent passes, by their tokens (least squares)."""

    def __init__(self, latency: float, most: int) -> None:
        self.latency, self.most = latency, most
        self.budget: float = min(FIRST_TOKENS, most)
        """Tokens to answer next, in one pass if they can share it."""
        self._is_warm = False
        self._passes = self._tokens = self._seconds = self._squares = self._products = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a pass; the first one, which loads kernels and reserves memory, does not count."""
        if not self._is_warm:
            self._is_warm = True
            return
        self._passes = DECAY * self._passes + 1
        self._tokens = DECAY * self._tokens + tokens
        self._seconds = DECAY * self._seconds + seconds
        self._squares = DECAY * self._squares + tokens**2
        self._products = DECAY * self._products + tokens * seconds

    def choose(self, tokens: int, seconds: float) -> None:
        """Set the budget after so many tokens, in one pass or several, took so long; it grows to
        at most twice as many."""
        if not self._passes:
            return
        fixed, each = self._line()
        # at least half of the time is for tokens: if the fixed time takes it all, few passes with
        # many tokens still answer soonest
        left = max(self.latency - fixed, self.latency / 2)
        by_line = left / each if each > 0 else self.most
        # without a fixed time, there would be time for these, and never for fewer
        target = max(FEW_TOKENS, by_line, tokens * self.latency / seconds)
        self.budget = min(self.most, target, max(self.budget, 2 * tokens))

    def _line(self) -> tuple[float, float]:
        """The seconds of a pass, and of each of its tokens."""
        passes = (1 + PROPORTIONAL) * self._passes
        spread = passes * self._squares - self._tokens**2
        each = max(0.0, (passes * self._products - self._tokens * self._seconds) / spread)
        return max(0.0, (self._seconds - each * self._tokens) / passes), each
