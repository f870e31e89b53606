"""The requests that a node answers, and its replies: one vocabulary for every door.

The embedded store, the session WebSocket, REST and the command line all speak
these. Each is a msgpack array whose first element is the tag; fields are only
ever added at the end, with a default (wire versions N and N−1 work together).
Channel values, events and register values are msgpack of `shoal.values`; a node
stores them and does not look inside. Checkpoint ids are 64 hex digits. Times
are milliseconds since 1970. Cursors and contexts are opaque bytes.

A request about one object names it in its second field, which says the kind.
"""

from __future__ import annotations

from shoal.protocol.requests.base import *
from shoal.protocol.requests.batches import *
from shoal.protocol.requests.budgets import *
from shoal.protocol.requests.declared import *
from shoal.protocol.requests.documents import *
from shoal.protocol.requests.indexes import *
from shoal.protocol.requests.items import *
from shoal.protocol.requests.journal import *
from shoal.protocol.requests.labels import *
from shoal.protocol.requests.listings import *
from shoal.protocol.requests.maps import *
from shoal.protocol.requests.multireads import *
from shoal.protocol.requests.presence import *
from shoal.protocol.requests.queues import *
from shoal.protocol.requests.retention import *
from shoal.protocol.requests.scalars import *
from shoal.protocol.requests.schemas import *
from shoal.protocol.requests.scrutiny import *
from shoal.protocol.requests.sets import *
from shoal.protocol.requests.status import *
from shoal.protocol.requests.steps import *
from shoal.protocol.requests.subscriptions import *
from shoal.protocol.requests.threads import *
from shoal.protocol.requests.unions import *
