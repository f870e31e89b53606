"""The schema that a handle declares, and the violations of schemas by the thread's heads."""

from __future__ import annotations

from shoal.client.arguments import named
from shoal.kinds.thread.handle.checkout import Checkout
from shoal.kinds.thread.handle.declared import Declared, Violation
from shoal.protocol import requests
from shoal.schemas import Schema


@named
class ThreadSchema:
    """The part of a thread's handle for its declared schema."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout

    def declare(self, schema: Schema) -> None:
        """Check saves and migrate loads by this schema from now on: see `shoal.Schema`."""
        self._checkout.declared = Declared(schema, self._checkout.read)

    async def violations(self, *, stale: bool = False) -> list[Violation]:
        """List how the heads of this thread violate the schemas of its space and the declared schema.

        A save that violates a schema is rejected. Violations come from forks, from merges without the schema, and
        from saves made before the schema.
        """
        checkout, declared = self._checkout, self._checkout.declared
        reply = await checkout.connection.read(requests.ReadViolations(checkout.space, checkout.thread), stale=stale)
        found = [Violation(v.checkpoint, v.branch, v.schema, v.version, v.path, v.why) for v in reply.violations]
        if declared is not None:
            for branch, heads in (await checkout.heads(stale=stale)).items():
                for id in dict.fromkeys(heads):
                    broken = declared.violation(await checkout.read(id), branch)
                    found += [broken] if broken is not None else []
        return found
