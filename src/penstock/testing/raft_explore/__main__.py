"""Command line of the exploration: explores the configurations named, or all, and prints what each has."""

from __future__ import annotations

import argparse
import sys
import time

from penstock.testing.raft_explore.exploration import BrokenInvariant, Exploration
from penstock.testing.raft_explore.raft_configurations import CONFIGURATIONS, LARGE, LARGE_STATES


def main() -> int:
    """Prints each violation with its trace; the exit status says whether there was one."""
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.raft_explore", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CONFIGURATIONS | LARGE)}")
    parser.add_argument("--states", type=int, help="stop a search after so many")
    arguments = parser.parse_args()
    say = sys.stdout.write
    status = 0
    for name in arguments.names or CONFIGURATIONS | LARGE:
        states_max = arguments.states or (LARGE_STATES if name in LARGE else 3_000_000)
        began = time.process_time()
        try:
            found = Exploration((CONFIGURATIONS | LARGE)[name], states_max=states_max).run()
        except BrokenInvariant as violation:
            status = 1
            say("\n".join([f"{name}: {violation}", *violation.trace, ""]))
            continue
        took = time.process_time() - began
        end = "all" if found.is_complete else "not all"
        say(
            f"{name}: {end} {found.states} states, {found.transitions} transitions, "
            f"{found.local_states} states of replicas, {found.messages} messages, {took:.1f} s\n"
        )
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
