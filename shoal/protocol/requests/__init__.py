"""The requests that a node answers, and its replies, the same for every interface.

The embedded store, the session WebSocket, REST and the command line all use
them. Each is a msgpack array whose first element is the tag. Fields are only
added at the end, with a default (wire versions N and N−1 work together).
Channel values, events and register values are msgpack of `shoal.values`; a node
stores them without decoding them. Checkpoint ids are 64 hex digits. Times
are milliseconds since 1970. Cursors and contexts are opaque bytes.

A request about one object names it in its second field, whose name is the object's kind.
"""

from __future__ import annotations

from shoal.kinds import modules
from shoal.kinds.budget.requests import *
from shoal.kinds.counter.requests import *
from shoal.kinds.document.requests import *
from shoal.kinds.file.requests import *
from shoal.kinds.items.requests import *
from shoal.kinds.journal.requests import *
from shoal.kinds.label.requests import *
from shoal.kinds.lease.requests import *
from shoal.kinds.map.requests import *
from shoal.kinds.presence.requests import *
from shoal.kinds.redaction.requests import *
from shoal.kinds.register.requests import *
from shoal.kinds.retention.requests import *
from shoal.kinds.schema.requests import *
from shoal.kinds.set.requests import *
from shoal.kinds.step.requests import *
from shoal.kinds.thread.requests import *
from shoal.kinds.tiering.requests import *
from shoal.kinds.worklist.requests import *
from shoal.protocol.base import *
from shoal.protocol.requests.cluster import *
from shoal.protocol.requests.families import *
from shoal.protocol.requests.overviews import *
from shoal.protocol.requests.status import *

# Those of a kind that is not among the imports above, which only type checkers need: it imports them from its own folder.
for _, _module in modules("requests"):
    globals().update({name: getattr(_module, name) for name in _module.__all__})
