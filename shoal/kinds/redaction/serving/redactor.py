"""Redaction of one node: every request of a client passes it before anything else is done for it.

Laws:
- A write in a space with rules goes on as its rules have made it; what they replaced goes on nowhere.
- What is not known is not written: rules that cannot be read or compiled, and a hook that is not here, refuse each write.
- A space without rules costs a look at a dict. The rules are those that are applied here, whoever set them.
- Much text is looked through in a thread, and patterns are compiled in one, so that others get their turns.
- The space of the nodes themselves has no rules.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from shoal.crdt.dot import VersionVector
from shoal.errors import InvalidInput, RedactionFailed, RedactionRefused, ShoalError, TooLarge
from shoal.kinds.redaction.serving import fields, patterns
from shoal.kinds.redaction.serving.hooks import Hook, Replacement, Text, Writing
from shoal.kinds.redaction.serving.patterns import Engine, Rewriter
from shoal.kinds.redaction.state import rules
from shoal.kinds.redaction.state.rules import Rules
from shoal.names import RESERVED, check_name
from shoal.node.catalog import is_empty
from shoal.node.context import NodeContext
from shoal.node.handler import Answers, Target
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    ReadRedaction,
    RedactionPattern,
    RedactionRules,
    RedactionTried,
    Replaced,
    TryRedaction,
)
from shoal.raising import why
from shoal.records import NamedTuple
from shoal.storage.keys import Kind

AT_ONCE_BYTES = 64 * 1024  # Of a request that is looked through on the loop; a larger one is, in a thread.
APART_S_MAX = 2 * patterns.REDACTION_S_MAX  # Until a thread is free, and has looked through a request.
DOCUMENT_BYTES_MAX = 1024 * 1024  # Of a document that is edited in a space with rules, as its engine holds it.

_RECORDS = Target(Kind.MAP, RESERVED, rules.RULES)
_ENGINES_MAX = 64  # Of them that are kept compiled.
_KNOWN_MAX = 4096  # Spaces whose rules are remembered.
_SEVERAL = frozenset({requests.Batch, requests.Import, requests.Fenced})
_CONCERNED = fields.CONCERNED | _SEVERAL


class Seen(NamedTuple):
    """A write of which something was replaced."""

    asked: Any  # As it was asked: of `Fenced`, the write in it.
    replaced: list[Replaced]


_under_way: ContextVar[Seen | None] = ContextVar("redacted", default=None)


def under_way() -> Seen | None:
    """The write of this task, if something of it was replaced."""
    return _under_way.get()


@contextmanager
def noted(seen: Seen) -> Iterator[None]:
    """A context in which this write is made."""
    token = _under_way.set(seen)
    try:
        yield
    finally:
        _under_way.reset(token)


class _Known(NamedTuple):
    """The rules of a space, and what keeps them."""

    rules: Rules
    engine: Engine | None  # None: they cannot be kept, or are not compiled yet.
    trouble: str  # Why they cannot be kept.


class Redactor:
    """`read` answers a read of a map from the rows applied here; `hooks` are those of this node, by name."""

    def __init__(
        self, context: NodeContext, *, read: Callable[[requests.ReadMap, Target], Any], hooks: Mapping[str, Hook]
    ) -> None:
        self._storage = context.storage
        self._partitions = context.partitions
        self._monotonic = context.environment.monotonic
        self._run_apart = context.environment.run_apart
        self._read = read
        self._hooks = hooks
        self._seen: VersionVector | None = None  # The vector at which the rules were read.
        self._known: dict[str, _Known | None] = {}
        self._engines: dict[Rules, Engine] = {}  # Without times. Other writes to the map do not compile them again.
        self.replaced = 0
        """Places in writes that were replaced in this opening."""
        self.refused = 0
        """Writes that were refused for the rules of their space, in this opening."""
        self._failed: dict[str, str] = {}  # By space: why its last write was refused that should have been looked through.
        self.answers: Answers = {ReadRedaction: self._view, TryRedaction: self._try}

    @property
    def failing(self) -> Mapping[str, str]:
        """The spaces with rules of which the last write was refused because a hook failed, or rules cannot be kept: why."""
        return {space: reason for space, reason in self._failed.items() if self.of(space) is not None}

    def _note(self, space: str, reason: str) -> None:
        self._failed[space] = reason
        if len(self._failed) > _KNOWN_MAX:
            del self._failed[next(iter(self._failed))]

    # ── rules ─────────────────────────────────────────────────────────────────

    def of(self, space: str) -> _Known | None:
        """The rules of a space as they are now; None: it has none."""
        vector = self._partitions.load(_RECORDS.partition).vector
        if vector is not self._seen:
            self._seen = vector
            self._known.clear()
        try:
            return self._known[space]
        except KeyError:
            known = None if space == RESERVED else self._found(space)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[space] = known
        return known

    def _found(self, space: str) -> _Known | None:
        try:
            found = self._read(requests.ReadMap(RESERVED, rules.RULES, keys=[rules.key_of(space)]), _RECORDS).entries
        except ShoalError as error:  # The map's rows are damaged.
            return _Known(Rules(space), None, f"they cannot be read: {why(error)}")
        records = [(each.value, each.wall_ms) for entry in found for each in entry.siblings]
        if not records:
            return None
        told = rules.read(space, records)
        if told.trouble:
            return _Known(told, None, told.trouble)
        if told.is_empty:
            return None
        if lacking := [hook for hook in told.hooks if hook not in self._hooks]:
            return _Known(told, None, f"this node has no hook {', '.join(map(repr, lacking))}")
        return _Known(told, self._engines.get(_timeless(told)), "")

    async def _kept(self, space: str) -> _Known | None:
        """As `of`, compiled: others may have set these rules, at another node."""
        while (known := self.of(space)) is not None and known.engine is None and not known.trouble:
            try:
                made = known._replace(engine=await self._run_apart(partial(Engine, known.rules)))
                self._keep(known.rules, made.engine)
            except ShoalError as error:
                made = known._replace(trouble=f"they cannot be kept: {why(error)}")
            if self._known.get(space) is known:  # Else they changed meanwhile.
                self._known[space] = made
        return known

    def _keep(self, told: Rules, engine: Engine | None) -> None:
        if engine is not None:
            if len(self._engines) >= _ENGINES_MAX:
                self._engines.clear()
            self._engines[_timeless(told)] = engine

    # ── writes ────────────────────────────────────────────────────────────────

    def concerns(self, request: Any) -> bool:
        """Whether a request is a write in a space with rules."""
        kind = type(request)
        if kind not in _CONCERNED:
            return False
        if kind in _SEVERAL:
            return any(self.of(space) is not None for space in {write.space for write in _writes_of(request)})
        return self.of(request.space) is not None

    async def redacted(self, request: Any, key: str | None) -> tuple[Any, Seen | None]:
        """A request as it goes on, and what was replaced in it; None: nothing.

        Raises:
            RedactionRefused: something in it cannot be replaced. Nothing was written.
            RedactionFailed: it is not known what is to be replaced. Nothing was written.
        """
        try:
            made, replaced = await self._made(request, key)
        except (RedactionRefused, RedactionFailed):
            self.refused += 1
            raise
        if not replaced:
            return request, None
        self.replaced += sum(each.count for each in replaced)
        return made, Seen(request.write if type(request) is requests.Fenced else request, replaced)

    async def _made(self, request: Any, key: str | None) -> tuple[Any, list[Replaced]]:
        writes = _writes_of(request)
        report: list[Replaced] = []
        made: list[Any] = []
        for place, write in enumerate(writes):
            path = "" if writes[0] is request or _is_one(request) else f"/writes/{place}"
            new, found = await self._one(write, path, key)
            made.append(new)
            report += found
        if not report:
            return request, []
        return _with_writes(request, made), _bounded(report)

    async def _one(self, write: Any, path: str, key: str | None) -> tuple[Any, list[Replaced]]:
        known = await self._kept(write.space)
        if known is None or type(write) not in fields.CONCERNED:
            return write, []
        if known.engine is None:
            self._note(write.space, known.trouble)
            raise RedactionFailed(
                f"the rules of redaction of space {write.space!r} are not kept here: {known.trouble}. Nothing was written. Set "
                "them again (`shoal redaction set`), or ask another node.",
                space=write.space,
            )
        if not known.rules.hooks:
            self._failed.pop(write.space, None)
        look = _Look(known.engine.rewriter(self._monotonic), files=known.rules.files)

        def looked() -> Any:
            fields.check_key(key, look)
            return fields.redacted(write, look, path)

        new = await self._run(write, looked)
        for name in known.rules.hooks:
            asked = await self._asked(self._hooks[name], new, path, key, look)
            new = new if asked is new else await self._run(asked, partial(fields.redacted, asked, look, path))
        return new, look.rewriter.report

    async def _run(self, write: Any, function: Callable[[], Any]) -> Any:
        if _size(write) <= AT_ONCE_BYTES:
            return function()
        try:
            async with asyncio.timeout(APART_S_MAX):
                return await self._run_apart(function)
        except TimeoutError:
            raise RedactionFailed(
                f"looking through the write took more than {APART_S_MAX:g} s. Nothing was written. Write less at once."
            ) from None

    async def _asked(self, hook: Hook, write: Any, path: str, key: str | None, look: _Look) -> Any:
        texts = _Texts(files=look.files)

        def collected() -> None:
            fields.check_key(key, texts)
            fields.redacted(write, texts, path)

        await self._run(write, collected)
        if not texts.found:
            return write
        kind = str(type(write).__struct_config__.tag)
        try:
            answer = await hook.replacements(Writing(write.space, kind, texts.found))
        except RedactionFailed as failure:
            self._note(write.space, failure.message.partition(". Nothing")[0])
            raise
        self._failed.pop(write.space, None)
        changes = {each.nth: each for each in answer if each.text != texts.found[each.nth].text}
        if not changes:
            return write
        putting = _Putting(hook.name, changes, look)

        def put() -> Any:
            fields.check_key(key, putting)
            return fields.redacted(write, putting, path)

        return await self._run(write, put)

    # ── documents ─────────────────────────────────────────────────────────────

    def guard(self, space: str) -> DocumentGuard | None:
        """The guard of the documents of a space; None: it has no rules.

        Raises:
            RedactionFailed: it has, since this write began, and they are not ready. Nothing was written.
        """
        known = self.of(space)
        if known is None:
            return None
        if known.engine is None:
            raise RedactionFailed(
                f"the rules of redaction of space {space!r} changed meanwhile. Nothing was written. Try again.", space=space
            )
        return DocumentGuard(known.engine)

    # ── for people ────────────────────────────────────────────────────────────

    async def _view(self, request: ReadRedaction, _bookmark: Bookmark) -> RedactionRules:
        known = await self._kept(check_name("space", request.space))
        empty = is_empty(self._storage, request.space)
        if known is None:
            return RedactionRules(request.space, replaced=self.replaced, refused=self.refused, is_empty=empty)
        told = known.rules
        shown = [RedactionPattern(*each) for each in told.patterns]
        flags = told.credentials, told.cards, shown, list(told.hooks), told.files, told.wall_ms, told.rivals
        return RedactionRules(request.space, *flags, known.trouble, self.replaced, self.refused, empty)

    async def _try(self, request: TryRedaction, _bookmark: Bookmark) -> RedactionTried:
        space = check_name("space", request.space)
        if request.rules is None:
            known = await self._kept(space)
            if known is not None and known.engine is None:
                raise InvalidInput(f"the rules of space {space!r} are not kept here: {known.trouble}. Nothing was written.")
            engine = Engine(Rules(space)) if known is None or known.engine is None else known.engine
        else:
            if len(request.rules) > rules.TRIED_BYTES_MAX:
                raise TooLarge(
                    f"the rules have {len(request.rules)} bytes, and at most {rules.TRIED_BYTES_MAX} are tried. Nothing was "
                    "written. Try them in parts.",
                    field="rules",
                )
            told = rules.read(space, [(request.rules, 0)])
            if told.trouble:
                raise InvalidInput(f"these are no rules: {told.trouble}. Nothing was written.", field="rules")
            kept = self._engines.get(_timeless(told))
            engine = await self._run_apart(partial(patterns.check, told)) if kept is None else kept
            if lacking := [hook for hook in told.hooks if hook not in self._hooks]:
                raise InvalidInput(
                    f"this node has no hook {', '.join(map(repr, lacking))}. Nothing was written. Name it in the file "
                    "`redaction_hooks` of each node, or give it to shoal.open(…, redact=…).",
                    field="hooks",
                )
            self._keep(told, engine)
        look = engine.rewriter(self._monotonic)
        texts = request.texts

        def tried() -> list[str]:
            made = [look.replaced(text.encode(), partial(str, place)) for place, text in enumerate(texts)]
            return [text if new is None else new.decode() for text, new in zip(texts, made, strict=True)]

        size = sum(map(len, texts))
        made = tried() if size <= AT_ONCE_BYTES else await self._run_apart(tried)
        return RedactionTried(made, look.report)


def _timeless(told: Rules) -> Rules:
    """The rules alone, whenever and beside whichever others they were set."""
    return told._replace(wall_ms=0, rivals=0)


class _Look:
    """The patterns of a space, for one write."""

    def __init__(self, rewriter: Rewriter, *, files: bool) -> None:
        self.rewriter = rewriter
        self.files = files
        self.numbers = rewriter.numbers
        self.hits, self.matches = rewriter.hits, rewriter.matches
        self.replaced, self.replaced_number = rewriter.replaced, rewriter.replaced_number


class _Texts:
    """Collects the texts of a write, for a hook."""

    numbers = False

    def __init__(self, *, files: bool) -> None:
        self.files = files
        self.found: list[Text] = []

    def hits(self, _text: bytes, /) -> bool:
        return True

    def matches(self, _text: bytes, /) -> bool:
        return False

    def replaced(self, text: bytes, path: Callable[[], str], /) -> bytes | None:
        if text:
            self.found.append(Text(path(), text.decode(errors="replace")))
        return None

    def replaced_number(self, _digits: bytes, _path: Callable[[], str], /) -> bytes | None:
        return None


class _Putting:
    """Puts the texts of a hook in the place of those that it was given, which come in the same order again."""

    numbers = False

    def __init__(self, hook: str, changes: Mapping[int, Replacement], look: _Look) -> None:
        self.files = look.files
        self._hook = hook
        self._changes = changes
        self._look = look
        self._nth = -1

    def hits(self, _text: bytes, /) -> bool:
        return True

    def matches(self, _text: bytes, /) -> bool:
        return False

    def replaced(self, text: bytes, path: Callable[[], str], /) -> bytes | None:
        if not text:
            return None
        self._nth += 1
        change = self._changes.get(self._nth)
        if change is None:
            return None
        self._look.rewriter.note(path(), change.rule or self._hook, change.count)
        return change.text.encode()

    def replaced_number(self, _digits: bytes, _path: Callable[[], str], /) -> bytes | None:
        return None


class DocumentGuard:
    """Looks at a document before and after an edit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def counted(self, content: Any, size: int) -> Counter[str]:
        """How often each rule finds something in the content of a document, which is JSON. `size`: its bytes in its engine.

        Raises:
            RedactionRefused: it is too large to be looked through at each edit.
        """
        if size > DOCUMENT_BYTES_MAX:
            raise RedactionRefused(
                f"the document has {size} bytes, and in a space with rules of redaction one of more than {DOCUMENT_BYTES_MAX} "
                "is not edited, because it is looked through at each edit. Nothing was written. Make it smaller."
            )
        found: Counter[str] = Counter()
        for text in _content_texts(content, numbers=self._engine.numbers):
            found += self._engine.counted(text)
        return found

    def check(self, before: Counter[str], after: Counter[str]) -> None:
        """Check what an edit made of a document.

        Raises:
            RedactionRefused: it holds more of what a rule finds than before.
        """
        if more := after - before:
            raise RedactionRefused(
                f"the document would hold what the rules of its space replace ({', '.join(sorted(more))}), put together from "
                "what it holds already. Nothing was written. Take the edit back."
            )


def _content_texts(content: Any, *, numbers: bool) -> Iterator[bytes]:
    """The texts of a document, its keys among them. The parts of a formatted text are one text."""
    left = [content]
    while left:
        part = left.pop()
        if isinstance(part, str):
            yield part.encode(errors="replace")
        elif isinstance(part, dict):
            left += (*part.keys(), *part.values())
        elif isinstance(part, list):
            left += part
            runs = [each["insert"] for each in part if isinstance(each, dict) and isinstance(each.get("insert"), str)]
            if len(runs) > 1:
                left.append("".join(runs))
        elif numbers and isinstance(part, int | float) and not isinstance(part, bool) and abs(part) < 2**64 and part % 1 == 0:
            yield str(int(part)).encode()


def _writes_of(request: Any) -> Sequence[Any]:
    if type(request) is requests.Fenced:
        return _writes_of(request.write)
    if type(request) is requests.Batch:
        return request.writes
    return [each.write for each in request.writes] if type(request) is requests.Import else (request,)


def _is_one(request: Any) -> bool:
    return type(request) is requests.Fenced and type(request.write) not in _SEVERAL


def _with_writes(request: Any, made: list[Any]) -> Any:
    if type(request) is requests.Fenced:
        return structs.replace(request, write=_with_writes(request.write, made))
    if type(request) is requests.Batch:
        return requests.Batch(made)
    if type(request) is not requests.Import:
        return made[0]
    for before, write in zip(request.writes, made, strict=True):
        if before.id and write != before.write:
            raise RedactionRefused(
                "a checkpoint that is imported holds what a rule of the space replaces, and its id says what it holds. Nothing "
                "was written. Import it into a space without these rules, or take the rules away meanwhile.",
                path="/writes",
            )
    return requests.Import([structs.replace(each, write=write) for each, write in zip(request.writes, made, strict=True)])


def _bounded(report: list[Replaced]) -> list[Replaced]:
    """A report of several writes, within the bound of one."""
    if len(report) <= patterns.REPORT_MAX:
        return report
    rest: Counter[str] = Counter()
    for each in report[patterns.REPORT_MAX :]:
        rest[each.rule] += each.count
    return [*report[: patterns.REPORT_MAX], *(Replaced("…", rule, count) for rule, count in rest.items())]


_encoder = msgspec.msgpack.Encoder()


def _size(write: Any) -> int:
    """About the bytes of what a write holds."""
    kind: Any = type(write)
    return sum([_part_size(getattr(write, name)) for name in fields.treatments(kind)])


def _part_size(part: Any) -> int:
    if isinstance(part, bytes | str):
        return len(part)
    if isinstance(part, dict):
        return sum(_part_size(each) for each in part.values())
    if isinstance(part, list):
        return sum(len(each) if isinstance(each, bytes | str) else len(_encoder.encode(each)) for each in part)
    return 0
