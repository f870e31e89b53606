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

from shoal.protocol.requests.audit import *
from shoal.protocol.requests.base import *
from shoal.protocol.requests.batches import *
from shoal.protocol.requests.declared import *
from shoal.protocol.requests.document.documents import *
from shoal.protocol.requests.fenced import *
from shoal.protocol.requests.items.indexes import *
from shoal.protocol.requests.items.items import *
from shoal.protocol.requests.leases import *
from shoal.protocol.requests.listings import *
from shoal.protocol.requests.membership import *
from shoal.protocol.requests.multireads import *
from shoal.protocol.requests.presence import *
from shoal.protocol.requests.quotas import *
from shoal.protocol.requests.schemas import *
from shoal.protocol.requests.status import *
from shoal.protocol.requests.subscriptions import *
from shoal.protocol.requests.thread.claims import *
from shoal.protocol.requests.thread.journal import *
from shoal.protocol.requests.thread.labels import *
from shoal.protocol.requests.thread.queues import *
from shoal.protocol.requests.thread.retention import *
from shoal.protocol.requests.thread.scrutiny import *
from shoal.protocol.requests.thread.steps import *
from shoal.protocol.requests.thread.threads import *
from shoal.protocol.requests.unions import *
from shoal.protocol.requests.values.budgets import *
from shoal.protocol.requests.values.deletions import *
from shoal.protocol.requests.values.maps import *
from shoal.protocol.requests.values.scalars import *
from shoal.protocol.requests.values.sets import *
