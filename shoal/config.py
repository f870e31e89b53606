"""Every bound and setting, by name. A bound that is not here does not exist.

`Config` is checked as a whole by `checked`; where its values come from (flags,
environment, a TOML file) is `shoal.cli.settings`' business.
"""

from __future__ import annotations

import re

from msgspec import Struct

from shoal.errors import InvalidConfig

KiB = 1024
MiB = 1024 * KiB

LOG_LEVELS = ("debug", "info", "warning", "error")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,]+")


class Config(Struct, frozen=True, kw_only=True):
    """The settings of a node. An embedded store has the same, except those of the listener."""

    # Where it listens. Port 0 lets the system choose.
    listen_host: str = "127.0.0.1"
    listen_port: int = 7400
    log_level: str = "info"  # Of what `shoal serve` writes on standard error: one of LOG_LEVELS, and all that is graver.
    allowed_origins: str = ""  # Pages of other hosts that may ask this node, "https://a.example.com,…"; "*": all. Empty: none.
    allowed_hosts: str = ""  # Names by which it may be asked, "shoal.example.com,…"; "*": any. Empty: see shoal.api.hosts.
    connections_max: int = 4096  # Accepted, WebSockets among them; past it a new one is answered 429 and closed.
    idle_s: float = 90.0  # After which an HTTP connection without a whole request is closed; longer than proxies keep theirs.

    # The cluster. Every node owns everything.
    cluster: str = "shoal"  # Its name: nodes of another cluster are refused.
    cluster_key: str = ""  # A secret that peers prove to each other; empty: none is asked for.
    join: str = ""  # The peers, "host:port,host:port"; with itself among them the list can be the same for all nodes.
    advertise: str = ""  # Where peers reach this node, "host:port"; empty: where it listens.
    quorum_timeout_s: float = 5.0  # For the copies that `quorum` and `all` wait for.
    rights_wait_s: float = 1.0  # For one peer's answer to who asks it for rights to spend, or for what it holds.
    rights_spread_s: float = 0.5  # Between two looks at how rights to spend are spread over the nodes.
    rights_spread_max: int = 64  # Budgets in one such look.
    rights_due_max: int = 65_536  # Budgets that wait for one; of more, those that change next.
    rights_kept_max: int = 65_536  # Budgets of which a node keeps what was drawn by request.
    session_wait_s: float = 2.0  # For what a client's bookmark names; then SessionBehind.
    tick_s: float = 0.05  # Between two looks at what is due.
    sync_interval_s: float = 0.5  # Between two comparisons with some peer, with jitter.
    mark_interval_s: float = 5.0  # Between two writes of what each peer was ever known to hold.
    peer_message_bytes_max: int = 40 * MiB  # From a peer; an operation may hold a whole request.
    peer_send_bytes_max: int = 8 * MiB  # Waiting for one peer; past it pushes are dropped, and fetched by sync.
    peer_heartbeat_s: float = 5.0  # A silent link is asked after so long, closed half as long after; a stalled one after twice.
    peer_connect_timeout_s: float = 2.0  # For one attempt to reach a peer, at most connect_timeout_s.
    peer_links_max: int = 64  # Accepted from peers.
    peer_handshakes_max: int = 32  # Of sockets that have proven nothing yet; past it the oldest is closed.
    peer_warning_interval_s: float = 60.0  # Between two warnings in the log of one peer, for one reason.
    peer_warnings_max: int = 256  # In that time, of all peers.
    push_bytes_max: int = 256 * KiB  # In one message, but for its first operation.
    supply_bytes_max: int = 256 * KiB  # The same, of operations that a peer asked for.
    vectors_bytes_max: int = 256 * KiB  # The same, of version vectors that are compared.
    early_bytes_max: int = 16 * MiB  # Operations that arrived before those they depend on.
    early_s: float = 60.0  # How long they wait; what they depend on may be lost with a disk.
    repair_wait_s: float = 5.0  # For a peer's answer to what was found damaged here; then the next one is asked.
    repair_rows_max: int = 4096  # Mended for one read; what is damaged further stays so until the next.
    scrub_interval_s: float = 60.0  # From one comparison of all rows with the peers' to the next, at the least.
    scrub_bytes_per_s: int = MiB  # Read for it: at most 1 % of a core; a larger store takes longer than the interval.
    scrub_piece_rows: int = 128  # Compared at once, so that it does not hold up the others.
    scrub_piece_bytes: int = 64 * KiB  # The same, but for its first row.
    rows_differ_max: int = 1024  # Objects, by peer, that are known to have other rows there.
    rebuild_bytes_max: int = 256 * MiB  # An object of more is not made anew from the log while the node runs.
    quarantine_max: int = 1024  # Operations that were refused, and are not asked for again.
    quarantine_s: float = 60.0  # For how long.
    peer_pause_s_max: float = 10.0  # How long a peer that answers no request for operations is left alone, at the most.

    # Requests.
    request_bytes_max: int = 16 * MiB  # One REST body or session message.
    bodies_bytes_max: int = 256 * MiB  # Of all bodies of HTTP requests under way; past it: Overloaded.
    url_bytes_max: int = 8 * KiB  # With the query; past it: 414.
    header_bytes_max: int = 16 * KiB  # Of one header of an HTTP request, its name included; past it: 431.
    bookmark_header_bytes_max: int = 6 * KiB  # In an HTTP answer; clients and proxies refuse headers of more than about 8 KiB.
    channels_max: int = 4096  # In one checkpoint.
    note_bytes_max: int = 4 * KiB  # What is said beside a write: who, and why.
    setting_bytes_max: int = 4 * KiB  # What the author of a checkpoint ran with.
    seen_bytes_max: int = 2 * KiB  # What it had read of other partitions; what has no place goes with its next save.
    batch_writes_max: int = 1024
    multi_reads_max: int = 256  # Answered at one vector.
    note_name_bytes_max: int = 1024
    schema_bytes_max: int = 64 * KiB  # One replicated JSON Schema.
    schemas_max: int = 256  # Replicated schemas of one space.
    schema_versions_max: int = 256  # Of one of them.
    prune_ids_max: int = 1000  # Checkpoints in one operation that gives them up.
    trim_events_max: int = 256  # Events in one operation that gives them up, but for the last one's.
    page_items_max: int = 1000  # In one answer of a listing, history or journal.
    history_scan_max: int = 4096  # Checkpoints that are looked at for one page of a filtered history.
    page_bytes_max: int = 8 * MiB  # The same, by bytes: a page ends at the first item past it.
    journal_wait_s_max: float = 60.0  # How long a request may wait for an event.
    journal_scan_rows_max: int = 20_000  # Events looked at for one answer, so that a reader far behind holds up nobody.
    consumers_max: int = 256  # Of one thread's journal.
    reducers_max: int = 64  # That keep snapshots, of one thread's journal.
    snapshot_bytes_max: int = 4 * MiB  # What one of them made of the events.
    loops_max: int = 1024  # Of one thread, that keep their place.
    queue_pending_max: int = 100_000  # Entries of an inbox or a worklist.
    worklists_max: int = 256  # Of one thread.
    inbox_taken_s: int = 7 * 24 * 3600  # How long a message is known once it is taken, and its key with it.
    document_bytes_max: int = 64 * MiB  # A document's whole state.
    siblings_max: int = 32  # Concurrent values of one register.
    set_members_max: int = 1_000_000  # Of one set.
    map_keys_max: int = 100_000  # Of one map.
    set_element_bytes_max: int = 4 * KiB  # One member of a set.
    status_origins_max: int = 1000  # Of each member in the view of a cluster; all are counted.
    listing_scan_max: int = 1000  # Threads that one answer of a listing by status or metadata looks at.
    step_attempts_max: int = 100  # Of one step, in all; each leaves a trace of some hundred bytes.
    step_progress_bytes_max: int = 64 * KiB  # The same bound holds for an error.
    roots_max: int = 256  # Root types of one document.
    document_conflicts_max: int = 256  # Told of one document: the latest.
    document_dead_clients_max: int = 4096  # Yjs clients of generations that were ended, which are refused: the latest.
    document_history_updates_max: int = 65_536  # From which a past state is built.
    document_history_s: float = 7 * 24 * 3600.0  # Updates that are younger are not compacted by themselves.
    document_compact_updates: int = 512  # Older ones than that which make a compaction due; of a large document more.
    document_compact_updates_max: int = 2048  # Made one by one compaction, so that it does not hold up the others.
    update_authors_max: int = 1024  # Named by one update of a document.
    item_labels_max: int = 32  # In one namespace.
    item_scan_rows_max: int = 2000  # Looked at for one page of a search, so that it does not hold up the others.
    item_indexes_max: int = 16  # Fields that are indexed, of the items below one first label.
    item_probe_rows_max: int = 256  # Rows of one index that a search reads to find out whether it is narrow.
    index_build_rows_max: int = 256  # Items that one piece of the building of an index looks at.
    vector_dims_max: int = 4096  # Numbers of one vector.
    vectors_max: int = 16  # Of one item.
    vector_page_rows_max: int = 8192  # Vectors in memory that one step of a search by meaning compares.
    vector_moves_max: int = 10_000  # Items written since their vectors were compared in memory; past it these are read anew.
    item_ranks_max: int = 10_000  # How many of the nearest items a search by meaning can show.
    vector_cache_bytes: int = 256 * MiB  # Vectors of the namespaces that were searched last.
    item_expiry_grace_s: float = 3600.0  # After which an expired item may be erased; clocks and refreshes may be late.
    items_expired_max: int = 64  # Erased by one operation.
    filter_terms_max: int = 64  # Fields, operators and parts of lists in one filter.
    key_window_s: int = 24 * 3600  # How long a client-made idempotency key is remembered.

    # Sessions.
    sessions_max: int = 1024
    session_requests_max: int = 1024  # Under way at once on one session; past it the socket is not read.
    session_send_bytes_max: int = 32 * MiB  # Waiting to be sent on one session; past it it is closed.
    subscriptions_max: int = 256  # On one session.
    subscribers_max: int = 4096  # On one node.
    subscription_bytes_max: int = 8 * MiB  # Waiting for one subscriber; past it: SlowConsumer.
    watch_replay_operations_max: int = 50_000  # Read from the log to resume a watch; past it: Reset.
    watch_id_bytes_max: int = 6 * KiB  # Of a position as the id of a server-sent event; it comes back in a header.
    heartbeat_s: float = 20.0

    # Standard Yjs clients.
    yjs_connections_max: int = 1024
    yjs_update_bytes_max: int = 4 * MiB  # One message of a client; it is walked byte by byte before anything else happens.
    yjs_updates_max: int = 256  # Of several clients, in one operation.
    yjs_pending_bytes_max: int = 8 * MiB  # Received for one document and not yet durable; past it its clients are not read.
    yjs_early_bytes_max: int = 16 * MiB  # Held for one document until what they build on arrives, with 256 for each update.
    yjs_send_bytes_max: int = 4 * MiB  # Waiting for one client; past it it is resynchronised, once all of it has left.
    yjs_stalled_s: float = 10.0  # A client that takes nothing of what waits for so long is cut off.

    # Who is present.
    presence_timeout_s: float = 30.0  # After which who does not renew what they said is gone; they do so twice as often.
    presence_state_bytes_max: int = 16 * KiB  # What one of them says.
    presence_entries_max: int = 1024  # In one document or space, those that left a moment ago included.
    presence_bytes_max: int = 16 * MiB  # Of all of them.

    # Client.
    connect_timeout_s: float = 10.0
    reach_timeout_s: float = 1.8  # To reach any node for the first time, unless `wait` gives it longer; then Unreachable.
    failover_timeout_s: float = 2.0  # With several addresses: to connect to one, and for a silent one to answer a ping.
    request_timeout_s: float = 30.0
    reconnect_delay_s_max: float = 2.0
    client_requests_max: int = 4096  # Under way at once; more callers wait.
    save_attempts_max: int = 64  # Of a change that is made again because somebody else saved first.

    # Storage.
    writes_pending_max: int = 16384  # Written, not yet durable; past it: Overloaded.
    memtable_bytes: int = 16 * MiB  # Small, so that its rows stay in the processor's cache.
    block_cache_bytes: int = 64 * MiB
    tables_open_max: int = 512  # Files of RocksDB that are open at once; of others the next read opens one.
    witness_interval_s: float = 0.25
    reclaim_interval_s: float = 5.0  # At the least, between two times that the space of what was erased is given back.

    # Caches: entries are dropped oldest first.
    objects_known_max: int = 8192  # Of which is remembered that they are listed, and were never deleted.
    checkpoint_cache_bytes: int = 32 * MiB  # Last serialised state of live threads.
    document_cache_max: int = 1024  # Live documents.
    document_cache_bytes: int = 32 * MiB  # Of their states, as they are encoded; in memory they take several times that.
    document_snapshot_updates: int = 512  # Updates since the last snapshot that make a new one due.

    stop_timeout_s: float = 10.0


def checked(config: Config) -> Config:
    """Return `config` if every field is in range.

    Raises:
        InvalidConfig: naming the field.
    """
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if name != "listen_port" and not isinstance(value, str) and value <= 0:
            raise InvalidConfig(f"{name} must be greater than 0; it is {getattr(config, name)}.", field=name)
    if not 0 <= config.listen_port <= 65535:
        raise InvalidConfig(f"listen_port must be 0 to 65535; it is {config.listen_port}.", field="listen_port")
    if not config.listen_host:
        raise InvalidConfig("listen_host must not be empty.", field="listen_host")
    if config.log_level.lower() not in LOG_LEVELS:
        raise InvalidConfig(f"log_level must be one of {', '.join(LOG_LEVELS)}; it is {config.log_level!r}.", field="log_level")
    origins(config)
    if config.memtable_bytes < MiB:
        raise InvalidConfig(f"memtable_bytes must be at least {MiB}; it is {config.memtable_bytes}.", field="memtable_bytes")
    return config


def origins(config: Config) -> frozenset[str]:
    """The origins that `allowed_origins` names, as browsers write them; "*" is any.

    Raises:
        InvalidConfig: one of them is no origin.
    """
    named = frozenset(part.strip().rstrip("/").lower() for part in config.allowed_origins.split(",") if part.strip())
    for origin in named:
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise InvalidConfig(
                f"allowed_origins holds {origin[:80]!r}; an origin is a scheme, a host and perhaps a port, as "
                "https://app.example.com:8443. `*` allows all.",
                field="allowed_origins",
            )
    return named
