"""Pages: documents that several begin at once, alike or not, while others edit them already.

Laws:
- A page shows one of its beginnings, whole and once, or none of them (10), and the same one on every node (4);
  none that was acknowledged, and that is owed, would count before it (3).
- An edit that was acknowledged is there, whichever beginning counts (3), and nothing is that nobody wrote (10). Every third
  note is an element of XML, and is there no more often than it was put (10): others' edits leave it where it is. Nor
  is that of a patch which went to several nodes.
- A mirror that is kept shows no more of beginnings than a node does (10).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pycrdt

from shoal.errors import NotFound, ShoalError
from shoal.kinds.document.handle.document import Document
from shoal.kinds.document.state import editing, genesis
from shoal.kinds.document.state.live import EMPTY
from shoal.protocol import requests
from shoal.protocol.requests import Begin, Patch, R, Update
from shoal.protocol.session import Session
from simulation.judging.obligations import Losses
from simulation.judging.violation import Violation
from simulation.parts.compacting import compact
from simulation.parts.part import Bench, Deeds, Told
from simulation.plan import Act, ActKind
from simulation.workload.random_agents import SPACE

_NOTES = "notes"  # The root that is edited: a map wherever it is one of a beginning's.
_NOTE = "note-"
_BODY = "body"  # The root of XML, in no beginning.
_XML_EVERY = 3

BEGINNINGS: tuple[dict[str, Any], ...] = (
    {"title": "one", "tasks": [10, 11], _NOTES: {"by": 1}},
    {"title": "two", "tasks": [20], _NOTES: {"by": 2, "two": [2]}},
    {"title": "three", _NOTES: {"three": {"by": 3}}},
    {"title": ["four"], "tasks": {"four": 4}},  # As other kinds.
)


def _digest(content: dict[str, Any]) -> bytes:
    return genesis.begin(editing.read_content(json.dumps(content).encode()), 0).digest


_DIGESTS = [_digest(content) for content in BEGINNINGS]


@dataclass(slots=True)
class Page:
    """An outcome that is not known is None."""

    begun: list[tuple[int, Told | None]] = field(default_factory=list)  # With which beginning.
    wrote: dict[int, Told | None] = field(default_factory=dict)
    put: Counter[int] = field(default_factory=Counter)  # How often, of those in XML.
    again: set[int] = field(default_factory=set)  # Those put by a patch that may have reached several nodes.
    mirrors: list[Document] = field(default_factory=list)
    shown: dict[str, Any] | None = None  # By the first node that was asked in the end.


class Pages:
    """All by name; what is written in a note is written once."""

    kinds: tuple[ActKind, ...] = ("begin-page", "edit-page", "read-page", "compact-page")

    def __init__(self) -> None:
        self.pages: defaultdict[str, Page] = defaultdict(Page)
        self.numbers = count(1)

    def deeds(self, bench: Bench) -> Deeds:
        agent = _Agent(self, bench)
        return {
            "begin-page": agent.begin,
            "edit-page": agent.edit,
            "read-page": agent.read,
            "compact-page": partial(compact, bench),
        }

    def erased(self, losses: Losses) -> Collection[bytes]:
        return ()

    async def broken(self, session: Session, losses: Losses) -> list[Violation]:
        found: list[Violation] = []
        for name, page in sorted(self.pages.items()):
            shown = await _shown(session, name)
            found += [Violation(invariant, f"page {name} {what}") for invariant, what in _broken(page, shown, losses)]
            page.shown = shown if page.shown is None else page.shown
        return found


def _broken(page: Page, shown: dict[str, Any], losses: Losses) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    beginning, notes = _split(shown)
    owed = [which for which, told in page.begun if told is not None and told.is_owed(losses)]
    begun = {which for which, _ in page.begun if BEGINNINGS[which] == beginning}
    if beginning and not begun:
        found.append(("10", f"shows what is none of its beginnings: {beginning}"))
    elif any(not begun or _DIGESTS[which] < min(_DIGESTS[each] for each in begun) for which in owed):
        found.append(("3", f"was begun with {sorted(set(owed))}, and shows {sorted(begun)}"))
    if not page.wrote.keys() >= notes:
        found.append(("10", f"shows notes that nobody wrote: {sorted(notes - page.wrote.keys())}"))
    lost = sorted(number for number, told in page.wrote.items() if told and told.is_owed(losses) and number not in notes)
    if lost:
        found.append(("3", f"has lost the notes {lost}"))
    often = sorted(number for number, times in _elements(shown).items() if times > page.put[number])
    if losses.of_disks and page.mirrors:
        # A mirror brings back what it has seen of one attempt, as nobody's, if the node that made it lost its disk.
        often = [number for number in often if number not in page.again]
    if often:
        found.append(("10", f"shows notes more often than they were put: {often}"))
    if page.shown is not None and page.shown != shown:
        found.append(("4", f"shows {shown}, and on another node {page.shown}"))
    for mirror in page.mirrors:
        mirrored, _ = _split(mirror.to_py())
        if mirrored and mirrored not in BEGINNINGS:
            found.append(("10", f"has a mirror that shows what is none of its beginnings: {mirrored}"))
    return found


class _Agent:
    def __init__(self, pages: Pages, bench: Bench) -> None:
        self._page = pages.pages[bench.name]
        self._numbers = pages.numbers
        self._bench = bench
        self._mirror: Document | None = None

    async def begin(self, act: Act, random: Random) -> None:
        which = random.randrange(len(BEGINNINGS))
        self._page.begun.append((which, None))
        created = False
        told: Told | None = None

        async def send() -> None:
            nonlocal created, told
            begun = await self._write(Begin(SPACE, self._bench.name, json.dumps(BEGINNINGS[which]).encode()), act)
            created, told = begun.created, self._bench.told(act.durability)

        try:
            await self._bench.send(act, random, send, of=Begin)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        if created:
            self._page.begun.append((which, told))
        self._bench.did(f"begin with {which}" if created else "find it begun")

    async def edit(self, act: Act, random: Random) -> None:
        """By a patch, or in a mirror that is kept."""
        number = next(self._numbers)
        self._page.wrote[number] = None
        mirrored = random.random() < 0.5

        told: Told | None = None

        async def send() -> None:
            nonlocal told
            await (self._edit_mirror(number) if mirrored else self._patch(number, act))
            told = self._bench.told(None if mirrored else act.durability)

        once = False
        try:
            once = await self._bench.send(act, random, send, of=Update if mirrored else Patch)
        except ShoalError as error:
            self._bench.refused(error)
            raise
        finally:
            if not once and not mirrored:
                self._page.again.add(number)
        self._page.wrote[number] = told
        self._bench.did(f"note {number}{' in a mirror' if mirrored else ''}")

    async def _edit_mirror(self, number: int) -> None:
        if self._mirror is None:
            self._mirror = await self._bench.space.document(self._bench.name)
            self._page.mirrors.append(self._mirror)
        if number % _XML_EVERY:
            self._mirror.map(_NOTES)[f"{_NOTE}{number}"] = number
        elif number not in _elements(self._mirror.to_py()):
            self._page.put[number] += 1
            self._mirror.xml(_BODY).children.append(pycrdt.XmlElement("note", {"n": str(number)}))
        await self._mirror.flush()

    async def _patch(self, number: int, act: Act) -> None:
        root: dict[str, requests.RootKind] = {_NOTES: "map"} if number % _XML_EVERY else {_BODY: "xml"}
        entry: dict[str, Any] = {"op": "add", "path": f"/{_NOTES}/{_NOTE}{number}", "value": number}
        if number % _XML_EVERY == 0:
            self._page.put[number] += 1
            entry = {"op": "add", "path": f"/{_BODY}/-", "value": {"tag": "note", "attributes": {"n": str(number)}}}
        patch = Patch(SPACE, self._bench.name, json.dumps([entry]).encode())
        key = self._bench.client.new_key()  # One for both attempts: the first may be sent again once there is a root.
        try:
            await self._write(patch, act, key)
        except ShoalError as error:
            if "no root" not in error.message:
                raise
            self._page.put[number] += act.repeat  # If the refused request arrives again, the root is there.
            await self._write(Update(SPACE, self._bench.name, EMPTY, root), act)
            await self._write(patch, act, key)

    async def read(self, act: Act, random: Random) -> None:
        try:
            _, notes = _split(await _shown(self._bench.client.session, self._bench.name))
        except ShoalError as error:
            self._bench.refused(error)
            raise
        unknown = notes - self._page.wrote.keys()
        if unknown:
            self._bench.violated("10", f"shows notes that nobody wrote: {sorted(unknown)}")

    async def _write(self, request: requests.Write[R], act: Act, key: str | None = None) -> R:
        return await self._bench.space._connection.write(request, key=key, durability=act.durability)


async def _shown(session: Session, name: str) -> dict[str, Any]:
    try:
        shown = await session.call(requests.ReadDocumentJson(SPACE, name))
    except NotFound:
        return {}
    assert isinstance(shown, requests.DocumentJson)
    content: dict[str, Any] = json.loads(shown.json)
    return content


def _split(shown: dict[str, Any]) -> tuple[dict[str, Any], set[int]]:
    """What a beginning brought, without the roots that are empty; and the notes."""
    notes = {key: value for key, value in shown.get(_NOTES, {}).items() if key.startswith(_NOTE)}
    rest = {key: value for key, value in shown.get(_NOTES, {}).items() if key not in notes}
    begun = {**shown, _NOTES: rest, _BODY: []}
    return {name: value for name, value in begun.items() if value}, {*notes.values(), *_elements(shown)}


def _elements(shown: dict[str, Any]) -> Counter[int]:
    """The notes that are elements of XML, and how often each is there."""
    return Counter(int(node["attributes"]["n"]) for node in shown.get(_BODY, []))
