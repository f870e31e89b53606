"""Open subscriptions: watches of a space, and followers of a document or of presence.

Law: a subscriber misses nothing. A follower of a document is subscribed before the document's state is read; a watch begins
once everything that was written before it is durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from shoal.kinds.presence.handler import Presences
from shoal.names import check_name
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.replicas import Replicas
from shoal.node.watching.changelog import ResumableWatch
from shoal.node.watching.feed import Subscriber
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Follow, FollowPresence, Push, Subscription, Watch
from shoal.storage.keys import Kind

Pushes = AbstractAsyncContextManager[AsyncIterator[Push]]


class Subscriptions:
    """Opens the subscriptions of one node, by kind."""

    def __init__(self, context: NodeContext, database: Database, *, replicas: Replicas, presences: Presences) -> None:
        self._database = database
        self._commit = context.commit
        self._feed = context.feed
        self._replicas = replicas
        self._presences = presences
        self._config = context.config
        self._kinds: Mapping[type, Callable[[Any, Bookmark], Pushes]] = {
            Watch: self._watch,
            Follow: self._follow,
            FollowPresence: self._follow_presence,
        }

    def open(self, subscription: Subscription, bookmark: Bookmark) -> Pushes:
        """A context whose value iterates over the pushes. Entering it may wait; `bookmark` grows by the taken pushes.

        Raises:
            ShoalError: on entering, as the kinds of subscriptions say.
        """
        return self._kinds[type(subscription)](subscription, bookmark)

    @asynccontextmanager
    async def _watch(self, subscription: Watch, bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        bytes_max = self._feed.bytes_max
        subscriber: Subscriber
        if subscription.after is None:
            subscriber = Subscriber(subscription, bookmark, bytes_max)
        else:
            changelog = self._database.changelog
            subscriber = ResumableWatch(subscription, bookmark, changelog, bytes_max, config=self._config)
        with self._feed.told(subscriber):
            if self._commit.failed is None or subscription.after is not None:
                # Changes written while nobody watched were not staged. Once they are durable, none can be missed. A
                # resumed watch reads them from the log; if they can never be durable here, the watch must go elsewhere.
                await self._database.all_durable()
            yield subscriber

    @asynccontextmanager
    async def _follow(self, subscription: Follow, bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        subscriber = Subscriber(subscription, bookmark, self._feed.bytes_max)
        with self._feed.told(subscriber):
            target = Target(Kind.DOCUMENT, subscription.space, check_name("document", subscription.document))
            wanted = bookmark.vector(target.partition)
            if not subscription.stale and not self._database.holds(target.partition, wanted):
                await self._replicas.wait_applied(target.partition, wanted)
            await self._database.prepare([(subscription, target)])
            state = self._database.documents.follow(self._database.document(target), subscription)
            shown = self._database.vector(target)
            await self._database.durable(target)
            bookmark.note(target.partition, shown)  # Already now: the first answer to the subscriber carries it.
            subscriber.lead(state, target.partition, shown)
            yield subscriber

    @asynccontextmanager
    async def _follow_presence(self, subscription: FollowPresence, _bookmark: Bookmark) -> AsyncIterator[AsyncIterator[Push]]:
        with self._presences.follower(subscription) as follower:
            yield follower
