"""All that serves documents in one node. `late`, beside it, stands for it until the first request about a document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shoal.kinds.document.serving.compacting import Compactions, Compactor
from shoal.kinds.document.serving.documents import Documents
from shoal.kinds.document.serving.opening import DocumentGenerations
from shoal.kinds.document.serving.restoring import Restoring
from shoal.kinds.document.serving.snapshots import OverwrittenValues, Snapshots
from shoal.kinds.redaction.serving.redactor import DocumentGuard
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Handler, Preparations, Readers, Writers
from shoal.protocol.requests import Compact


class DocumentRoom:
    """The handlers of documents as one, with the live replicas, and what compacts them."""

    def __init__(
        self,
        context: NodeContext,
        catalog: Catalog,
        generations: Generations,
        prepare: Callable[[Compact], Awaitable[None]],
        issue: Callable[[Compact], object],
        guard: Callable[[str], DocumentGuard | None],
    ) -> None:
        config, own = context.config, DocumentGenerations(generations)
        self.documents = Documents(config, catalog, own, guard, lambda: context.incarnation.current)
        self.compactions = Compactions(config, context.environment.now_ms, catalog)
        self.compactor = Compactor(self.documents.chores, prepare=prepare, issue=issue)
        handlers: list[Handler] = [
            self.documents,
            self.compactions,
            Restoring(config, self.documents, own),
            OverwrittenValues(),
            Snapshots(config, own),
        ]
        self.checks: Checks = {kind: check for each in handlers for kind, check in each.checks.items()}
        self.writers: Writers = {kind: writer for each in handlers for kind, writer in each.writers.items()}
        self.readers: Readers = {kind: reader for each in handlers for kind, reader in each.readers.items()}
        self.preparations: Preparations = {**self.documents.preparations, **self.compactions.preparations}
