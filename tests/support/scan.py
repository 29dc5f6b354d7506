"""Runs the scanner: `python -m tests.support.scan`, all of it, an hour or so of CPU.

--kind headers --kind api   of these kinds alone
--share 30                  a random share, about 30 seconds
--seed 7                    the share, or the order, of this seed
--match TEXT                probes whose shape contains the text
--shard 1/4                 the second of four parts of about equal size, for several processes or days
--done FILE                 notes there how many probes are done, and goes on behind them

Probes come in an order drawn with the seed: what a run that was ended early has seen is a fair sample of all,
and probes meet what others, of any kind, left on their server.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.support.file_probes import FILE_PROBES
from tests.support.probes import API_PROBES, SETUPS
from tests.support.scanner import Probe, Scanner, bound_ms, random_share, set_aside

PROBES = {**API_PROBES, **FILE_PROBES}
NOTE_EVERY = 100


class Done(msgspec.Struct):
    """How far a run has come: with the same shard, kinds and match, it goes on after `count` probes."""

    seed: int
    shard: str
    count: int = 0
    findings: list[str] = []


def all_probes(kinds: Iterable[str] = ()) -> list[Probe]:
    """Those of these kinds; of all when none is named."""
    return [probe for kind in kinds or PROBES for probe in PROBES[kind]()]


def shard_of(probes: list[Probe], shard: str, seed: int) -> list[Probe]:
    """The part "i/n" of all probes, counted from 0, in the order of the seed. All parts together have each
    probe once."""
    index, _, count = shard.partition("/")
    chosen = list(probes)
    random.Random(seed).shuffle(chosen)
    return chosen[int(index) :: int(count)]


def resumed(path: Path | None, seed: int, shard: str) -> Done:
    """What the file says, or a run from its beginning. Raises ValueError when the file is another shard's."""
    if path is None or not path.exists():
        return Done(seed, shard)
    done = msgspec.json.decode(path.read_bytes(), type=Done)
    if done.shard != shard:
        raise ValueError(f"{path} is of shard {done.shard}, not {shard}: name another file, or remove it")
    return done


@contextlib.contextmanager
def noting(path: Path | None, done: Done) -> Iterator[None]:
    """Writes how far the run came, at the end of the block."""
    try:
        yield
    finally:
        if path is not None:
            path.write_bytes(msgspec.json.encode(done))


def run_shard(scanner: Scanner, probes: list[Probe], done: Done, path: Path | None) -> None:
    """Runs the probes that are not done yet."""
    left = probes[done.count :]
    for at in range(0, len(left), NOTE_EVERY):
        with noting(path, done):
            for probe in left[at : at + NOTE_EVERY]:
                seen = len(scanner.findings)
                scanner.run(probe)
                done.count += 1
                done.findings += map(str, scanner.findings[seen:])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", action="append", choices=sorted(PROBES))
    parser.add_argument("--share", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--match", default="")
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--done", type=Path, metavar="FILE")
    asked = parser.parse_args()
    done = resumed(asked.done, asked.seed, asked.shard)
    print(f"bound {bound_ms():.1f} ms, seed {done.seed}, {done.count} probes done before", flush=True)
    scanner = Scanner(SETUPS, bound_ms, lambda text: print(text, flush=True))
    probes = [probe for probe in all_probes(asked.kind or ()) if asked.match in probe.shape]
    set_aside()
    try:
        if asked.share:
            random_share(probes, asked.share, done.seed, scanner.run)
        else:
            probes = shard_of(probes, asked.shard, done.seed)
            run_shard(scanner, probes, done, asked.done)
    finally:
        scanner.close()
        for kind, count in scanner.counts.items():
            ms, shape = scanner.longest.get(kind, (0.0, ""))
            known = sum(probe.kind == kind for probe in probes)
            print(f"{kind:14} {count:6} inputs of {known:6}, longest {ms:6.1f} ms: {shape}")
        print(f"{scanner.counts.total()} inputs, {done.count} of {len(probes)} done, "
              f"{len(scanner.findings)} findings, CPU {time.process_time():.0f} s")  # fmt: skip
    return 1 if scanner.findings else 0


if __name__ == "__main__":
    sys.exit(main())
