"""Runs the scanner: `python -m tests.support.scan`, all of it, an hour or so.

--kind headers --kind api   of these kinds alone
--share 30                  a random share, about 30 seconds
--seed 7                    the share of this seed
--match TEXT                probes whose shape contains the text
--every 20                  every 20th probe
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from tests.support.file_probes import FILE_PROBES
from tests.support.probes import API_PROBES, WORLDS
from tests.support.scanner import Probe, Scanner, bound_ms, random_share, set_aside

PROBES = {**API_PROBES, **FILE_PROBES}


def all_probes(kinds: Iterable[str] = ()) -> list[Probe]:
    """Those of these kinds; of all when none is named."""
    return [probe for kind in kinds or PROBES for probe in PROBES[kind]()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", action="append", choices=sorted(PROBES))
    parser.add_argument("--share", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--match", default="")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth probe")
    asked = parser.parse_args()
    bound = bound_ms()
    print(f"bound {bound:.1f} ms, seed {asked.seed}", flush=True)
    scanner = Scanner(WORLDS, bound, lambda text: print(text, flush=True))
    probes = [probe for probe in all_probes(asked.kind or ()) if asked.match in probe.shape]
    set_aside()
    try:
        if asked.share:
            random_share(probes, asked.share, asked.seed, scanner.run)
        else:
            for probe in probes[asked.seed % asked.every :: asked.every]:
                scanner.run(probe)
    finally:
        scanner.close()
        for kind, count in scanner.counts.items():
            ms, shape = scanner.longest.get(kind, (0.0, ""))
            known = sum(probe.kind == kind for probe in probes)
            print(f"{kind:14} {count:6} inputs of {known:6}, longest {ms:6.1f} ms: {shape}")
        print(f"{len(scanner.findings)} findings")
    return 1 if scanner.findings else 0


if __name__ == "__main__":
    sys.exit(main())
