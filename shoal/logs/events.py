"""The table of all events of the log, in the order of their areas. docs/LOGS.md follows from it.

Law: a name is never given to another event. A field has one meaning in all events: `FIELDS`.
"""

from __future__ import annotations

from shoal.logs.event import Event

FIELDS = {
    "about": "the member, space or bound that a condition is about; empty: the node itself",
    "accepted": "what is accepted now",
    "address": "a node's address, `host:port`",
    "agent": "the name of an agent of a crew",
    "bound": "the setting whose bound is reached",
    "change": "the change of the members that is under way",
    "code": "the code of an error ([ERRORS.md](ERRORS.md))",
    "condition": "a name of the table of [conditions](CONDITIONS.md)",
    "count": "how many",
    "data": "the node's directory",
    "difference": "how a member's clock, or list of members, differs from this node's",
    "epoch": "the number of the list of members",
    "file": "a path on the node's machine",
    "issuer": "the URL of an issuer of tokens",
    "keys": "the names of keys, which are hashes of them",
    "kind": "the kind of a request, as in [REQUESTS.md](REQUESTS.md)",
    "library": "the part of Python or of a library that wrote the line",
    "machine": "the name of a machine of a crew",
    "means": "what a condition means for users",
    "members": "addresses of members",
    "mends": "the command that mends a condition",
    "node": "the id of a node's directory, in hex",
    "object": "a kind, a name and a space",
    "of": "the name of an event",
    "outcome": "how the rows of an object were repaired, or why not",
    "partition": "the number of a partition",
    "peer": "another node: its name, its address, or its id",
    "reason": "why, in the words of an error",
    "remote": "the address from which it came",
    "says": "what was found",
    "seconds": "seconds",
    "seed": "an address that may lead to members",
    "severity": "`page`, `ticket` or `note`",
    "signal": "the signal that the process got",
    "software": "the program and the version that a peer runs",
    "space": "the name of a space",
    "strategy": "a strategy that LangGraph's configuration asks for",
    "term": "the number of a term of the quorum register",
    "tool": "the name of a tool of MCP",
    "until": "a moment",
    "url": "where the node is reached",
    "version": "the version of Shoal",
    "where": "the part of the program",
}
"""The fields of events, and what each means."""

# ── serve: a process that serves ─────────────────────────────────────────────
READY = Event("serve", "ready", "info", "{url} serves {data}, version {version}", "The node answers from now on.")
RESUMED = Event(
    "serve",
    "resumed",
    "warning",
    "{data} had an end that was no clean stop, and is resumed",
    "The process was killed, or its machine lost power. What was acknowledged is there.",
)
STOPPING = Event("serve", "stopping", "info", "the node stops: {signal}", "It takes no new requests; those under way finish.")
STOPPED = Event("serve", "stopped", "info", "the node has stopped", "Its directory is closed.")
ENVIRONMENT = Event("serve", "environment", "warning", "{reason}", "A variable `SHOAL_…` is not a setting, and is ignored.")
TRACES_OFF = Event("traces", "traces-off", "warning", "{reason}", "Traces are asked for and cannot be sent; all else goes on.")
TRACES_BROKEN = Event(
    "traces",
    "traces-broken",
    "warning",
    "spans are lost, because the provider of traces raised {reason}",
    "A sampler or a processor of spans fails; told once in a process, and requests go on.",
)
UNTESTED = Event("serve", "untested-library", "warning", "{reason}", "A library is installed in a version that was not tested.")
TLS_LOADED = Event(
    "serve", "tls-loaded", "info", "the TLS files are loaded; the certificate ends {until}", "They had changed, or SIGHUP came."
)
TLS_TROUBLE = Event(
    "serve", "tls-trouble", "warning", "TLS: {reason}", "The files cannot be used; the former ones stay in use."
)
CLUSTER_KEY_LOADED = Event(
    "serve", "cluster-key-loaded", "info", "the cluster's key is loaded: {keys}", "Its file had changed, or SIGHUP came."
)
CLUSTER_KEY_TROUBLE = Event(
    "serve", "cluster-key-trouble", "warning", "the cluster's key: {reason}", "Its file cannot be used; the former key stays."
)
MASTER_KEY_REPLACED = Event(
    "serve", "master-key-replaced", "info", "the master key is now {keys}", "The data keys are wrapped by another master key."
)
MASTER_KEY_TROUBLE = Event(
    "serve", "master-key-trouble", "warning", "the master key: {reason}", "It cannot be had; the former one stays in use."
)

# ── access: tokens ───────────────────────────────────────────────────────────
TOKEN_KEYS_LOADED = Event(
    "access", "token-keys-loaded", "info", "the keys of tokens are loaded from {file}", "The file had changed."
)
TOKEN_KEYS_TROUBLE = Event(
    "access", "token-keys-trouble", "warning", "the keys of tokens: {reason}", "They cannot be used; the former ones stay."
)
TOKENS_REFUSED = Event(
    "access",
    "tokens-refused",
    "warning",
    "no token is accepted, because revocations may be missed: {bound}",
    "The node reached no quorum for as long as the setting says.",
)
TOKENS_ACCEPTED = Event(
    "access", "tokens-accepted", "warning", "tokens are accepted again: {bound}", "The node reaches a quorum again."
)
REVOCATIONS_MANY = Event(
    "access",
    "revocations-many",
    "error",
    "there are too many revocations: {bound}; accepted: {accepted}",
    "Revocations beyond the bound cannot be known, so no token counts. Let revoked ones end, or raise the bound.",
)
REVOCATIONS_TROUBLE = Event(
    "access", "revocations-trouble", "warning", "revocations cannot be read: {reason}", "Those that are known count meanwhile."
)
ISSUER_TROUBLE = Event(
    "access",
    "issuer-trouble",
    "warning",
    "the keys of {issuer} could not be had, and the former ones are kept: {reason}",
    "Tokens of that issuer count as long as their keys are known.",
)

# ── api: requests ────────────────────────────────────────────────────────────
BUG = Event(
    "api",
    "bug",
    "error",
    "unexpected error in {where}",
    "A bug in Shoal. The caller was told that it is not known whether anything was written. Please report it.",
)

REQUEST_REFUSED = Event(
    "api",
    "request-refused",
    "debug",
    "{kind} was refused: {code}",
    "The answer to a request was an error, as a 404 or a 412 is. Told at `--log-level debug` alone: to programs that look "
    "whether something is there, or who is first, it is nothing special. `shoal_requests_total` counts all of them by code.",
)

# ── conditions ───────────────────────────────────────────────────────────────
_STANDS = "condition {condition} ({severity}): {says}. It means: {means} Mend it: {mends}"
CONDITION_PAGE = Event(
    "conditions", "condition-page", "error", _STANDS, "A condition that users feel has stood for 4 s.", also=("about",)
)
CONDITION_TICKET = Event(
    "conditions",
    "condition-ticket",
    "warning",
    _STANDS,
    "A condition that can wait for the day has stood for 4 s.",
    also=("about",),
)
CONDITION_NOTE = Event(
    "conditions", "condition-note", "info", _STANDS, "A condition that needs nobody has stood for 4 s.", also=("about",)
)
CONDITION_GONE = Event(
    "conditions", "condition-gone", "info", "condition {condition} is gone", "It stood, was told, and is over.", also=("about",)
)

# ── node: its data ───────────────────────────────────────────────────────────
READ_ONLY = Event(
    "node",
    "read-only",
    "error",
    "this node is read-only from now on, because storage failed: {reason} Writes are rejected, reads still work. Check the "
    "disk, then restart the node.",
    "A write or a sync of its directory failed.",
)
TASK_ENDED = Event(
    "node",
    "task-ended",
    "error",
    "unexpected error: {where} has ended on this node until it is started again",
    "A bug in Shoal. Requests are served; what that task does is not done. Restart the node, and please report it.",
)
SNAPSHOTS_FINISHED = Event(
    "node",
    "snapshots-finished",
    "info",
    "finished replacing {count} partitions by snapshots of peers, as the last start had begun",
    "The last process ended while it took them.",
)
PARTITION_LOST = Event(
    "node",
    "partition-not-served",
    "error",
    "partition {partition} is not served until the node is started again: {reason}",
    "It could not be replaced by the snapshot of a peer.",
)
SNAPSHOT_REFUSED = Event(
    "node",
    "snapshot-not-used",
    "warning",
    "the snapshot of partition {partition} that {peer} sent is not used: {reason}",
    "It is damaged, or not what was asked for. Another one is asked for.",
)
GARBAGE_ALTERED = Event(
    "node",
    "garbage-altered",
    "warning",
    "an entry of the queue of garbage was altered on the disk, and is written again from the log",
    "The disk damages rows: `shoal verify` it.",
)
DOCUMENT_REBUILT = Event(
    "node",
    "document-rebuilt",
    "warning",
    "{object} showed something else than its updates build: it is built again",
    "Its state in memory was wrong. What was written is not.",
)
ROWS_DIFFER = Event(
    "node",
    "rows-differ",
    "warning",
    "{reason}",
    "Two nodes that hold the same operations have other rows of an object. It is examined.",
)
ROWS_NOT_REPAIRED = Event(
    "node",
    "rows-not-repaired",
    "warning",
    "the rows of {object} differ from those of a peer: {outcome}",
    "They stay as they are for now.",
)
ROWS_REPLACED = Event(
    "node",
    "rows-replaced",
    "warning",
    "the rows of {object} differed from those of a peer: {outcome}",
    "They are equal from now on.",
)
THREAD_DANGLES = Event(
    "node", "thread-dangles", "warning", "{object}: {outcome}", "A save of a thread builds on data that was erased."
)
THREAD_SUPPLIED = Event(
    "node",
    "thread-supplied",
    "info",
    "peers supplied the data of pruned checkpoints that {object} needs",
    "The thread is whole again.",
)
LOG_UNSHOWN = Event(
    "node",
    "log-not-shown",
    "warning",
    "{peer} says that its log makes its rows of {object}, and did not show it. Nothing was replaced by its word; compare the "
    "nodes with `shoal verify`.",
    "Its disk is damaged, or it lies.",
)
ROWS_OTHERS = Event(
    "node",
    "rows-others",
    "warning",
    "{peer} was asked for damaged rows of {object}, but sent others",
    "Another peer is asked.",
)
ROWS_FETCHED = Event(
    "node",
    "rows-fetched",
    "warning",
    "{count} damaged rows of {object} were fetched again from a peer",
    "The disk begins to fail: plan to replace it.",
)
ROWS_LOST = Event(
    "node",
    "rows-lost",
    "error",
    "{object} is damaged here, and no peer could repair it: {reason}",
    "Requests for it fail with `StoreCorrupt`.",
)
AUDIT_TROUBLE = Event(
    "node", "audit-trouble", "warning", "no audit statement could be kept: {reason}", "It is tried again after the interval."
)
BACKUP_TROUBLE = Event(
    "node", "backup-trouble", "warning", "backup: {reason}", "This node could not ship to the backup. It tries again."
)
TIERING_TROUBLE = Event(
    "node", "tiering-trouble", "warning", "tiering: {reason}", "Chunks of idle threads could not be moved, fetched or deleted."
)
RETENTION_WAITS = Event(
    "node", "retention-waits", "warning", "retention waits: {reason}", "Rules of retention do not go on for now."
)

# ── cluster: members, links, votes ───────────────────────────────────────────
PEER_LINKED = Event(
    "cluster", "peer-linked", "info", "linked to {peer} at {address}, {node}", "A link that was dialled begins."
)
PEER_ACCEPTED = Event(
    "cluster", "peer-accepted", "info", "{peer} has linked, {node}, {software}", "A link that a peer dialled begins."
)
PEER_LEFT = Event(
    "cluster", "peer-left", "info", "{peer} has left: {reason}", "A link that a peer dialled has ended.", also=("remote",)
)
PEER_NOT_LINKED = Event(
    "cluster", "peer-not-linked", "info", "no link to {address}: {reason}", "It is dialled again, after a pause."
)
PEER_REFUSES = Event(
    "cluster",
    "peer-refuses",
    "warning",
    "{address} takes no link of this node: {reason}",
    "Something is to be set right: names, keys, certificates, members.",
    also=("code",),
)
PEER_REFUSED = Event(
    "cluster",
    "peer-refused",
    "warning",
    "{peer} at {remote} was refused: {reason}",
    "It is no member, has another key or certificate, or is a stranger.",
    also=("code",),
)
PEER_CUT_OFF = Event(
    "cluster",
    "peer-cut-off",
    "warning",
    "the link of {peer} was cut: {reason}",
    "It sent what no node sends. It may link again.",
    also=("code",),
)
SEED_LEADS_NOWHERE = Event(
    "cluster",
    "seed-leads-nowhere",
    "info",
    "{seed} leads to no node: {reason}",
    "It is asked again until the members are known.",
)
MEMBERS_UNKNOWN = Event(
    "cluster", "members-unknown", "info", "the members are not known yet: {reason}", "The node serves once they are."
)
MEMBERS_FOUND = Event("cluster", "members-found", "info", "the members are {members}", "They were found by the seeds.")
MEMBERS_ENTERED = Event(
    "cluster",
    "members-changed",
    "info",
    "epoch {epoch}: the members are {members}",
    "Another list of members counts.",
    also=("change",),
)
MEMBERS_DIFFER = Event(
    "cluster", "members-differ", "warning", "members differ: {difference}", "Nodes have different lists of members."
)
MEMBERS_AGREE = Event(
    "cluster", "members-agree", "info", "members agree again with those of {peer}", "Both have the same list again."
)
CHANGE_STANDS = Event(
    "cluster", "change-stands", "info", "the change of members does not go on yet: {reason}", "It is tried again."
)
VOTE_REFUSED = Event(
    "cluster",
    "vote-refused",
    "warning",
    "this node does not vote for epoch {epoch} of the members: {reason}",
    "A step that removes a member is not taken while that member is up.",
)
VOTES_ENDED = Event(
    "cluster",
    "votes-ended",
    "warning",
    "this node votes no more, because epoch {epoch} goes on without it: {reason}",
    "It was removed.",
)
VOTES_BEGUN = Event(
    "cluster", "votes-begun", "info", "this node votes in the quorum register, in term {term}", "It counts in quorums."
)
VOTES_NOT_YET = Event(
    "cluster",
    "votes-not-yet",
    "warning",
    "this node does not vote in the quorum register until it has recovered: {reason}",
    "Its votes cannot be read, so others decide meanwhile.",
)
REGISTER_REBUILT = Event(
    "cluster",
    "register-rebuilt",
    "warning",
    "the register was rebuilt: epoch {epoch}, the members are {members}",
    "An operator founded it anew after a majority was lost.",
)
REBUILD_DECLINED = Event(
    "cluster", "rebuild-declined", "warning", "this node did not take part in a rebuild: {reason}", "Its operator was told."
)
COPIES_FOUND = Event(
    "cluster",
    "copies-found",
    "warning",
    "all members are copies that hold all votes of their originals: the register is founded anew",
    "A whole cluster was started from copies of its directories.",
)
COPIES_WAIT = Event(
    "cluster", "copies-wait", "info", "the copies do not found the register yet: {reason}", "It is tried again."
)
SET_BACK = Event(
    "cluster",
    "set-back",
    "warning",
    "this node's directory was set back: {peer} knows that it once held more",
    "It counts in no quorum until it holds again what it may have forgotten.",
)
LEFT_BEHIND = Event(
    "cluster", "left-behind", "warning", "{reason}", "What this node lacks has left a peer's log. It takes a snapshot."
)
CLOCKS_DIFFER = Event(
    "cluster", "clocks-differ", "warning", "clocks differ: {difference}", "Set the clock of the node that is named."
)
CLOCKS_AGREE = Event("cluster", "clocks-agree", "info", "the members' clocks agree again", "None differs too much.")

# ── crew: agents and machines ────────────────────────────────────────────────
AGENT_GIVEN_UP = Event(
    "crew", "agent-given-up", "info", "agent {agent} is given up: {reason}", "It goes on elsewhere, if at all."
)
AGENT_FINISHED = Event("crew", "agent-finished", "info", "agent {agent} has finished", "Its function returned.")
AGENT_RAISED = Event(
    "crew", "agent-raised", "warning", "agent {agent} raised", "Its function raised; it is begun again if it may."
)
AGENT_RAISED_LATE = Event(
    "crew", "agent-raised-late", "warning", "agent {agent} raised while it was given up", "Nothing follows from it."
)
AGENT_LOST_LEASE = Event(
    "crew",
    "agent-lost-lease",
    "warning",
    "agent {agent}: its lease is lost, so its function is cancelled",
    "Another machine may run it now.",
)
AGENT_STUCK = Event(
    "crew",
    "agent-stuck",
    "error",
    "agent {agent}: its function was cancelled and has not ended within {seconds} s, so this process is ended. Another machine "
    "goes on from its last checkpoint. Let the function pass on asyncio.CancelledError.",
    "Its function ignores that it is cancelled.",
)
AGENT_TROUBLE = Event("crew", "agent-trouble", "warning", "agent {agent}: {reason}", "It is tried again.")
AGENT_WAITS = Event(
    "crew", "agent-waits", "warning", "agent {agent} waits, and keeps its lease for now: {reason}", "The cluster is to blame."
)
AGENT_WAITS_FOR_LEASE = Event(
    "crew",
    "agent-waits-for-lease",
    "warning",
    "agent {agent} goes on once it has its lease again, within {seconds} s: {reason}",
    "Another one holds it.",
)
AGENT_NO_LEASE = Event(
    "crew", "agent-no-lease", "warning", "agent {agent} does not have its lease again: {reason}", "It is tried again."
)
AGENT_BUG = Event("crew", "agent-bug", "error", "agent {agent}: a bug in Shoal", "A bug in Shoal. Please report it.")
MACHINE_STOOD_STILL = Event(
    "crew",
    "machine-stood-still",
    "warning",
    "machine {machine} stood still while it took its name, and tries again: {reason}",
    "Its process had no time.",
)
MACHINE_UNHEARD = Event(
    "crew",
    "machine-unheard",
    "warning",
    "machine {machine} was not heard of for its ttl; it takes no agents until it is back",
    "Its agents go to other machines.",
)
MACHINE_TROUBLE = Event("crew", "machine-trouble", "warning", "machine {machine}: {reason}", "It is tried again.")

# ── langgraph, mcp: integrations ─────────────────────────────────────────────
TTL_STRATEGY = Event(
    "langgraph",
    "ttl-strategy",
    "warning",
    "langgraph.json: `ttl` of the checkpointer has the strategy {strategy}, which Shoal does not carry out by itself. Nothing "
    "goes. Call `saver.prune`, or use the strategy 'delete'.",
    "Threads stay for ever.",
)
TTL_OTHER_RULE = Event(
    "langgraph",
    "ttl-other-rule",
    "warning",
    "langgraph.json: `ttl` of threads is not used, because space {space} has another rule of retention. See it with "
    "`shoal retention show`, and remove it with `shoal retention unset`.",
    "The rule of a person counts more than a file's.",
)
TTL_TROUBLE = Event(
    "langgraph", "ttl-trouble", "warning", "langgraph.json: `ttl` of threads is not used: {reason}", "No rule was set."
)
WATCH_ENDED = Event("mcp", "watch-ended", "warning", "the watch has ended: {reason}", "Clients subscribe again.")
WATCH_INTERRUPTED = Event("mcp", "watch-interrupted", "warning", "the watch was interrupted: {reason}", "It is begun again.")
TOOL_BUG = Event("mcp", "tool-bug", "error", "the tool {tool} failed", "A bug in Shoal. Please report it.")

# ── log: the log itself ──────────────────────────────────────────────────────
LINES_LEFT_OUT = Event(
    "log",
    "lines-left-out",
    "warning",
    "{count} lines of {of} were left out",
    "There were more than 60 of them in 60 s. The first ones say what it is about.",
)
LINES_UNREAD = Event(
    "log",
    "lines-unread",
    "warning",
    "{count} lines were left out, because standard error took none",
    "Whoever collects the log did not read it, or its disk was full. A node does not wait for that.",
)
LIBRARY = Event(
    "log",
    "library",
    "warning",
    "{library}: {says}",
    "A library, or Python itself, wrote a line. Its first line is shown, at the level that it has.",
)

EVENTS: dict[str, Event] = {event.name: event for event in list(vars().values()) if isinstance(event, Event)}
"""All events, by their names."""
