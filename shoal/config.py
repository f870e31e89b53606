"""The settings: what an operator turns for size, time, durability, security, addresses and quotas.

A bound that nobody would turn is a constant beside the code that keeps it.

`checked` validates a whole `Config`. `shoal.cli.settings` reads the values from
flags, the environment and a TOML file.
"""

from __future__ import annotations

import re
from math import isfinite

from msgspec import Struct

from shoal.errors import InvalidConfig

KiB = 1024
MiB = 1024 * KiB

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "json", "text")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,]+")


class Config(Struct, frozen=True, kw_only=True):
    """The settings of a node. An embedded store has the same settings, except those of the listener."""

    # [listener] The listener. With port 0 the system chooses a port.
    listen_host: str = "127.0.0.1"
    listen_port: int = 7400
    log_level: str = "info"  # `shoal serve` logs this severity and above to standard error; one of LOG_LEVELS.
    log_format: str = "auto"  # One of LOG_FORMATS; "auto": text on a terminal, JSON elsewhere.
    allowed_origins: str = ""  # Web pages that may call this node, "https://a.example.com,…"; "*": all. Empty: none.
    allowed_hosts: str = ""  # Host names under which it answers, "shoal.example.com,…"; "*": any. Empty: see CONFIGURATION.md.
    connections_max: int = 4096  # Open, WebSockets included; beyond this a new one is answered with 429 and closed.
    connections_address_max: int = 3072  # Of those from one address, or one /64 of IPv6; behind a proxy all come from its own.
    idle_s: float = 90.0  # An HTTP connection without a complete request is closed after this; longer than proxies keep theirs.
    bodies_bytes_max: int = 256 * MiB  # All bodies of HTTP requests in progress; beyond this: Overloaded.
    stop_timeout_s: float = 10.0

    # [tls] TLS. The files are PEM; a private key has no password.
    tls_cert: str = ""  # The node's certificate, with those between it and the CA. Empty: the node speaks plain HTTP.
    tls_key: str = ""  # Its private key.
    tls_ca: str = ""  # The CA of the nodes: of the peers, and of the nodes that a client calls. Empty: the system's, no peers.
    tls_crl: str = ""  # The CA's list of revoked certificates, for links among peers. Empty: none is revoked.
    tls_peer_names: str = "any"  # Which certificate a peer may show: "any" of the CA, or its "own", which names its address.
    tls_look_s: float = 10.0  # Between two looks at whether the files have changed.
    hsts_s: float = 365 * 24 * 3600.0  # For how long browsers shall use TLS alone with this host; 0: they are not told.

    # [access] Who may do what.
    token_keys: str = ""  # A file with the public keys of tokens, as a JSON Web Key Set. Empty: no token is asked for.
    plain_tokens: str = ""  # Hosts to which a client sends its token over http://, "n1,n2" or "*": something else encrypts.
    token_failures_max: int = 20  # Tokens of one address that were refused in 60 s; beyond this: Overloaded.
    oidc_issuers: str = ""  # OIDC issuers whose tokens count too, "https://login.example.com,…". Empty: none.
    oidc_audience: str = ""  # The audience that their tokens must name.
    revocations_max: int = 65_536  # Tokens that are revoked and have not expired.
    revocations_age_s_max: float = 0.0  # Cut off from a quorum for longer, a node accepts no token. 0: it goes on.
    backup_directories: str = ""  # With tokens, a backup goes to a `file://` below these only, "/mnt/a,/mnt/b". Empty: to none.

    # [audit] Statements of what the node holds, and who reads what (docs/AUDIT.md).
    audit_interval_s: float = 0.0  # How often the node signs what it holds, and keeps that (docs/AUDIT.md); 0: never.
    audit_reads: str = ""  # Patterns of spaces, separated by commas, of which it is logged who reads what; needs tokens.
    redaction_hooks: str = ""  # A file of TOML with this node's hooks of redaction (docs/REDACTION.md). Empty: it has none.
    audit_keep_s: float = 366 * 86400.0  # How long statements and the log of reads are kept.

    # [cluster] The members of the cluster. Every node owns everything.
    cluster: str = "shoal"  # Its name; nodes of other clusters are refused.
    cluster_key: str = ""  # A secret that peers prove to each other; empty: no proof is required.
    cluster_key_file: str = ""  # A file with it, which is read again, so that it can be changed. One of the two is empty.
    join: str = ""  # The peers, "host:port,host:port"; may contain the node itself, so the list can be the same for all nodes.
    cluster_size: int = 0  # The number of members, if `join` has seeds: names that may lead to several nodes each.
    advertise: str = ""  # Where peers reach this node, "host:port"; empty: where it listens.
    quorum_timeout_s: float = 5.0  # How long `quorum` and `all` wait for copies.
    session_wait_s: float = 2.0  # For the operations that a client's bookmark names; then SessionBehind.
    clock_skew_max_ms: int = 10_000  # From a majority of the members' clocks; beyond this a node rejects writes: ClockWrong.
    clock_interval_s: float = 10.0  # Between two comparisons of clocks with the peers.
    quorum_register_value_bytes_max: int = 16 * KiB  # The content of one of them.
    quorum_register_retry_s: float = 0.1  # Until its messages are sent again; at most the first pause between two attempts.
    quorum_register_found_s: float = 10.0  # How long all members must be linked until the register is founded unasked.

    # [leases] Leases and crews.
    lease_shards: int = 16  # Keys of the quorum register that hold leases. The same on all nodes, and forever.
    lease_ttl_s_min: float = 1.0  # The shortest lease.
    lease_ttl_s_max: float = 3600.0  # The longest lease.
    lease_drift_max: float = 0.01  # By which share of the time clocks run too fast or too slow; below 0.5, the same everywhere.
    lease_poll_s: float = 10.0  # For one request that waits for a lease; the client sends it again.
    crew_agents_max: int = 512  # Agents of one crew, each with a lease; see lease_shards.

    # [peers] How operations and rows come from peers, and are compared with theirs.
    peer_message_bytes_max: int = 40 * MiB  # From a peer; one operation may hold a whole request.
    peer_logs_max: int = 512 * KiB  # Logs that a peer may name of which this node has nothing; refused from half as many on.
    peer_send_bytes_max: int = 8 * MiB  # Queued for one peer; beyond this, pushes are dropped and later fetched by sync.
    peer_heartbeat_s: float = 5.0  # A silent link is pinged after this, closed half as long after; a stalled one after twice.
    peer_connect_timeout_s: float = 2.0  # For one attempt to connect to a peer; at most connect_timeout_s.
    sync_interval_s: float = 0.5  # Between two comparisons with a peer, with jitter.
    tick_s: float = 0.05  # Between two looks for work that is due.
    mark_interval_s: float = 5.0  # Between two records of what each peer was ever known to hold.
    early_bytes_max: int = 16 * MiB  # Operations that arrived before the operations they depend on.
    quarantine_s: float = 60.0  # How long they are not requested.
    snapshot_memory_bytes: int = 2 * MiB  # A larger snapshot is staged on the disk before it replaces its partition.
    snapshots_open_max: int = 8  # Partitions that are taken by snapshot at once; as many snapshots are kept for peers.
    scrub_interval_s: float = 60.0  # At least this long from one comparison of all rows with the peers to the next.
    scrub_bytes_per_s: int = MiB  # Rows read by scrub: at most 1 % of a core; a larger store takes longer than the interval.
    rebuild_bytes_max: int = 256 * MiB  # A larger object is not rebuilt from the log while the node runs.

    # [requests] What requests and objects may have.
    request_bytes_max: int = 16 * MiB  # One REST body or session message.
    batch_writes_max: int = 1024
    page_items_max: int = 1000  # In one page of a listing, history or journal.
    channels_max: int = 4096  # In one checkpoint.
    queue_pending_max: int = 100_000  # Pending entries of an inbox or a worklist.
    set_members_max: int = 1_000_000  # Of one set.
    map_keys_max: int = 100_000  # Of one map.
    inbox_taken_s: int = 7 * 24 * 3600  # How long a message that was taken, and its key, are remembered.
    journal_wait_s_max: float = 60.0  # How long a request may wait for an event.
    vector_cache_bytes: int = 256 * MiB  # Vectors of the namespaces searched most recently.
    item_expiry_grace_s: float = 3600.0  # Before an expired item may be erased; clocks may be wrong and refreshes late.
    key_window_s: int = 24 * 3600  # How long an idempotency key is remembered.

    # [documents] Documents.
    document_bytes_max: int = 64 * MiB  # A document's whole state.
    document_history_s: float = 7 * 24 * 3600.0  # Younger updates are not compacted automatically.
    document_compact_updates: int = 512  # Updates older than that which trigger a compaction; a large document needs more.
    document_snapshot_updates: int = 512  # Updates since the last snapshot that trigger a new one.
    document_cache_max: int = 1024  # Live documents.
    document_cache_bytes: int = 32 * MiB  # Their encoded states; in memory they take several times that.

    # [quotas] Of each space without a record of its own; 0: no limit.
    quota_bytes: int = 0  # Of the rows of its objects.
    quota_objects: int = 0
    quota_writes_per_s: float = 0.0  # At each node.
    quota_watchers: int = 0  # At each node.
    quota_documents: int = 0  # Open at each node.

    # [sessions] Sessions, watches and presence.
    sessions_max: int = 1024
    session_requests_max: int = 1024  # In progress on one session; beyond this, the socket is not read.
    session_send_bytes_max: int = 32 * MiB  # Queued for one session; beyond this, it is closed.
    subscriptions_max: int = 256  # On one session.
    subscribers_max: int = 4096  # On one node.
    subscription_bytes_max: int = 8 * MiB  # Queued for one subscriber; beyond this: SlowConsumer.
    watch_replay_operations_max: int = 50_000  # Read from the log to resume a watch; beyond this: Reset.
    heartbeat_s: float = 20.0
    presence_timeout_s: float = 30.0  # Presence that is not renewed for this long is removed; clients renew twice as often.

    # [streams] The Durable Streams protocol.
    stream_append_bytes_max: int = 8 * MiB  # The body of one append; beyond this: 413.
    stream_ttl_s: float = 3.0  # The lease of a stream's writer: if its node dies, others wait so long.
    stream_poll_s: float = 20.0  # How long a long-poll waits for data.

    # [yjs] Standard Yjs clients.
    yjs_connections_max: int = 1024  # Of a Hocuspocus provider, its WebSocket and each open document count.
    yjs_update_bytes_max: int = 4 * MiB  # One message from a client; it is scanned byte by byte before anything else happens.

    # [client] What a client waits for.
    connect_timeout_s: float = 10.0
    reach_timeout_s: float = 1.8  # To reach the first node, unless `wait` gives longer; then Unreachable.
    failover_timeout_s: float = 2.0  # With several addresses: to connect to one, and for a silent one to answer a ping.
    request_timeout_s: float = 30.0
    reconnect_delay_s_max: float = 2.0

    # [log] The log of operations. Each node truncates its own.
    log_keep_s: float = 3600.0  # Operations that all owners hold stay at least this long, for watches that resume.
    log_bytes_max: int = 1024 * MiB  # Beyond this they leave at once, and owners that are away do not hold them up.
    forget_after_s: float = 7 * 24 * 3600.0  # How long an owner that lacks operations holds them up; it is left behind then.
    retired_origins_max: int = 4096  # Remembered in one partition; the oldest are forgotten first.

    # [storage] The directory, and caches of what is in it.
    writes_pending_max: int = 16384  # Not yet durable; beyond this: Overloaded.
    memtable_bytes: int = 16 * MiB  # Small, so that its rows stay in the processor's cache.
    block_cache_bytes: int = 64 * MiB
    tables_open_max: int = 512  # RocksDB files open at the same time; reading another one opens it.
    checkpoint_cache_bytes: int = 32 * MiB  # Latest serialised states of live threads; lists of a connected LangGraph saver.
    erase_within_s: float = 24 * 3600.0  # From a sweep until no file holds what it removed. A pass may write all data again.

    # [encryption] Encryption at rest.
    encryption_key: str = ""  # Where the master key is: "file:PATH", "env:NAME", "command:COMMAND", "plugin:MODULE:NAME".
    encryption_erase_s: float = 60.0  # A space that has had no objects for this long loses its keys, once no row is left.
    encryption_rotate_s: float = 90 * 24 * 3600.0  # A data key this old is replaced, and its rows are sealed anew.
    encryption_keys_max: int = 16_384  # Data keys of one directory, at least one for each space.


GROUPS = {
    "listener": "listen_host",
    "tls": "tls_cert",
    "access": "token_keys",
    "audit": "audit_interval_s",
    "cluster": "cluster",
    "leases": "lease_shards",
    "peers": "peer_message_bytes_max",
    "requests": "request_bytes_max",
    "documents": "document_bytes_max",
    "quotas": "quota_bytes",
    "sessions": "sessions_max",
    "streams": "stream_append_bytes_max",
    "yjs": "yjs_connections_max",
    "client": "connect_timeout_s",
    "log": "log_keep_s",
    "storage": "writes_pending_max",
    "encryption": "encryption_key",
}
"""Tables of a configuration file, each with the first of its settings; the others follow in `Config`."""


def group_of(name: str) -> str:
    """The table of a file in which a setting stands."""
    names = Config.__struct_fields__
    return next(group for group, first in reversed(GROUPS.items()) if names.index(first) <= names.index(name))


SECRETS = frozenset({"cluster_key", "encryption_key"})
"""Fields whose values are in no error and no log."""

_KEY_CHARS_MIN, _KEY_KINDS_MIN = 20, 8  # 20 letters and digits drawn at random are more than anybody guesses.
MOST_REQUESTED = {
    "batch_writes_max": 4096,
    "channels_max": 16_384,
    "page_items_max": 4096,
}
"""The most that a request may have, whatever the setting says (`shoal.protocol.base`)."""
_QUOTAS = ("quota_bytes", "quota_objects", "quota_writes_per_s", "quota_watchers", "quota_documents")
_MAY_BE_0 = ("listen_port", "cluster_size", "audit_interval_s", "hsts_s", "revocations_age_s_max", *_QUOTAS)


def checked(config: Config) -> Config:
    """Return `config` if every field is in range.

    Raises:
        InvalidConfig: a field is of the wrong type or out of range; the error names it.
    """
    if not isinstance(config, Config):
        raise InvalidConfig(f"a configuration must be a shoal.Config; it is {config!r}.")
    for name in config.__struct_fields__:
        value = _typed(name, getattr(config, name))
        if name not in _MAY_BE_0 and not isinstance(value, str) and value <= 0:
            raise InvalidConfig(f"{name} must be greater than 0; it is {getattr(config, name)}.", field=name)
    if not 0 <= config.listen_port <= 65535:
        raise InvalidConfig(f"listen_port must be 0 to 65535; it is {config.listen_port}.", field="listen_port")
    for name, most in MOST_REQUESTED.items():
        if (limit := getattr(config, name)) > most:
            raise InvalidConfig(f"{name} must be at most {most}, as much as a request may have; it is {limit}.", field=name)
    for name in _QUOTAS:
        if (limit := getattr(config, name)) < 0:
            raise InvalidConfig(f"{name} must be 0 (no limit) or more; it is {limit}.", field=name)
    if config.audit_interval_s < 0:
        raise InvalidConfig(f"audit_interval_s must be 0 or more; it is {config.audit_interval_s}.", field="audit_interval_s")
    if config.cluster_size and not (2 <= config.cluster_size <= 64 and config.join):
        raise InvalidConfig(
            f"cluster_size must be 2 to 64, with the seeds in join, or 0; it is {config.cluster_size}.", field="cluster_size"
        )
    if not config.listen_host:
        raise InvalidConfig("listen_host must not be empty.", field="listen_host")
    _check_tls(config)
    if config.log_level.lower() not in LOG_LEVELS:
        raise InvalidConfig(f"log_level must be one of {', '.join(LOG_LEVELS)}; it is {config.log_level!r}.", field="log_level")
    if config.log_format not in LOG_FORMATS:
        raise InvalidConfig(
            f"log_format must be one of {', '.join(LOG_FORMATS)}; it is {config.log_format!r}.", field="log_format"
        )
    origins(config)
    check_cluster_key(config.cluster_key)
    if config.cluster_key and config.cluster_key_file:
        raise InvalidConfig("cluster_key and cluster_key_file are both given; give one.", field="cluster_key_file")
    if config.lease_drift_max >= 0.5:
        raise InvalidConfig(f"lease_drift_max must be below 0.5; it is {config.lease_drift_max}.", field="lease_drift_max")
    if not config.lease_ttl_s_min <= config.stream_ttl_s <= config.lease_ttl_s_max:
        raise InvalidConfig(
            f"stream_ttl_s must be {config.lease_ttl_s_min:g} to {config.lease_ttl_s_max:g}, as every lease is "
            f"(lease_ttl_s_min, lease_ttl_s_max); it is {config.stream_ttl_s:g}.",
            field="stream_ttl_s",
        )
    if config.join and config.peer_message_bytes_max < config.request_bytes_max + MiB:
        raise InvalidConfig(
            f"peer_message_bytes_max must be at least request_bytes_max and 1 MiB, {config.request_bytes_max + MiB}, on all "
            f"nodes, because one operation may hold a whole request; it is {config.peer_message_bytes_max}.",
            field="peer_message_bytes_max",
        )
    if config.memtable_bytes < MiB:
        raise InvalidConfig(f"memtable_bytes must be at least {MiB}; it is {config.memtable_bytes}.", field="memtable_bytes")
    return config


def check_cluster_key(key: str) -> None:
    """Check that a cluster's key cannot be guessed; none is allowed.

    Raises:
        InvalidConfig: it is weak.
    """
    if key and (len(key) < _KEY_CHARS_MIN or len(set(key)) < _KEY_KINDS_MIN):
        raise InvalidConfig(
            f"the cluster_key is too weak: it must have {_KEY_CHARS_MIN} or more characters, {_KEY_KINDS_MIN} different ones, "
            "because whoever guesses it is a node. Draw one, and give it to all nodes: `openssl rand -hex 32`.",
            field="cluster_key",
        )


def _typed(name: str, value: object) -> str | int | float:
    """The value of a field, if its type is that of the field's default; a msgspec.Struct takes anything by keyword."""
    default = getattr(_DEFAULTS, name)
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise InvalidConfig(f"{name} must be text; it is {shown(name, value)}.", field=name)
    kinds = int | float if isinstance(default, float) else int
    if isinstance(value, kinds) and not isinstance(value, bool) and isfinite(value):
        if value > _NUMBER_MAX:
            raise InvalidConfig(f"{name} must be at most {_NUMBER_MAX}; it is {value!r}.", field=name)
        return value
    wanted = "a number" if isinstance(default, float) else "a whole number"
    if "_bytes" in name:
        wanted = 'a whole number of bytes, such as 64 * shoal.config.MiB ("64MiB" is for files, flags and the environment)'
    raise InvalidConfig(f"{name} must be {wanted}; it is {value!r}.", field=name)


def shown(name: str, value: object) -> str:
    """The value of a field, for an error."""
    return f"of type {type(value).__name__}" if name in SECRETS else repr(value)


_DEFAULTS = Config()
_NUMBER_MAX = 2**63 - 1  # RocksDB and the kernel count in 64 bits.


def _check_tls(config: Config) -> None:
    if bool(config.tls_cert) != bool(config.tls_key):
        given, lacking = ("tls_cert", "tls_key") if config.tls_cert else ("tls_key", "tls_cert")
        raise InvalidConfig(f"{given} is set, but not {lacking}. A node needs both.", field=given)
    if config.join and config.tls_cert and not config.tls_ca:
        raise InvalidConfig(
            "tls_ca is not set. A node with peers needs the CA that issued their certificates.", field="tls_cert"
        )
    if config.tls_peer_names not in ("any", "own"):
        raise InvalidConfig(f"tls_peer_names must be any or own; it is {config.tls_peer_names!r}.", field="tls_peer_names")
    if config.tls_crl and not config.tls_ca:
        raise InvalidConfig("tls_crl is set, but not tls_ca, whose list of revoked certificates it is.", field="tls_crl")
    if config.join and config.tls_ca and not config.tls_cert:
        raise InvalidConfig(
            "tls_ca is set, but not tls_cert and tls_key. A node shows its peers a certificate of that CA.", field="tls_ca"
        )


def origins(config: Config) -> frozenset[str]:
    """The origins in `allowed_origins`, spelled as browsers spell them; "*" is any.

    Raises:
        InvalidConfig: one of them is not an origin.
    """
    named = frozenset(part.strip().rstrip("/").lower() for part in config.allowed_origins.split(",") if part.strip())
    for origin in named:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise InvalidConfig(
                f"allowed_origins contains {origin[:80]!r}. An origin is a scheme, a host and an optional port, such as "
                "https://app.example.com:8443. `*` allows all.",
                field="allowed_origins",
            )
    return named
