"""`python -m tests.mutants`: plant each bug, and look for it with the simulator. Exit status 1 if one is missed.

`--near 300 --save` is the quick way back for a bug whose saved plan does not find it any more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import median

from simulation.plan import from_json, to_json
from tests.mutants.catalogue import ALL, PLANS
from tests.mutants.hunting import EVENTS_MAX, Hunt, hunt, hunt_near


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    names = options.only or list(ALL)
    _say(f"| the bug | invariants | plans | found by | seconds | events |\n|{'---|' * 6}")
    hunts = []
    for hunted in _hunts(names, options.seeds, options.near, options.jobs):
        _say(_row(hunted))
        hunts.append(hunted)
        if options.save and hunted.found is not None:
            PLANS.mkdir(exist_ok=True)
            (PLANS / f"{hunted.mutant.name}.json").write_bytes(to_json(hunted.found.plan) + b"\n")
    _say(f"\n{_summary(hunts)}")
    return 0 if all(hunted.found for hunted in hunts) else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds are drawn at most for each")
    parser.add_argument("--only", action="append", choices=sorted(ALL), metavar="NAME", help="this mutant (may be repeated)")
    parser.add_argument(
        "--near", type=int, default=0, metavar="N", help="draw nothing: run the saved plan of each and N neighbours of it"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--save", action="store_true", help=f"save the shrunken plans, which the test suite runs: {PLANS.name}/"
    )
    return parser


def _hunts(names: list[str], seeds: int, near: int, jobs: int) -> Iterator[Hunt]:
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for done in as_completed([pool.submit(_hunt, name, seeds, near) for name in names]):
            yield done.result()


def _hunt(name: str, seeds: int, near: int) -> Hunt:
    if not near:
        return hunt(ALL[name], range(seeds))
    return hunt_near(ALL[name], from_json((PLANS / f"{name}.json").read_bytes()), near + 1)


def _row(hunted: Hunt) -> str:
    mutant, found = hunted.mutant, hunted.found
    if found is None:
        otherwise = f" (but {', '.join(sorted(hunted.otherwise))})" if hunted.otherwise else ""
        by, events = f"**missed**{otherwise}", "–"
    else:
        by, events = f"{found.by}: {', '.join(sorted(found.broken))}", str(found.events)
    named = ", ".join(mutant.invariants)
    return f"| {mutant.breaks} (`{mutant.name}`) | {named} | {hunted.plans} | {by} | {hunted.hunting_s:.1f} | {events} |"


def _summary(hunts: list[Hunt]) -> str:
    found = [hunted for hunted in hunts if hunted.found is not None]
    large = [hunted.mutant.name for hunted in found if hunted.found is not None and hunted.found.events > EVENTS_MAX]
    text = f"{len(found)} of {len(hunts)} found"
    if found:
        plans = [hunted.plans for hunted in found]
        text += f", in {median(plans):g} plans (median), {max(plans)} at most"
    if large:
        text += f"; shrunk to more than {EVENTS_MAX} events: {', '.join(large)}"
    return text


if __name__ == "__main__":
    sys.exit(main())
