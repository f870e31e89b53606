"""A plan: everything that decides a run, as data.

Laws:
- A plan and a program give one run. What is random in a run is drawn from the
  plan's seed by name (`random_for`), so that removing an event changes nothing
  about how the others are drawn.
- Any plan can be carried out: a fault for a node that is down, or an act of an agent
  that is busy, is skipped. So removing events always gives a plan.
- JSON in and out; fields are only ever added with a default, so that a saved plan stays a plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct

from shoal.errors import InvalidValue


class Event(Struct, frozen=True, kw_only=True, tag_field="event"):
    """`at` is in virtual seconds from the beginning."""

    at: float


# ── faults ────────────────────────────────────────────────────────────────────


class Crash(Event, frozen=True, kw_only=True, tag="crash"):
    """A node is gone at once, and comes back.

    `keep` is how many of its unsynced writes survive: 0 is a power cut at its worst, None (kill -9) keeps all.
    """

    node: str
    down_s: float = 1.0
    keep: int | None = 0


CrashPoint = Literal["answered", "appended", "synced", "snapshot"]
ShippingPoint = Literal["putting", "put"]
"""Before and after each change that a node makes to the bucket."""


class CrashAt(Event, frozen=True, kw_only=True, tag="crash-at"):
    """From `at` on, the `nth` time that the node passes a point, it crashes there.

    The points: after a handler `answered`, between append and fsync (`appended`), between
    fsync and send (`synced`), within the write that switches a document's `snapshot`, before (`putting`) and after (`put`)
    each change of the bucket.
    """

    node: str
    point: CrashPoint | ShippingPoint
    nth: int = 1
    down_s: float = 1.0
    keep: int | None = 0


class Stop(Event, frozen=True, kw_only=True, tag="stop"):
    """A clean stop, and a start."""

    node: str
    down_s: float = 1.0


class Pause(Event, frozen=True, kw_only=True, tag="pause"):
    """A node neither sends, hears nor syncs for a while; then it goes on as if nothing had been."""

    node: str
    for_s: float = 1.0


class Cut(Event, frozen=True, kw_only=True, tag="cut"):
    """Nothing passes from `sources` to `targets` for a while; with `both`, nor back. Clients are "client"."""

    sources: list[str]
    targets: list[str]
    for_s: float = 1.0
    both: bool = True


class Weather(Event, frozen=True, kw_only=True, tag="weather"):
    """What happens to messages between peers for a while; shares are of 1. Clients' sockets only get the delay.

    With `sources` and `targets` only to what passes from these to those: their links stand, and are silent.
    """

    for_s: float = 1.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0  # At most, on top of what is usual.
    sources: list[str] = []
    targets: list[str] = []
    over_bytes: int = 0  # Smaller messages are not lost, as where a path's MTU is wrong.


class ClockJump(Event, frozen=True, kw_only=True, tag="clock-jump"):
    node: str
    by_ms: int


class ClockDrift(Event, frozen=True, kw_only=True, tag="clock-drift"):
    """From now on the node's wall clock runs this much faster (0.01: 1 %) or slower."""

    node: str
    rate: float


class SlowDisk(Event, frozen=True, kw_only=True, tag="slow-disk"):
    node: str
    sync_s: float
    for_s: float = 1.0


class FullDisk(Event, frozen=True, kw_only=True, tag="full-disk"):
    """The next write or sync finds the disk full; the node reads only, until it is restarted `down_s` later."""

    node: str
    operation: Literal["write", "sync"] = "write"
    down_s: float = 1.0


class CorruptBlock(Event, frozen=True, kw_only=True, tag="corrupt-block"):
    """Some rows of a node cannot be read any more; later its disk is replaced: it starts again on an empty one."""

    node: str
    table: str = "O"  # The first byte of the rows' keys.
    down_s: float = 1.0


class Wipe(Event, frozen=True, kw_only=True, tag="wipe"):
    """A node loses its disk, and starts again on an empty one. Drawn only where copies elsewhere are owed."""

    node: str
    down_s: float = 1.0


class Restore(Event, frozen=True, kw_only=True, tag="restore"):
    """A node starts again from an older copy of its disk, made `copied_at`.

    `whole`: its block device or virtual machine was set back, which no file system tells.
    """

    node: str
    copied_at: float = 0.0
    down_s: float = 1.0
    whole: bool = False


class AlterRow(Event, frozen=True, kw_only=True, tag="alter-row"):
    """A running node's disk alters a row, and its checksum holds: the `nth` of those that nobody reads.

    Skipped unless all nodes are up and hold the same of its partition.
    """

    node: str
    nth: int = 0


class Clone(Event, frozen=True, kw_only=True, tag="clone"):
    """A copy of a node's disk runs as one more node beside its original for a while, and advertises `name`.

    It dials all, and nobody dials it. If it `serves`, clients that ask for its original reach it.
    """

    node: str
    name: str
    for_s: float = 5.0
    serves: bool = False


class Misroute(Event, frozen=True, kw_only=True, tag="misroute"):
    """For a while the address of `name` leads `node` to another one, perhaps to itself."""

    node: str
    name: str
    to: str
    for_s: float = 5.0


class Relist(Event, frozen=True, kw_only=True, tag="relist"):
    """A node is stopped, and started with another list of members, itself among them."""

    node: str
    members: list[str]
    down_s: float = 0.1


class Leave(Event, frozen=True, kw_only=True, tag="leave"):
    """An operator removes a member, drained or killed and forgotten; later it is added again, with an empty disk."""

    node: str
    how: Literal["drain", "forget"] = "drain"
    away_s: float = 1.0


class Replace(Event, frozen=True, kw_only=True, tag="replace"):
    """An operator drains the member `by`, puts it with an empty disk in the place of another one, drained or killed, and adds
    that one again, with an empty disk.
    """

    node: str
    by: str
    how: Literal["drain", "forget"] = "drain"
    away_s: float = 1.0


class Disown(Event, frozen=True, kw_only=True, tag="disown"):
    """An operator has the members forget the directories that a node has lost by now."""

    node: str


class Ship(Event, frozen=True, kw_only=True, tag="ship"):
    """An operator declares that the cluster is backed up to its bucket. `keep_s`: how long moments are kept, 0: for ever."""

    keep_s: float = 0.0


BucketTrouble = Literal["slow", "unavailable", "half", "lost", "refused", "expired", "full", "foreign"]


class SpoilBucket(Event, frozen=True, kw_only=True, tag="spoil-bucket"):
    """For a while the bucket is slow, answers 503, breaks connections within a put, loses answers (`share` of the calls); or
    refuses all, at once or because credentials expire; is full; or has a manifest of another cluster.
    """

    kind: BucketTrouble
    share: float = 1.0
    for_s: float = 1.0


Trouble = Literal["away", "denied", "flaky", "slow", "lost", "altered"]


class Bucket(Event, frozen=True, kw_only=True, tag="bucket"):
    """The bucket of cold threads fails: for all nodes and a while, or of one node an object, for ever.

    `away`: nobody reaches it. `denied`: nobody may use it, as where credentials have expired. `slow`: calls take seconds.
    `flaky`: half of the calls are slow, refused, or lose their answers. `lost` and `altered`: the `nth` pack of the node;
    skipped unless all nodes are up and hold the same of its partition.
    """

    trouble: Trouble = "away"
    for_s: float = 1.0
    node: str = ""
    nth: int = 0


Fault = (
    Crash
    | CrashAt
    | Stop
    | Pause
    | Cut
    | Weather
    | ClockJump
    | ClockDrift
    | SlowDisk
    | FullDisk
    | CorruptBlock
    | Wipe
    | Restore
    | AlterRow
    | Clone
    | Misroute
    | Relist
    | Leave
    | Replace
    | Disown
    | Ship
    | SpoilBucket
    | Bucket
)


def struck(faults: Iterable[Fault]) -> set[str]:
    """The nodes whose disks are lost, set back or altered by these faults."""
    found = list(faults)
    nodes = {fault.node for fault in found if isinstance(fault, Wipe | Restore | CorruptBlock | AlterRow | Leave | Replace)}
    nodes |= {fault.node for fault in found if isinstance(fault, Bucket) and fault.node}
    return nodes | {fault.by for fault in found if isinstance(fault, Replace)}


# ── acts ──────────────────────────────────────────────────────────────────────

ActKind = Literal[
    "save",
    "load",
    "append",
    "read-journal",
    "add",
    "add-keyed",
    "count",
    "assign",
    "read-register",
    "edit",
    "read-document",
    "batch",
    "step",
    "settle-steps",
    "save-on-branch",
    "load-branch",
    "move-branch",
    "save-erasably",
    "load-erasably",
    "prune",
    "delete",
    "send-message",
    "take-message",
    "consume",
    "put-item",
    "get-item",
    "delete-item",
    "put-note",
    "index-notes",
    "search-notes",
    "delete-note",
    "patch-paper",
    "edit-paper",
    "read-paper",
    "delete-paper",
    "compact-paper",
    "add-to-set",
    "remove-from-set",
    "pop-from-set",
    "read-set",
    "delete-set",
    "spend",
    "grant",
    "draw-rights",
    "release-rights",
    "put-entry",
    "add-entry",
    "alter-entry",
    "remove-entry",
    "read-map",
    "tell",
    "watch",
    "edit-board",
    "read-board",
    "show-up",
    "begin-page",
    "compact-page",
    "edit-page",
    "read-page",
    "write-evidence",
    "add-job",
    "do-job",
    "forget-jobs",
    "put-in-room",
    "look-at-room",
    "delete-room",
    "delete-label",
    "delete-below",
    "delete-budget",
    "change-decree",
    "read-decree",
    "hold-lease",
    "save-unleased",
    "add-work",
    "claim-work",
    "elect",
    "ask-who-leads",
    "write-log",
    "read-log",
    "save-ruled",
    "label-ruled",
    "set-rule",
    "unset-rule",
    "trim-log",
    "erase-log",
    "annotate",
    "unlabel",
    "insert-in-list",
    "move-in-list",
    "remove-from-list",
    "read-list",
    "delete-list",
    "put-file",
    "refer-to-file",
    "read-file",
    "delete-file",
    "write-secret",
    "rule-secrets",
    "unrule-secrets",
    "read-secrets",
    "save-away",
    "load-away",
    "read-away",
    "export-away",
    "put-file-away",
    "read-file-away",
    "prune-away",
    "delete-away",
    "set-tiering",
    "unset-tiering",
    "move-now",
    "keep-file",
    "read-kept-file",
    "spend-told",
    "grant-told",
    "read-course",
    "edit-odd",
    "graph-ask",
    "graph-put",
    "graph-end",
    "graph-drop",
]


class Act(Event, frozen=True, kw_only=True, tag="act"):
    """An agent's client does something with the object `name`.

    `durability` is that of a write. With `repeat` a write is sent again, with its key,
    through another session, as by a client that never saw the answer, `again_s` later; and before a read
    the agent loses its connection, so that another node has to show what it has seen.
    With `as_of` it is about what there was to be done at that time: a step of then.
    """

    agent: int
    kind: ActKind
    name: str = "a"
    durability: Literal["memory", "local", "quorum", "all"] = "local"
    repeat: bool = False
    again_s: float = 0.0
    as_of: float | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """`faults` and `acts` are in the order of their times. After `duration_s` everything is healed, and must converge."""

    seed: int
    nodes: int = 3
    agents: int = 3
    duration_s: float = 20.0
    settings: dict[str, int | float | str] = {}  # Of the nodes' configuration.
    faults: list[Fault] = []
    acts: list[Act] = []
    callers: bool = False  # Whether each node is called at every instant of its life; see `simulation.workload.callers`.

    @property
    def names(self) -> list[str]:
        return [f"n{number + 1}" for number in range(self.nodes)]

    def random_for(self, name: str) -> Random:
        """A source of randomness of its own for each purpose."""
        return Random(int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big"))


_decoder = msgspec.json.Decoder(Plan)
_encode = msgspec.json.encode


def to_json(plan: Plan) -> bytes:
    """As JSON for people: an event a line."""
    fields = ((name, getattr(plan, name)) for name in plan.__struct_fields__)
    return (
        b"{\n"
        + b",\n".join(_field(name, value) for name, value in fields if value is not False and value not in ({}, []))
        + b"\n}\n"
    )


def _field(name: str, value: object) -> bytes:
    if not isinstance(value, list):
        return b" %b: %b" % (_encode(name), _encode(value))
    return b" %b: [\n  %b\n ]" % (_encode(name), b",\n  ".join(shown(event).encode() for event in value))


def shown(event: Event) -> str:
    """As JSON, less what is as usual; equal events give equal text."""
    # Not msgspec's omit_defaults: that compares strings by identity.
    fields = {field.name: field.default for field in msgspec.structs.fields(event)}
    told = {name: getattr(event, name) for name, default in fields.items() if getattr(event, name) != default}
    return _encode({"event": event.__struct_config__.tag} | told).decode()


def from_json(text: bytes) -> Plan:
    """
    Raises:
        InvalidValue: it is no plan; the message names the field.
    """
    try:
        plan = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidValue(f"this is no plan: {error}. Nothing was run.") from None
    if not 1 <= plan.nodes <= 9 or not 0 <= plan.agents <= 64:
        raise InvalidValue("a plan has 1 to 9 nodes and at most 64 agents. Nothing was run.")
    return plan
