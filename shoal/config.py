"""Every bound and setting, by name. A bound that is not here does not exist.

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
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,]+")


class Config(Struct, frozen=True, kw_only=True):
    """The settings of a node. An embedded store has the same settings, except those of the listener."""

    # The listener. With port 0 the system chooses a port.
    listen_host: str = "127.0.0.1"
    listen_port: int = 7400
    log_level: str = "info"  # `shoal serve` logs this severity and above to standard error; one of LOG_LEVELS.
    allowed_origins: str = ""  # Web pages that may call this node, "https://a.example.com,…"; "*": all. Empty: none.
    allowed_hosts: str = ""  # Host names under which it answers, "shoal.example.com,…"; "*": any. Empty: see CONFIGURATION.md.
    connections_max: int = 4096  # Open, WebSockets included; beyond this a new one is answered with 429 and closed.
    connections_address_max: int = 3072  # Of those from one address, or one /64 of IPv6; behind a proxy all come from its own.
    connections_kept: int = 64  # The last places, for addresses that have few connections: peers, probes and operators.
    head_s: float = 10.0  # For the head of a request, from its first byte or a new connection's beginning; then it is closed.
    idle_s: float = 90.0  # An HTTP connection without a complete request is closed after this; longer than proxies keep theirs.

    # TLS. The files are PEM; a private key has no password.
    tls_cert: str = ""  # The node's certificate, with those between it and the CA. Empty: the node speaks plain HTTP.
    tls_key: str = ""  # Its private key.
    tls_ca: str = ""  # The CA of the nodes: of the peers, and of the nodes that a client calls. Empty: the system's, no peers.
    tls_crl: str = ""  # The CA's list of revoked certificates, for links among peers. Empty: none is revoked.
    tls_peer_names: str = "any"  # Which certificate a peer may show: "any" of the CA, or its "own", which names its address.
    tls_look_s: float = 10.0  # Between two looks at whether the files have changed.
    tls_handshake_s: float = 10.0  # A connection that has not finished the handshake after this is closed.
    hsts_s: float = 365 * 24 * 3600.0  # For how long browsers shall use TLS alone with this host; 0: they are not told.

    # Access: who may do what.
    token_keys: str = ""  # A file with the public keys of tokens, as a JSON Web Key Set. Empty: no token is asked for.
    plain_tokens: str = ""  # Hosts to which a client sends its token over http://, "n1,n2" or "*": something else encrypts.
    token_look_s: float = 10.0  # Between two looks at whether that file has changed.
    token_bytes_max: int = 3584  # One token; browsers keep no cookie of more than 4096 bytes.
    token_grants_max: int = 64  # Of one token.
    tokens_known_max: int = 4096  # Whose signatures need not be verified again.
    token_failures_max: int = 20  # Tokens of one address that were refused in `token_failures_s`; beyond this: Overloaded.
    token_failures_s: float = 60.0
    token_addresses_max: int = 4096  # Whose failures are counted; the oldest are forgotten first.
    oidc_issuers: str = ""  # OIDC issuers whose tokens count too, "https://login.example.com,…". Empty: none.
    oidc_audience: str = ""  # The audience that their tokens must name.
    oidc_look_s: float = 3600.0  # Between two fetches of their keys.
    oidc_pause_s: float = 10.0  # At least this long between two fetches, if tokens name keys that are not known.
    oidc_timeout_s: float = 10.0  # For one issuer's answer.
    revocations_max: int = 65_536  # Tokens that are revoked and have not expired.
    revocations_age_s_max: float = 0.0  # Cut off from a quorum for longer, a node accepts no token. 0: it goes on.

    # `shoal mcp`.
    mcp_clients_max: int = 256  # Tokens whose connections a server over HTTP keeps.
    mcp_message_bytes_max: int = 64 * MiB  # On standard input; a longer message is none. Over HTTP: `request_bytes_max`.
    mcp_requests_max: int = 4096  # On standard input: requests whose keys are remembered, for those that are sent again.
    mcp_subscriptions_max: int = 1024  # Resources that are watched for one client.

    # The cluster. Every node owns everything.
    cluster: str = "shoal"  # Its name; nodes of other clusters are refused.
    cluster_key: str = ""  # A secret that peers prove to each other; empty: no proof is required.
    cluster_key_file: str = ""  # A file with it, which is read again, so that it can be changed. One of the two is empty.
    join: str = ""  # The peers, "host:port,host:port"; may contain the node itself, so the list can be the same for all nodes.
    cluster_size: int = 0  # The number of members, if `join` has seeds: names that may lead to several nodes each.
    advertise: str = ""  # Where peers reach this node, "host:port"; empty: where it listens.
    quorum_timeout_s: float = 5.0  # How long `quorum` and `all` wait for copies.
    quorum_register_keys_max: int = 64  # Keys of the quorum register, which every member holds in memory.
    quorum_register_value_bytes_max: int = 16 * KiB  # The content of one of them.
    quorum_register_requests_max: int = 64  # Its operations in progress on one node; beyond this: Overloaded.
    quorum_register_retry_s: float = 0.1  # Until its messages are sent again; at most the first pause between two attempts.
    quorum_register_hello_s: float = 5.0  # Between two reports of a voter to its peers, once the register is used.
    quorum_register_found_s: float = 10.0  # How long all members must be linked until the register is founded unasked.
    members_tell_s: float = 1.0  # Between two reports of how far a node is with a change of the members.
    lease_shards: int = 16  # Keys of the quorum register that hold leases. The same on all nodes, and forever.
    lease_waiters_max: int = 32  # Claims that wait for one lease; beyond this: Overloaded.
    lease_ttl_s_min: float = 1.0  # The shortest lease.
    lease_ttl_s_max: float = 3600.0  # The longest lease.
    lease_drift_max: float = 0.01  # By which share of the time clocks run too fast or too slow; below 0.5, the same everywhere.
    lease_offer_s: float = 5.0  # A lease that is granted to one that waits, and is not taken for this long, goes to the next.
    lease_poll_s: float = 10.0  # For one request that waits for a lease; the client sends it again.
    lease_forward_s: float = 0.5  # How long a node waits for the one that decides on its claims. Then it decides itself.
    lease_gather_s: float = 0.5  # Renewals wait for others to be stored with them, at most a tenth of their ttl.
    crew_agents_max: int = 512  # Agents of one crew, each with a lease; see lease_shards.
    crew_machines_max: int = 64  # Machines that run one crew, each with a lease.
    crew_params_bytes_max: int = 16 * KiB  # The parameters of one agent, as JSON.
    crew_patience_s: float = 0.5  # After this, an agent that is still free is taken by any machine with room; up to twice that.
    crew_balance_s: float = 10.0  # A crew in which nothing has changed for this long moves agents to machines with fewer.
    crew_backoff_s_max: float = 60.0  # Between two tries of an agent that raises; the first pause is a second.
    crew_steady_s: float = 600.0  # After an agent has run for this long, its tries are counted anew.
    crew_standby_s: float = 1.0  # Between two loads of the checkpoint of an agent on standby.
    crew_linger_s: float = 1.0  # An agent that has waited for this long gives its lease back; at once if it waits for a person.
    crew_return_s: float = 60.0  # How long an agent waits for its lease after a wait, if somebody else holds it.
    crew_change_s: float = 30.0  # How long a change of a crew's record waits for others.
    compare_ttl_s: float = 2.0  # The lease of one compare_and_set, or of a tie of steps: if its node dies, others wait so long.
    rights_wait_s: float = 1.0  # For one peer's answer to a request for rights to spend, or for what it holds.
    rights_collisions_max: int = 3  # So often a node draws rights again, because others drew them at the same time.
    rights_spread_s: float = 0.5  # Between two checks of how rights to spend are distributed over the nodes.
    rights_spread_max: int = 64  # Budgets in one such check.
    rights_due_max: int = 65_536  # Budgets that wait for a check; beyond this, a budget is checked after its next change.
    rights_kept_max: int = 65_536  # Budgets for which a node remembers how much was drawn by request.
    session_wait_s: float = 2.0  # For the operations that a client's bookmark names; then SessionBehind.
    tick_s: float = 0.05  # Between two looks for work that is due.
    tick_quiet_s: float = 1.0  # Once nothing has happened for this long,
    tick_idle_s: float = 0.25  # a node looks this often, until something does.
    sync_interval_s: float = 0.5  # Between two comparisons with a peer, with jitter.
    clock_skew_max_ms: int = 10_000  # From a majority of the members' clocks; beyond this a node rejects writes: ClockWrong.
    clock_interval_s: float = 10.0  # Between two comparisons of clocks with the peers.
    mark_interval_s: float = 5.0  # Between two records of what each peer was ever known to hold.
    peer_message_bytes_max: int = 40 * MiB  # From a peer; one operation may hold a whole request.
    peer_claims_max: int = 512 * KiB  # Logs that a peer may name of which this node has nothing; refused from half as many on.
    peer_send_bytes_max: int = 8 * MiB  # Queued for one peer; beyond this, pushes are dropped and later fetched by sync.
    peer_heartbeat_s: float = 5.0  # A silent link is pinged after this, closed half as long after; a stalled one after twice.
    peer_connect_timeout_s: float = 2.0  # For one attempt to connect to a peer; at most connect_timeout_s.
    peer_links_max: int = 64  # Accepted from peers.
    peer_handshakes_max: int = 32  # Sockets that have not completed the handshake; beyond this, the oldest is closed.
    peer_warning_interval_s: float = 60.0  # Between two logged warnings about one peer, for one reason.
    peer_warnings_max: int = 256  # In that time, for all peers.
    push_bytes_max: int = 256 * KiB  # In one message; the first operation may exceed it.
    supply_bytes_max: int = 256 * KiB  # The same, for operations that a peer asked for.
    supply_operations_max: int = 512  # In one such answer: small ones take long to read before they fill it.
    vectors_bytes_max: int = 256 * KiB  # The same, for version vectors that are compared.
    peer_ahead_bytes_max: int = 8 * MiB  # Operations of one peer that wait for a turn; beyond this, its messages are not read.
    peer_step_operations_max: int = 16  # Of a peer's message, applied in one write; other work runs between two of them.
    early_bytes_max: int = 16 * MiB  # Operations that arrived before the operations they depend on.
    early_s: float = 60.0  # How long they wait; the operations they depend on may have been lost with a disk.
    repair_wait_s: float = 5.0  # For one peer's answer to a read repair; then the next peer is asked.
    repair_rows_max: int = 4096  # Repaired for one read; other damaged rows wait for the next.
    audit_interval_s: float = 0.0  # How often the node signs what it holds, and keeps that (docs/AUDIT.md); 0: never.
    audit_reads: str = ""  # Patterns of spaces, separated by commas, of which it is logged who reads what; needs tokens.
    audit_keep_s: float = 366 * 86400.0  # How long statements and the log of reads are kept.
    scrub_interval_s: float = 60.0  # At least this long from one comparison of all rows with the peers to the next.
    scrub_bytes_per_s: int = MiB  # Rows read by scrub: at most 1 % of a core; a larger store takes longer than the interval.
    scrub_piece_rows: int = 128  # Compared in one step, so that scrub does not delay other work.
    scrub_piece_bytes: int = 64 * KiB  # The same in bytes; the first row may exceed it.
    rows_differ_max: int = 1024  # Objects, counted per peer, that are known to have different rows there.
    rebuild_bytes_max: int = 256 * MiB  # A larger object is not rebuilt from the log while the node runs.
    snapshot_piece_bytes: int = 256 * KiB  # Of a partition's rows, in one message; the first row may exceed it.
    snapshot_memory_bytes: int = 2 * MiB  # A larger snapshot is staged on the disk before it replaces its partition.
    snapshot_pieces_ahead_max: int = 2  # Pieces of one snapshot that were asked for and have not arrived.
    snapshots_open_max: int = 8  # Partitions that are taken by snapshot at once; as many snapshots are kept for peers.
    snapshot_operations_min: int = 64  # If no more operations of a partition are missing, its log is fetched.
    snapshot_idle_s: float = 30.0  # A snapshot of which no piece was asked for, or arrived, is given up.
    quarantine_max: int = 1024  # Operations that were rejected and are not requested again.
    quarantine_s: float = 60.0  # How long they are not requested.
    peer_pause_s_max: float = 10.0  # Longest pause before a peer that answers no request for operations is asked again.

    # Requests.
    request_bytes_max: int = 16 * MiB  # One REST body or session message.
    bodies_bytes_max: int = 256 * MiB  # All bodies of HTTP requests in progress; beyond this: Overloaded.
    url_bytes_max: int = 8 * KiB  # With the query; beyond this: 414.
    header_bytes_max: int = 16 * KiB  # One header of an HTTP request, name included; beyond this: 431.
    bookmark_header_bytes_max: int = 6 * KiB  # In an HTTP answer; clients and proxies refuse headers of more than about 8 KiB.
    channels_max: int = 4096  # In one checkpoint.
    branches_max: int = 4096  # In one thread.
    note_bytes_max: int = 4 * KiB  # The provenance of a write: author and reason.
    setting_bytes_max: int = 4 * KiB  # The configuration with which the author of a checkpoint ran.
    seen_bytes_max: int = 2 * KiB  # What that author had read in other partitions; what does not fit goes with the next save.
    batch_writes_max: int = 1024
    multi_reads_max: int = 256  # Answered at one version vector.
    note_name_bytes_max: int = 1024
    schema_bytes_max: int = 64 * KiB  # One replicated JSON Schema.
    schemas_max: int = 256  # Replicated schemas of one space.
    schema_versions_max: int = 256  # Of one of them.
    prune_ids_max: int = 512  # Checkpoints in one operation that prunes them.
    trim_events_max: int = 512  # Events in one operation that trims a journal; events of one operation go together.
    page_items_max: int = 1000  # In one page of a listing, history or journal.
    history_scan_max: int = 4096  # Checkpoints examined for one page of a filtered history.
    page_bytes_max: int = 8 * MiB  # The same, by bytes: a page ends with the first item that exceeds it.
    read_step_rows_max: int = 128  # Looked at in one step of a read, so that a long one does not delay other work.
    read_step_bytes_max: int = 128 * KiB  # The same in bytes; the first row may exceed it.
    journal_wait_s_max: float = 60.0  # How long a request may wait for an event.
    journal_scan_rows_max: int = 20_000  # Events examined for one answer, so that a reader far behind does not delay others.
    consumers_max: int = 256  # Of one thread's journal.
    reducers_max: int = 64  # With snapshots of one thread's journal.
    snapshot_bytes_max: int = 4 * MiB  # One snapshot of a reducer.
    loops_max: int = 1024  # Of one thread, with stored progress.
    queue_pending_max: int = 100_000  # Pending entries of an inbox or a worklist.
    worklists_max: int = 256  # Of one thread.
    worklist_attempts_max: int = 5  # Claims of one item that nobody completes; then it is a dead letter.
    inbox_taken_s: int = 7 * 24 * 3600  # How long a message that was taken, and its key, are remembered.
    document_bytes_max: int = 64 * MiB  # A document's whole state.
    siblings_max: int = 32  # Concurrent values of one register.
    set_members_max: int = 1_000_000  # Of one set.
    map_keys_max: int = 100_000  # Of one map.
    map_sums_max: int = 8192  # Counters of maps whose sums are remembered; a read of another one adds up all its adds.
    set_element_bytes_max: int = 4 * KiB  # One member of a set.
    status_origins_max: int = 1000  # Listed per member in the cluster view; the counts include all.
    listing_scan_max: int = 1000  # Threads examined for one page of a listing by status or metadata.
    step_attempts_max: int = 100  # Of one step in total; each leaves a trace of some hundred bytes.
    step_progress_bytes_max: int = 64 * KiB  # The same bound applies to an error.
    roots_max: int = 256  # Root types of one document.
    document_beginnings_max: int = 64  # Of one document, begun on several nodes at once; beyond this a client adds no other.
    document_conflicts_max: int = 256  # Overwritten values reported for one document: the latest.
    document_client_ids_max: int = 1024  # Yjs client ids of closed documents that a store keeps for later ones.
    document_dead_clients_max: int = 4096  # Yjs clients of deleted generations, which are refused: the latest.
    document_history_updates_max: int = 65_536  # From which a past state may be built.
    document_history_s: float = 7 * 24 * 3600.0  # Younger updates are not compacted automatically.
    document_compact_updates: int = 512  # Updates older than that which trigger a compaction; a large document needs more.
    document_compact_updates_max: int = 65_536  # Merged by one compaction.
    document_bytes_per_update: int = 256  # A large document is written anew only after an update for so many of its bytes.
    document_step_updates_max: int = 256  # Read or merged in one step, so that large documents do not delay other work.
    document_step_bytes_max: int = 64 * KiB  # The same in bytes; the first update may exceed it.
    document_whole_bytes_max: int = MiB  # Larger merged updates and snapshots are opened in pieces: ten times as much work.
    update_authors_max: int = 1024  # Named by one update of a document.
    item_labels_max: int = 32  # In one namespace.
    item_scan_rows_max: int = 2000  # Examined for one page of a search, so that it does not delay other work.
    item_indexes_max: int = 16  # Indexed fields of the items under one first label.
    item_probe_rows_max: int = 256  # Index rows that a search reads to decide whether the index is selective.
    index_build_rows_max: int = 256  # Items processed in one step of building an index.
    vector_dims_max: int = 4096  # Dimensions of one vector.
    vectors_max: int = 16  # Of one item.
    vector_page_rows_max: int = 8192  # Vectors in memory compared in one step of a semantic search.
    vector_moves_max: int = 10_000  # Items written since their vectors were loaded; beyond this, they are loaded again.
    item_ranks_max: int = 10_000  # Nearest items that a semantic search can return.
    vector_cache_bytes: int = 256 * MiB  # Vectors of the namespaces searched most recently.
    item_expiry_grace_s: float = 3600.0  # Before an expired item may be erased; clocks may be wrong and refreshes late.
    items_expired_max: int = 64  # Erased by one operation.
    space_deletes_max: int = 10_000  # Objects that one HTTP request to delete a space looks at; then it answers `more`.
    items_deleted_max: int = 256  # By one operation, when all items of a namespace are deleted.
    filter_terms_max: int = 64  # Fields, operators and list elements in one filter.
    adds_folded_min: int = 16  # Adds to a key of a map that one operation merges: it costs more than a few rows.
    adds_folded_max: int = 4096
    key_window_s: int = 24 * 3600  # How long an idempotency key is remembered.

    # How spaces share a node. Quotas are those of each space without a record of its own; 0: no limit.
    quota_bytes: int = 0  # Of the rows of its objects.
    quota_objects: int = 0
    quota_writes_per_s: float = 0.0  # At each node.
    quota_watchers: int = 0  # At each node.
    quota_documents: int = 0  # Open at each node.
    quota_count_s: float = 2.0  # How long a write waits after a start until the bytes and objects of its space are counted.
    turn_slice_s: float = 0.001  # For steps of requests in one turn of the loop; then sockets and the disk get theirs.
    turn_waiting_max: int = 65_536  # Requests of one space that wait for their turn; beyond this: Overloaded.
    turn_spaces_max: int = 4096  # Spaces whose use of the loop is remembered.

    # Sessions.
    sessions_max: int = 1024
    session_requests_max: int = 1024  # In progress on one session; beyond this, the socket is not read.
    session_send_bytes_max: int = 32 * MiB  # Queued for one session; beyond this, it is closed.
    subscriptions_max: int = 256  # On one session.
    subscribers_max: int = 4096  # On one node.
    subscription_bytes_max: int = 8 * MiB  # Queued for one subscriber; beyond this: SlowConsumer.
    watch_tells_max: int = 1_000_000  # Changes × their subscribers that are still to be told; beyond this, other work waits.
    watch_replay_operations_max: int = 50_000  # Read from the log to resume a watch; beyond this: Reset.
    watch_id_bytes_max: int = 6 * KiB  # A position as the id of a server-sent event, which comes back in a header.
    heartbeat_s: float = 20.0

    # Streams (the Durable Streams protocol).
    stream_append_bytes_max: int = 8 * MiB  # The body of one append; beyond this: 413.
    stream_group_appends_max: int = 256  # Appends to one stream that are written as one record.
    stream_group_bytes_max: int = 1 * MiB  # The same in bytes; the first append may exceed it.
    stream_read_bytes_max: int = 1 * MiB  # In one answer; the append that reaches it is sent whole.
    stream_producers_max: int = (
        256  # Idempotent producers of one stream; beyond this, one that was silent for an hour is forgotten.
    )
    stream_forks_max: int = 1024  # Of one stream.
    stream_fork_depth_max: int = 32  # Forks of forks of a stream.
    stream_writers_max: int = 256  # Streams that one node writes at a time; see lease_shards.
    stream_readers_max: int = 1024  # Live readers of streams at one node; beyond this: Overloaded.
    stream_ttl_s: float = 3.0  # The lease of a stream's writer: if its node dies, others wait so long.
    stream_idle_s: float = 0.5  # A writer that has nothing to do for this long gives its lease up.
    stream_wait_s: float = 15.0  # How long a request waits for a stream that another node writes.
    stream_poll_s: float = 20.0  # How long a long-poll waits for data.
    stream_sse_s: float = (
        60.0  # After this, server-sent events end and the client connects again, so that caches can share them.
    )

    # Standard Yjs clients.
    yjs_connections_max: int = 1024  # Of a Hocuspocus provider, its WebSocket and each open document count.
    yjs_waiting_max: int = 256  # WebSockets of Hocuspocus providers without an open document; beyond this, one is cut off.
    yjs_update_bytes_max: int = 4 * MiB  # One message from a client; it is scanned byte by byte before anything else happens.
    yjs_updates_max: int = 256  # Of several clients, in one operation.
    yjs_pending_bytes_max: int = 8 * MiB  # Received for one document, not yet durable; 256 more for each update.
    yjs_early_bytes_max: int = 16 * MiB  # Held for one document until their dependencies arrive; 256 more for each update.
    yjs_send_bytes_max: int = 4 * MiB  # Queued for one client; beyond this, one diff follows once the queue has drained.
    yjs_stalled_s: float = 10.0  # A client that takes none of the queued bytes for this long is disconnected.

    # Presence.
    presence_timeout_s: float = 30.0  # Presence that is not renewed for this long is removed; clients renew twice as often.
    presence_state_bytes_max: int = 16 * KiB  # The presence state of one client.
    presence_entries_max: int = 1024  # In one document or space, including those that left a moment ago.
    presence_bytes_max: int = 16 * MiB  # All presence states together.

    # Client.
    connect_timeout_s: float = 10.0
    reach_timeout_s: float = 1.8  # To reach the first node, unless `wait` gives longer; then Unreachable.
    failover_timeout_s: float = 2.0  # With several addresses: to connect to one, and for a silent one to answer a ping.
    request_timeout_s: float = 30.0
    reconnect_delay_s_max: float = 2.0
    client_requests_max: int = 4096  # In progress; further callers wait.
    edits_refused_max: int = 6  # Of a mirror's edits, by nodes that lack nothing for them; then EditsRefused, in some 2 s.
    save_attempts_max: int = 64  # Of a change that is repeated because another writer saved first.

    # The log of operations. Each node truncates its own.
    log_keep_s: float = 3600.0  # Operations that all owners hold stay at least this long, for watches that resume.
    log_bytes_max: int = 1024 * MiB  # Beyond this they leave at once, and owners that are away do not hold them up.
    forget_after_s: float = 7 * 24 * 3600.0  # How long an owner that lacks operations holds them up; it is left behind then.

    # The origins of past openings.
    retire_origins_min: int = 16  # Past openings of a directory whose origins are retired together.
    retire_log_bytes_max: int = 1 * MiB  # Of the log of one origin when it is retired; a longer one is truncated before.
    retired_origins_max: int = 4096  # Remembered in one partition; the oldest are forgotten first.

    # Storage.
    writes_pending_max: int = 16384  # Not yet durable; beyond this: Overloaded.
    storage_snapshots_max: int = 16  # Open at once; each keeps what was deleted since on the disk.
    memtable_bytes: int = 16 * MiB  # Small, so that its rows stay in the processor's cache.
    block_cache_bytes: int = 64 * MiB
    tables_open_max: int = 512  # RocksDB files open at the same time; reading another one opens it.
    witness_interval_s: float = 0.25
    erase_within_s: float = 24 * 3600.0  # From a sweep until no file holds what it removed. A pass may write all data again.
    reclaim_interval_s: float = 5.0  # At least this long between two runs that give back the space of erased data.

    # Encryption at rest.
    encryption_key: str = ""  # Where the master key is: "file:PATH", "env:NAME", "command:COMMAND", "plugin:MODULE:NAME".
    encryption_erase_s: float = 60.0  # A space that has had no objects for this long loses its keys, once no row is left.
    encryption_rotate_s: float = 90 * 24 * 3600.0  # A data key this old is replaced, and its rows are sealed anew.
    encryption_look_s: float = 10.0  # Between two looks for such keys; at most encryption_erase_s.
    encryption_keys_max: int = 16_384  # Data keys of one directory, at least one for each space.
    encryption_order_rows_max: int = 131_072  # Rows with hidden keys whose order is remembered, or found out by one scan.

    # Caches. The oldest entries are dropped first.
    objects_known_max: int = 8192  # Known, without a lookup, to be in the catalog and never deleted.
    checkpoint_cache_bytes: int = 32 * MiB  # Latest serialised states of live threads; lists of a connected LangGraph saver.
    document_cache_max: int = 1024  # Live documents.
    document_cache_bytes: int = 32 * MiB  # Their encoded states; in memory they take several times that.
    document_snapshot_updates: int = 512  # Updates since the last snapshot that trigger a new one.

    stop_timeout_s: float = 10.0


SECRETS = frozenset({"cluster_key", "encryption_key"})
"""Fields whose values are in no error and no log."""

_KEY_CHARS_MIN, _KEY_KINDS_MIN = 20, 8  # 20 letters and digits drawn at random are more than anybody guesses.
MOST_REQUESTED = {
    "batch_writes_max": 4096,
    "channels_max": 16_384,
    "filter_terms_max": 256,
    "item_indexes_max": 64,
    "item_labels_max": 64,
    "multi_reads_max": 1024,
    "page_items_max": 4096,
    "prune_ids_max": 4096,
    "roots_max": 4096,
    "update_authors_max": 4096,
    "vectors_max": 64,
    "yjs_updates_max": 4096,
}
"""The most that a request may have, whatever the setting says (`shoal.protocol.declared`)."""
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
