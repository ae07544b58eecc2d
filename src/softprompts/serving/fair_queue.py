"""A queue that is fair: each tenant gets the same share of the model's time, however much it asks.

Deficit round robin (Shreedhar & Varghese 1996): tenants take turns, and each turn allows so many
tokens. Higher priorities go first, and within a tenant whoever came first.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

QUANTUM = 512
"""Tokens that a turn allows."""


class FairQueue(Generic[Item]):
    """Items by tenant and priority, each with its cost in tokens."""

    def __init__(self) -> None:
        self._turns: dict[int, OrderedDict[str, deque[tuple[Item, int]]]] = {}
        """By priority: the tenants that wait, the next to be served first."""
        self._credit: dict[tuple[int, str], int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        for turns in self._turns.values():
            for waiting in turns.values():
                yield from (item for item, _ in waiting)

    def push(self, item: Item, tenant: str, cost: int, priority: int = 0) -> None:
        turns = self._turns.setdefault(priority, OrderedDict())
        turns.setdefault(tenant, deque()).append((item, cost))
        self._count += 1

    def take(
        self, most: int, budget: float, fits: Callable[[Item], bool] = lambda item: True
    ) -> list[Item]:
        """Up to `most` items, which cost `budget` tokens at most, and at least one if one fits.

        The first that does not fit ends the batch, so that it is not overtaken for ever.
        """
        taken: list[Item] = []
        for priority in sorted(self._turns, reverse=True):
            turns = self._turns[priority]
            while turns:
                tenant, waiting = next(iter(turns.items()))
                credit = self._credit.get((priority, tenant), QUANTUM)
                while waiting and waiting[0][1] <= credit:
                    item, cost = waiting[0]
                    if len(taken) >= most or (taken and cost > budget) or not fits(item):
                        self._credit[priority, tenant] = credit
                        return taken
                    waiting.popleft()
                    self._count -= 1
                    taken.append(item)
                    credit, budget = credit - cost, budget - cost
                if waiting:
                    self._credit[priority, tenant] = credit + QUANTUM
                    turns.move_to_end(tenant)
                else:  # whoever asks for nothing saves nothing up
                    del turns[tenant]
                    self._credit.pop((priority, tenant), None)
            del self._turns[priority]
        return taken

    def remove(self, gone: Callable[[Item], bool]) -> None:
        for priority, turns in self._turns.items():
            for tenant, waiting in list(turns.items()):
                stay = deque(pair for pair in waiting if not gone(pair[0]))
                self._count -= len(waiting) - len(stay)
                turns[tenant] = stay
                if not stay:
                    del turns[tenant]
                    self._credit.pop((priority, tenant), None)
