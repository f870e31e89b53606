"""Draw for a plan that idle threads go to a bucket, which fails.

Laws:
- Beside acts that fall anywhere there are scenes: a thread is saved, moves, and something meets it there, or on the way.
- Objects are lost, and disks wiped, of nodes that are a minority with those that lose their disks.
- No row of these plans is altered on a disk: it is noticed once its chunks are back, and until then compared with nobody's.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from simulation.parts.attic import FAMILY, SETTINGS
from simulation.parts.drawing import draw_apart
from simulation.plan import Act, ActKind, AlterRow, Bucket, Crash, Fault, Plan, Trouble, Wipe, struck

FAILS, LOSES, WIPED = 0.4, 0.3, 0.4
"""The shares of the plans in which the bucket fails for a while, in which it loses objects, and in which a peer has to be
given what is away.
"""
SCENES_MAX = 3
_TROUBLES: tuple[Trouble, ...] = ("away", "denied", "flaky", "slow", "slow")
_MET: tuple[ActKind, ...] = ("prune-away", "prune-away", "delete-away", "read-away", "load-away", "export-away", "move-now")
_KEPT: tuple[ActKind, ...] = ("set-tiering", "keep-file", "keep-file", "move-now", "read-kept-file")
_SAVES = 3, 10


def tiered(plan: Plan, random: Random, begins: float) -> Plan:
    """The plan with threads that move from this moment on."""
    within = begins, plan.duration_s
    acts = [*plan.acts, *draw_apart(random, FAMILY, plan.agents, within), _act(random, begins, 0, "set-tiering")]
    faults: list[Fault] = [fault for fault in plan.faults if not isinstance(fault, AlterRow)]
    settings = dict(SETTINGS)
    if random.random() < FAILS:
        faults += [_failing(random, random.uniform(0.0, plan.duration_s)) for _ in range(random.randint(1, 4))]
    for _ in range(random.randint(1, SCENES_MAX)):
        met_s = _scene(random, plan, within, acts, faults)
        if random.random() < WIPED / SCENES_MAX:
            wipe = Wipe(at=met_s, node=random.choice(plan.names), down_s=_round(random.uniform(0.1, 2.0)))
            faults += _minority(plan, faults, [wipe])
            settings["snapshot_operations_min"] = random.choice((1, 1, 1000))
            settings["snapshot_piece_bytes"] = random.choice((2000, 65536))
    if random.random() < LOSES:
        node = random.choice(sorted(struck(faults)) or plan.names)
        faults += _minority(plan, faults, [_object(random, within, node) for _ in range(random.randint(1, 3))])
    return replace(plan, settings=settings | plan.settings, acts=sorted(acts, key=_at), faults=sorted(faults, key=_at))


def shelved(plan: Plan, random: Random, begins: float) -> Plan:
    """The plan of `tiered`, with files that stay in the bucket: they are put, move and are read, while it fails or does not.

    Of some the name is deleted, while a checkpoint refers to them.
    """
    acts: list[Act] = list(plan.acts)
    for _ in range(random.randint(1, SCENES_MAX)):
        at, name = random.uniform(begins, max(begins, plan.duration_s - 3.0)), random.choice("ab")
        for kind in ("set-tiering", "put-file-away", "move-now", "read-file-away", "move-now", "read-file-away"):
            acts.append(_act(random, at, random.randrange(plan.agents), kind, name))
            at += random.choice((0.05, 0.3, 1.0))
    for _ in range(random.randint(1, SCENES_MAX)):
        at, name = random.uniform(begins, max(begins, plan.duration_s - 3.0)), random.choice("ab")
        for kept in _KEPT:
            acts.append(_act(random, at, random.randrange(plan.agents), kept, name))
            at += random.choice((0.05, 0.3, 1.0))
    settings: dict[str, int | float | str] = {"files_stay": 1}
    return replace(plan, settings=plan.settings | settings, acts=sorted(acts, key=_at))


def laid(plan: Plan, random: Random, begins: float) -> Plan:
    """The plan with files whose chunks are laid down beside the rows: they are put, the power of a node or of all is cut in the
    next moments, and they are read.
    """
    acts: list[Act] = list(plan.acts)
    faults: list[Fault] = list(plan.faults)
    for _ in range(random.randint(2, 2 * SCENES_MAX)):
        at = random.uniform(begins, max(begins, plan.duration_s - 3.0))
        kinds: tuple[ActKind, ...] = ("put-file", random.choice(("put-file", "refer-to-file", "delete-file")), "read-file")
        for kind in kinds:
            agent = random.randrange(plan.agents)
            acts += [Act(at=_round(at + nth * 0.01), agent=agent, kind=kind) for nth in range(random.randint(1, 4))]
            at += random.choice((0.02, 0.1, 0.5))
        cut_s, down_s = _round(at - random.uniform(0.0, 1.0)), _round(random.uniform(0.1, 1.0))
        hit = plan.names if random.random() < 0.5 else [random.choice(plan.names)]
        keep = random.choice((0, 1, 3, None))
        faults += [Crash(at=max(begins, cut_s), node=name, down_s=down_s, keep=keep) for name in hit]
    settings: dict[str, int | float | str] = {"large_bytes_min": 100}
    ordered = sorted(faults, key=_at)
    return replace(plan, settings=plan.settings | settings, acts=sorted(acts, key=_at), faults=ordered)


def _scene(random: Random, plan: Plan, within: tuple[float, float], acts: list[Act], faults: list[Fault]) -> float:
    """One agent fills a thread, which moves; and what comes then. Returns when that is."""
    begins, agent = random.uniform(within[0], max(within[0], within[1] - 4.0)), random.randrange(plan.agents)
    name = random.choice("ab")
    saves = [begins + nth * random.choice((0.02, 0.1)) for nth in range(random.randint(*_SAVES))]
    acts += [_act(random, at, agent, "save-away", name) for at in saves]
    acts.append(_act(random, begins, agent, "set-tiering", name))
    moves_s = saves[-1] + random.choice((0.6, 1.0, 2.3))
    acts.append(_act(random, moves_s, agent, "move-now", name))
    met_s = moves_s + random.choice((0.0, 0.02, 0.2, 1.0, 2.0))
    if random.random() < 0.5:
        faults.append(_failing(random, random.choice((moves_s, met_s)) - 0.05))
    for _ in range(random.randint(1, 3)):
        acts.append(_act(random, met_s, random.randrange(plan.agents), random.choice(_MET), name))
        met_s += random.choice((0.0, 0.02, 0.3, 1.0))
    return _round(min(met_s, within[1]))


def _act(random: Random, at: float, agent: int, kind: ActKind, name: str = "a") -> Act:
    return Act(at=_round(at), agent=agent, kind=kind, name=name, durability=random.choice(("local", "quorum")))


def _failing(random: Random, at: float) -> Fault:
    return Bucket(at=_round(max(0.0, at)), trouble=random.choice(_TROUBLES), for_s=_round(random.uniform(0.5, 6.0)))


def _object(random: Random, within: tuple[float, float], node: str) -> Fault:
    at, nth, is_lost = _round(random.uniform(*within)), random.randrange(1000), random.random() < 0.5
    return Bucket(at=at, trouble="lost" if is_lost else "altered", node=node, nth=nth)


def _minority(plan: Plan, faults: list[Fault], more: list[Fault]) -> list[Fault]:
    """These, unless too many nodes would lose something then."""
    return more if len(struck([*faults, *more])) <= (plan.nodes - 1) // 2 else []


def _at(event: Act | Fault) -> float:
    return event.at


def _round(value: float) -> float:
    return round(value, 3)
