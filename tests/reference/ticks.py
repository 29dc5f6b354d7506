"""When the end of a tick runs, in plain Python: the model that the kernel is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

AT_ONCE_MAX = 32
WORK_MAX = 1 << 20
MESSAGE_WORK = 1536


@dataclass
class TickModel:
    """`ends` is what each end of tick covered: (did engines have work, who was flushed)."""

    ends: list[tuple[bool, tuple[int, ...]]] = field(default_factory=list)
    scheduled: bool = False
    engines_due: bool = False
    dirty: list[int] = field(default_factory=list)
    reads_covered: int = 0
    work: int = 0
    at_once: int = 0

    def mark(self, sink: int) -> None:
        if sink not in self.dirty:
            self.dirty.append(sink)
        self._outside()

    def schedule(self) -> None:
        self.engines_due = True
        self._outside()

    def read(
        self, sinks: list[int], *, engines: bool, n: int = 0, messages: int = 0, full: bool = False
    ) -> None:
        """A read marks these sinks and perhaps gives engines work."""
        self.dirty += [sink for sink in dict.fromkeys(sinks) if sink not in self.dirty]
        self.engines_due |= engines
        if (sinks or engines) and not self.scheduled and self.at_once == 0:
            self.scheduled = True
        if full and self.engines_due:
            self.scheduled = True
        if self.scheduled:
            self.reads_covered += 1
            self.work += n + messages * MESSAGE_WORK
            if self.engines_due and self.work >= WORK_MAX:
                self._end()
        elif self.dirty or self.engines_due:
            self.at_once -= 1
            self._end()

    def iterate(self) -> None:
        """The event loop goes round."""
        if not self.scheduled:
            return
        if self.reads_covered:
            self.at_once = AT_ONCE_MAX if self.reads_covered == 1 else 0
        self.scheduled, self.reads_covered = False, 0
        self._end()

    def _outside(self) -> None:
        self.scheduled = True

    def _end(self) -> None:
        self.ends.append((self.engines_due, tuple(self.dirty)))
        self.engines_due, self.dirty, self.work = False, [], 0
