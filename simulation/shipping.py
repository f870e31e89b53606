"""Draw for a plan that its cluster is backed up, to a bucket that fails.

Law: bounds are as much smaller as the plans are shorter than a cluster's life. With moments that go, no clock is wrong: what
is a day to a backup is some seconds here, and hours between clocks have no such measure.
"""

from __future__ import annotations

from random import Random
from typing import get_args

from msgspec.structs import replace

from simulation.plan import (
    AlterRow,
    BucketTrouble,
    ClockDrift,
    ClockJump,
    CrashAt,
    Fault,
    Plan,
    Ship,
    ShippingPoint,
    SpoilBucket,
)

BOUNDS: dict[str, int | float | str] = {
    "quorum_register_found_s": 0.2,
    "ship_s": 0.4,
    "declared_ask_s": 3.0,
    "retry_s_max": 2.0,
    "late_s": 1.5,
    "turn_ms": 2000,
    "merged_min": 3,
    "sweep_s": 2.0,
    "retire_s": 1.0,
    "bases_look_s": 1.0,
    "keep_ms_min": 1,
    "named_within_ms": 2000,
    "orphans_keep_ms": 20_000,
    "whole_every": 8,
}
KEPT = 0.5
"""The share of the plans whose backup lets moments go."""
_SPOILS_MAX = 4


def shipped(plan: Plan, random: Random) -> Plan:
    """The plan with a backup, with a bucket that fails, and with crashes at what nodes change in it."""
    keep_s = random.choice((2.0, 4.0)) if random.random() < KEPT else 0.0
    begins, ends = 0.6, max(1.0, plan.duration_s - 0.5)
    faults: list[Fault] = [Ship(at=_round(random.uniform(begins, begins + 1.5)), keep_s=keep_s)]
    for _ in range(random.randint(0, _SPOILS_MAX)):
        kind: BucketTrouble = random.choice(get_args(BucketTrouble))
        at, share = _round(random.uniform(begins, ends)), random.choice((0.2, 0.5, 1.0))
        faults.append(SpoilBucket(at=at, kind=kind, share=share, for_s=_round(0.2 + min(6.0, random.expovariate(0.7)))))
    for _ in range(random.choice((0, 0, 1, 3))):
        point: ShippingPoint = random.choice(get_args(ShippingPoint))
        at, nth = _round(random.uniform(begins, ends)), 1 + int(random.expovariate(0.5))
        crash = CrashAt(at=at, node=random.choice(plan.names), point=point, nth=nth, down_s=_round(random.uniform(0.1, 3.0)))
        faults.append(replace(crash, keep=random.choice((0, 1, None))))
    # A row that a disk alters before a base of it is shipped is in the backup as it is, until a verification tells.
    kept = [fault for fault in plan.faults if not isinstance(fault, (AlterRow, ClockJump, ClockDrift) if keep_s else AlterRow)]
    bounds = BOUNDS | {
        "pack_bytes": random.choice((600, 4000)),
        "base_after_bytes": random.choice((1000, 4000, 1 << 18)),
        "base_every_ms": random.choice((300, 2000)),
        "first_operations_max": random.choice((1, 8, 512)),
        "merged_bytes": random.choice((2000, 8000)),
    }
    return replace(plan, settings=bounds | plan.settings, faults=sorted([*kept, *faults], key=lambda fault: fault.at))


def _round(value: float) -> float:
    return round(value, 3)
