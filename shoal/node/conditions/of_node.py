"""Conditions of one node: its disk, its credentials, its spaces and its backup; and what is observed for all conditions.

Law: a bound of a condition has a name here, so that people can find why it is told.

A node as it knows itself at one moment, and a row of the table of conditions.

Laws:
- A condition is a pure function of one observation: it reads no clock, no disk and no other node.
- What is not known is said (`Unknown`), and never counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType

from shoal.protocol.requests import ClusterView, MembersView, NodeStatus
from shoal.protocol.requests.status import Severity
from shoal.records import NamedTuple

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Volume(NamedTuple):
    """The file system of a directory."""

    free: int  # Bytes that this process may still write.
    size: int  # Bytes in all.


class Use(NamedTuple):
    """How much of a bound is used."""

    used: int
    bound: int
    what: str  # Such as "keys of the quorum register".


class Signals(NamedTuple):
    """Facts that the status does not tell: sampled every few seconds."""

    volume: Volume | None = None  # None: that is not known.
    full_ms: int | None = None  # When it will be full; None: nobody can say, or far away.
    sync_s: float = 0.0  # The longest sync since the last sample, in seconds,
    lag_s: float = 0.0  # and how long the oldest write that is not durable waits.
    waiting: Mapping[str, int] = _NOTHING  # Space → requests that wait for their turn.
    slow: Mapping[str, int] = _NOTHING  # Space → subscribers that were cut off in the last seconds: they read too slowly.
    expired: int = 0  # Tokens that had run out and were shown in the last seconds.
    uses: Mapping[str, Use] = MappingProxyType({})  # Of each bound, by its name.


class Observation(NamedTuple):
    """One node at one moment."""

    now_ms: int
    version: str  # Of Shoal, at this node.
    address: str  # By which its peers reach it.
    status: NodeStatus
    cluster: ClusterView
    members: MembersView
    failed: str = ""  # Why its storage rejects writes.
    outside: bool = False  # It is no member of its cluster.
    apart: bool = False  # Its directory is a member's, and was opened without the others: it knows nothing of them.
    second: str = ""  # All other members refuse it as a second node at its address: why.
    clock_wrong: str = ""  # A majority contradict its clock: by how much, and what to do.
    signals: Signals = Signals()
    unredacted: Mapping[str, str] = MappingProxyType({})  # Space → why its writes cannot be looked through, and are refused.
    ended: Collection[str] = ()  # The tasks that last as long as the node, and that a bug has ended.


class Finding(NamedTuple):
    """A condition is true."""

    says: str
    about: str = ""


class Unknown(NamedTuple):
    """Whether a condition is true is not known."""

    why: str


Found = Iterator[Finding | Unknown]


class Condition(NamedTuple):
    """A row of the table."""

    name: str
    severity: Severity
    lasts: str  # So long it stands before somebody is told, as Prometheus writes times; "0s": at once.
    title: str  # In a few words.
    means: str
    mends: str  # `{about}` is what the finding is about.
    page: str
    noticed: str  # How, for people.
    look: Callable[[Observation], Found]
    passes: bool = False  # It is about what happened in the last seconds: an alert counts how often it began.


GIB = 1 << 30
DISK_SHARE_MIN = 0.1  # Of its volume: with less free, and less than what the directory holds, the disk is nearly full.
DISK_BYTES_MIN = GIB // 2  # With less free than this it is, whatever it holds.
_DAY_MS = 86_400_000
DISK_FILLS_MS = 4 * _DAY_MS  # A disk that is full so soon needs somebody: a weekend is between.
SYNC_S_MAX = 1.0  # A sync that takes longer is slow.
TURNS_WAITING_MAX = 256  # Requests of one space that wait for their turn: it asks for more than the node can do.
BOUND_SHARE_MAX = 0.8  # Of a bound that is used: then it is near.
BACKUP_LAG_MS_MAX = 300_000
BACKUP_UNVERIFIED_MS_MAX = 14 * _DAY_MS
BACKUP_NEW_MS = 7 * _DAY_MS  # So long a backup may be there before somebody has restored it.


def _bytes(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):,.1f} MiB"


def _read_only(seen: Observation) -> Found:
    if seen.failed:
        yield Finding(f"storage failed, so writes are rejected: {seen.failed}")


def _part_ended(seen: Observation) -> Found:
    for what in seen.ended:
        yield Finding(f"{what} has ended by a bug of Shoal, and does nothing until this node starts again", what)


def _disk_nearly_full(seen: Observation) -> Found:
    volume = seen.signals.volume
    if volume is None:
        yield Unknown("the file system does not say how much is free")
        return
    is_short = volume.free < volume.size * DISK_SHARE_MIN and volume.free < seen.status.bytes_on_disk
    if is_short or volume.free < min(DISK_BYTES_MIN, volume.size // 4):
        held = _bytes(seen.status.bytes_on_disk)
        yield Finding(f"{_bytes(volume.free)} of {_bytes(volume.size)} are free, and this directory holds {held}")


def _disk_fills(seen: Observation) -> Found:
    if seen.signals.volume is None:
        yield Unknown("how much is free is not known, so nothing follows from it")
    elif seen.signals.full_ms is not None and (left_ms := seen.signals.full_ms - seen.now_ms) <= DISK_FILLS_MS:
        free = _bytes(seen.signals.volume.free)
        yield Finding(
            f"{free} are free, and at the rate of the last days they last for {max(0, left_ms) / 3_600_000:,.0f} hours"
        )


def _disk_slow(seen: Observation) -> Found:
    slowest = max(seen.signals.sync_s, seen.signals.lag_s)
    if slowest > SYNC_S_MAX:
        yield Finding(f"a write waited {slowest:.1f} s for the disk in the last seconds")


def _repair_failed(seen: Observation) -> Found:
    if seen.status.repairs_failed:
        yield Finding(f"{seen.status.repairs_failed:,} requests met damaged rows that no peer could give", seen.address)


def _rows_repaired(seen: Observation) -> Found:
    if seen.status.repaired:
        yield Finding(f"{seen.status.repaired:,} damaged rows were fetched from a peer since this node started")


def _certificate_expired(seen: Observation) -> Found:
    if 0 < seen.status.tls_ends_ms <= seen.now_ms:
        yield Finding("the certificate of this node has expired")


def _certificate(seen: Observation) -> Found:
    if seen.status.tls_trouble and not 0 < seen.status.tls_ends_ms <= seen.now_ms:
        yield Finding(seen.status.tls_trouble)


def _tokens_end(seen: Observation) -> Found:
    for told in seen.status.tokens_ending:
        yield Finding(f"the newest token of {told} ends soon", told.partition(" until ")[0])


def _tokens_expired(seen: Observation) -> Found:
    if seen.signals.expired:
        often = "once" if seen.signals.expired == 1 else f"{seen.signals.expired:,} times"
        yield Finding(f"{often} in the last seconds a client showed a token that has run out")


def _key_file(seen: Observation) -> Found:
    if seen.status.cluster_key_trouble:
        yield Finding(seen.status.cluster_key_trouble)


def _keys_change(seen: Observation) -> Found:
    if len(seen.status.cluster_keys or ()) > 1:
        yield Finding("peers may prove either of two keys of the cluster: a change of the key was begun, and is not finished")


def _backup_late(seen: Observation) -> Found:
    if seen.status.backup and seen.status.backup_lag_ms > BACKUP_LAG_MS_MAX:
        yield Finding(f"the backup has what this node held {seen.status.backup_lag_ms / 1000:,.0f} s ago, and nothing later")


def _backup_failing(seen: Observation) -> Found:
    if seen.status.backup and seen.status.backup_trouble:
        yield Finding(seen.status.backup_trouble)


def _backup_unverified(seen: Observation) -> Found:
    verified_ms = seen.status.backup_verified_ms
    if not verified_ms and seen.now_ms - (seen.status.backup_begun_ms or seen.now_ms) <= BACKUP_NEW_MS:
        return  # It has just begun, or the bucket was not read yet.
    if seen.status.backup and seen.now_ms - verified_ms > BACKUP_UNVERIFIED_MS_MAX:
        since = f"for {(seen.now_ms - verified_ms) // _DAY_MS:,} days" if verified_ms else "yet"
        yield Finding(f"nobody has restored the backup and found it sound {since}")


def _quota_reached(seen: Observation) -> Found:
    for told in seen.status.quotas_reached:
        space, _, what = told.rpartition(": ")
        yield Finding(f"space {space} has reached its quota of {what}", space)


def _retention_waits(seen: Observation) -> Found:
    if seen.status.retention_due and seen.status.retention_waits_for:
        yield Finding(f"{seen.status.retention_due:,} entries may go, and wait: {seen.status.retention_waits_for}")


def _tiering_fails(seen: Observation) -> Found:
    if seen.status.tiering_trouble:
        yield Finding(seen.status.tiering_trouble)


def _redaction_fails(seen: Observation) -> Found:
    for space, reason in seen.unredacted.items():
        yield Finding(f"a write in space {space} was refused: {reason}", space)


def _space_overloads(seen: Observation) -> Found:
    for space, waiting in seen.signals.waiting.items():
        if waiting >= TURNS_WAITING_MAX:
            yield Finding(f"{waiting:,} requests of space {space} wait for their turn", space)


def _slow_consumer(seen: Observation) -> Found:
    for space, count in seen.signals.slow.items():
        yield Finding(f"{count:,} subscribers of space {space} read too slowly, and were cut off in the last seconds", space)


def _near_bound(seen: Observation) -> Found:
    for name, use in seen.signals.uses.items():
        if use.used >= use.bound * BOUND_SHARE_MAX:
            yield Finding(f"{use.used:,} of at most {use.bound:,} {use.what} are in use", name)


CONDITIONS = (
    Condition(
        "read-only",
        "page",
        "1m",
        "The node only reads",
        "Writes at this node fail with `ReadOnly`. Clients write at other nodes.",
        "shoal serve --data DIR   # start it again, once its disk has room and works",
        "OPERATIONS.md#a-disk-is-full",
        "a write or a sync of its directory failed",
        _read_only,
    ),
    Condition(
        "part-ended",
        "ticket",
        "0s",
        "A part of the node has ended by a bug",
        "Reads and writes go on. What the part does is left undone, on this node, until it starts again.",
        "shoal serve --data DIR   # start it again, and report the line of its log that begins with: unexpected error",
        "OPERATIONS.md#a-part-of-a-node-has-ended",
        "its task ended by an error that nobody expected",
        _part_ended,
    ),
    Condition(
        "disk-nearly-full",
        "ticket",
        "15m",
        "The disk is nearly full",
        "When it is full, this node rejects writes. All nodes hold the same, so all may be full soon.",
        "df -h DIR   # give the volume more, or let go what rules of retention may: shoal usage --url URL",
        "OPERATIONS.md#capacity",
        f"less than {DISK_SHARE_MIN:.0%} of the volume is free, and less than the directory holds; or less than 512 MiB",
        _disk_nearly_full,
    ),
    Condition(
        "disk-fills",
        "ticket",
        "1h",
        "The disk will be full soon",
        "Nothing yet. When it is full, this node rejects writes, and all nodes hold the same.",
        "shoal usage --url URL   # shows what grows: let go what rules of retention may, or give the volume more",
        "OPERATIONS.md#capacity",
        f"at the rate of the last days, {DISK_FILLS_MS // _DAY_MS} days at most until nothing is free",
        _disk_fills,
    ),
    Condition(
        "disk-slow",
        "ticket",
        "5m",
        "The disk is slow",
        "Each write waits for it, `quorum` writes for the second fastest disk of three.",
        "iostat -x 5 3   # on this node's machine: another program, or a disk that fails; move the directory to a faster one",
        "OPERATIONS.md#capacity",
        f"a sync took longer than {SYNC_S_MAX:g} s",
        _disk_slow,
    ),
    Condition(
        "repair-failed",
        "page",
        "0s",
        "Damage that no peer could repair",
        "Requests for damaged objects fail with `StoreCorrupt`.",
        "shoal cluster replace {about} NEW:PORT --url URL   # keep the directory; the log names the objects",
        "DISKS_AND_NODES_LOST.md#one-disk-is-lost",
        "since this node started, a request met damaged rows, and peers have none or differ",
        _repair_failed,
    ),
    Condition(
        "rows-repaired",
        "ticket",
        "0s",
        "The disk damages rows",
        "Nothing yet: peers had the rows. The disk begins to fail.",
        "shoal verify DIR   # while it is stopped; then start it again, and plan to replace the disk",
        "DISKS_AND_NODES_LOST.md#one-disk-is-lost",
        "since this node started, damaged rows were fetched from a peer",
        _rows_repaired,
    ),
    Condition(
        "certificate-expired",
        "page",
        "1m",
        "The certificate has expired",
        "Clients and peers refuse this node: it serves nobody.",
        "shoal tls node TLS NAME --renew   # then copy the files to the node; it takes them without a restart",
        "OPERATIONS.md#certificates-and-tokens-run-out",
        "the date in the certificate has passed",
        _certificate_expired,
    ),
    Condition(
        "certificate",
        "ticket",
        "0s",
        "The certificate needs care",
        "When it has expired, clients and peers refuse this node.",
        "shoal tls node TLS NAME --renew   # then copy the files to the node; it takes them without a restart",
        "OPERATIONS.md#certificates-and-tokens-run-out",
        "it ends within 30 days, or its renewed files are broken",
        _certificate,
    ),
    Condition(
        "tokens-end",
        "ticket",
        "10m",
        "A token ends soon",
        "Its client will be refused with `Unauthenticated`.",
        "shoal token create KEYS {about} --allow GRANTS --out FILE   # and put it in the place of the client's file",
        "OPERATIONS.md#certificates-and-tokens-run-out",
        "an author's newest token that was shown here has less than a quarter of its time left, and less than 14 days",
        _tokens_end,
    ),
    Condition(
        "tokens-expired",
        "ticket",
        "0s",
        "A client's token has run out",
        "That client is refused with `Unauthenticated`.",
        "shoal token list KEYS   # shows whose have ended; put a new one in the place of the client's file",
        "OPERATIONS.md#certificates-and-tokens-run-out",
        "a token that has expired was shown in the last seconds",
        _tokens_expired,
        passes=True,
    ),
    Condition(
        "cluster-key",
        "ticket",
        "5m",
        "The file of the cluster's key cannot be used",
        "Nothing yet: the node goes on with the key that it has. When it starts again, it does not start.",
        "shoal cluster rotate-key --url URL   # says which node lacks what",
        "TLS.md#the-clusters-key",
        "the file changed, and is wrong",
        _key_file,
    ),
    Condition(
        "keys-change",
        "ticket",
        "1d",
        "A change of the cluster's key is not finished",
        "The old key still opens the cluster.",
        "shoal cluster rotate-key --url URL   # says what it waits for",
        "TLS.md#the-clusters-key",
        "the key's file has two keys",
        _keys_change,
    ),
    Condition(
        "backup-late",
        "page",
        "5m",
        "The backup is late",
        "Writes go on. If all disks were lost now, everything since that moment would be.",
        "shoal backup status --url URL   # says why: credentials, rights, room or network",
        "BACKUP.md#what-is-safe-and-when",
        f"nothing reached it for {BACKUP_LAG_MS_MAX // 60_000} minutes",
        _backup_late,
    ),
    Condition(
        "backup-failing",
        "ticket",
        "15m",
        "This node cannot ship to the backup",
        "The other nodes ship; if none can, the backup becomes late.",
        "shoal backup status --url URL   # says why; on one node alone it is that node's credentials or network",
        "BACKUP.md#what-is-safe-and-when",
        "the last attempt to read or write the bucket failed",
        _backup_failing,
    ),
    Condition(
        "backup-unverified",
        "ticket",
        "1h",
        "Nobody has restored the backup",
        "Nothing. A backup that was never restored may be none.",
        "shoal backup verify --url URL",
        "BACKUP.md#prove-it",
        f"no sound `shoal backup verify` for {BACKUP_UNVERIFIED_MS_MAX // _DAY_MS} days, or in its first "
        f"{BACKUP_NEW_MS // _DAY_MS} days",
        _backup_unverified,
    ),
    Condition(
        "quota-reached",
        "ticket",
        "10m",
        "A space has reached a quota",
        "Its requests fail with `Overloaded`, other spaces' do not.",
        "shoal space quota {about} --url URL   # shows the limits; --bytes, --writes-per-s and others raise one",
        "OPERATIONS.md#a-crew-uses-too-much",
        "a request was refused for it in the last 10 s",
        _quota_reached,
        passes=True,
    ),
    Condition(
        "retention-waits",
        "ticket",
        "1d",
        "Rules of retention do not go on",
        "The disk grows by what may go.",
        "shoal status --url URL   # start the member that it waits for, or set the clock",
        "RETENTION.md",
        "what may go is there, and something holds it up",
        _retention_waits,
    ),
    Condition(
        "redaction-fails",
        "page",
        "1m",
        "What redaction must see cannot be looked through",
        "Writes of this space fail at this node with `RedactionFailed`: nothing is stored that was not looked through.",
        "shoal redaction show {about} --url URL   # names the hooks: mend what the node's `redaction_hooks` name",
        "REDACTION.md#hooks",
        "the last write of the space was refused because a hook failed, or the rules cannot be kept, and none has passed since",
        _redaction_fails,
    ),
    Condition(
        "tiering-fails",
        "ticket",
        "1h",
        "The object store of idle threads fails",
        "Threads that are there cannot be read at this node, and no more of them go there.",
        "shoal tiering show SPACE --url URL   # mend the bucket or the credentials of this node: it tries again by itself",
        "TIERING.md",
        "the last fetch, or the last look, failed",
        _tiering_fails,
    ),
    Condition(
        "space-overloads",
        "ticket",
        "5m",
        "A space asks for more than the node can do",
        "Its own requests wait. Other spaces keep their turns.",
        "shoal space quota {about} --writes-per-s 200 --url URL   # or have its clients send fewer at a time",
        "OPERATIONS.md#a-crew-uses-too-much",
        f"{TURNS_WAITING_MAX} of its requests wait for their turn",
        _space_overloads,
    ),
    Condition(
        "slow-consumer",
        "ticket",
        "10m",
        "A subscriber reads too slowly",
        "It was cut off with `SlowConsumer`, and has to read again what it watches.",
        "shoal space quota {about} --url URL   # shows its watchers: have them read faster, or watch less",
        "WATCHING.md",
        "more than `subscription_bytes_max` waited for it",
        _slow_consumer,
        passes=True,
    ),
    Condition(
        "near-bound",
        "ticket",
        "1h",
        "A bound is near",
        "Beyond it requests fail with `Overloaded`.",
        "shoal doctor --url URL   # free what is not needed; {about} is the bound",
        "CONFIGURATION.md",
        f"{BOUND_SHARE_MAX:.0%} of it are in use",
        _near_bound,
    ),
)
"""In the order in which they are told of."""
