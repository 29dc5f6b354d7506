"""Which connection is served, in plain Python: the model that the kernel is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

SHORT_BUDGET_NS = 25_000
LONG_BUDGET_NS = 2_000_000
CROWD_PERIOD_NS = 10_000_000


@dataclass
class BudgetModel:
    """Those that wait are (name, cost of its part in ns, how many times it asks again)."""

    now_ns: int = 1
    crowded_until: int = 0
    queue: list[tuple[str, int, int]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    def light(self) -> None:
        self.crowded_until = self.now_ns + CROWD_PERIOD_NS

    def wait(self, name: str, cost_ns: int, again: int) -> None:
        self.queue.append((name, cost_ns, again))

    def iterate(self) -> None:
        until = self.now_ns + (SHORT_BUDGET_NS if self.now_ns < self.crowded_until else LONG_BUDGET_NS)
        due, behind = self.queue, []
        while due:
            name, cost_ns, again = due.pop(0)
            self.served.append(name)
            self.now_ns += cost_ns
            if again:
                behind.append((name, cost_ns, again - 1))
            if self.now_ns >= until:
                break
        self.queue = due + behind
