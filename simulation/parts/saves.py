"""Saves whose content is known: what every checkpoint must show, by the number that is in it.

Law: a model of each save is made before it is sent, from the model of what it builds
on, whether the whole state is sent or what changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from random import Random
from typing import Any, NamedTuple

from shoal.errors import HeadMoved, NotFound, ShoalError
from shoal.kinds.thread.flows.checkpoints import Checkpoint
from shoal.kinds.thread.handle.saves import OnConflict
from shoal.protocol.requests import NO_HEAD, Durability, Save
from simulation.parts.part import Bench, Told
from simulation.plan import Act

State = Mapping[str, Any]

NUMBER, LOG, NOTES, EXTRA = "number", "log", "notes", "extra"
NOTES_MAX = 200  # Of about 60 bytes: enough to be cut into chunks.


class At(NamedTuple):
    """A checkpoint, and the number that it shows."""

    id: str
    number: int


class Saved(NamedTuple):
    at: At
    branch: str
    session: str
    begun_s: float
    told: Told


class Change(NamedTuple):
    """What a save changes; `whole`: it sends all of `after` instead."""

    after: State
    whole: bool
    channels: State
    append: Mapping[str, list[Any]]
    remove: list[str]


class Books:
    """Of all agents. `states` are by number; `saved` and `refused` are by thread. `note_bits`: how much a note says."""

    def __init__(self, *, note_bits: int = 128) -> None:
        self._note_bits = note_bits
        self.states: dict[int, State] = {}
        self.saved: dict[str, list[Saved]] = {}
        self.refused: dict[str, set[int]] = {}
        self.sessions = count(1)
        self._numbers = count(1)

    def draft(self, before: State, random: Random) -> tuple[int, Change]:
        """A save on `before`, under a number of its own."""
        number = next(self._numbers)
        note = [
            f"note {number}.{nth}: {random.getrandbits(self._note_bits):032x} was seen"
            for nth in range(random.choice((0, 1, 40)))
        ]
        way = random.random()
        if not before or way < 0.3:
            kept = [] if way < 0.1 else list(before.get(NOTES, []))
            if number % 5 == 4:  # A change at the front leaves most chunks as they are.
                kept[:1] = [f"note of {number} instead"]
            after = {NUMBER: number, LOG: [*before.get(LOG, []), number], NOTES: [*kept, *note][-NOTES_MAX:]}
            change = Change(after, True, {}, {}, [])
        else:
            channels: dict[str, Any] = {NUMBER: number} | ({EXTRA: f"{number} " * 300} if way < 0.5 else {})
            remove = [EXTRA] if EXTRA in before and way > 0.8 else []
            added = {LOG: [*before[LOG], number], NOTES: [*before[NOTES], *note]}
            after = {name: value for name, value in {**before, **channels, **added}.items() if name not in remove}
            change = Change(after, False, channels, {LOG: [number], NOTES: note}, remove)
        self.states[number] = change.after
        return number, change

    def shows(self, state: State, *, asked: list[str] | None = None) -> bool:
        """Whether it is what was saved under its number."""
        known = self.states.get(state.get(NUMBER, 0))
        return known is not None and state == (known if asked is None else {name: known[name] for name in asked})


class Author:
    """One agent's work on the branches of one thread."""

    def __init__(self, books: Books, bench: Bench) -> None:
        self.thread = bench.space.thread(bench.name)
        self.session = f"{bench.client.name}/{next(books.sessions)}"  # Another one after it let go of what it had seen.
        self.at: dict[str, At] = {}  # By branch: what it loaded or saved last.
        self._books = books
        self._bench = bench

    async def load(self, branch: str, *, channels: list[str] | None = None) -> At | None:
        """What a branch's winner shows, which is what was saved; None: there is no such branch.

        Raises:
            ShoalError: it cannot be read.
        """
        try:
            found = await self.thread.load(branch=branch, channels=channels)
        except NotFound:
            self.at.pop(branch, None)
            return None
        except ShoalError as error:
            self._bench.refused(error)
            raise
        self.check(found.state, found.id, asked=channels)
        self.at[branch] = At(found.id, found.state.get(NUMBER, 0))
        return self.at[branch]

    def check(self, state: State, id: str, *, asked: list[str] | None = None) -> None:
        number = state.get(NUMBER, 0)
        if not self._books.shows(state, asked=asked):
            self._bench.violated("10", f"checkpoint {id[:16]} shows {number}, and not as it was saved")
        elif number in self._books.refused.get(self._bench.name, ()):
            self._bench.violated("13", f"checkpoint {id[:16]} is save {number}, which was refused with nothing written")

    async def save(
        self,
        act: Act,
        random: Random,
        branch: str,
        now: Callable[[], float],
        *,
        builds_on: Callable[[str], None] = lambda id: None,
    ) -> At | None:
        """Save on what this agent saw last of a branch, which `builds_on` is told, in whichever way; None: it was refused.

        Raises:
            ShoalError: as the request, but for a refusal.
        """
        base = self.at.get(branch) or await self.load(branch)
        parent = NO_HEAD if base is None else base.id
        if base is not None:
            builds_on(base.id)
        number, change = self._books.draft({} if base is None else self._books.states.get(base.number, {}), random)
        on_conflict: OnConflict = "fork" if random.random() < 0.4 else "refuse"
        begun_s = now()
        made: list[tuple[Checkpoint, Told]] = []

        async def send() -> None:
            checkpoint = await self._sent(change, branch, parent, on_conflict, act.durability)
            made.append((checkpoint, self._bench.told(act.durability)))

        try:
            await self._bench.send(act, random, send, of=Save)
        except ShoalError as error:
            self.at.pop(branch, None)
            self._bench.did(f"not save {number} on {parent[:8]} of {branch}: {error.code},")
            if error.written == "no" and not act.repeat:
                self._books.refused.setdefault(self._bench.name, set()).add(number)
            if not isinstance(error, HeadMoved | NotFound):
                self._bench.refused(error)
                raise
            return None
        checkpoint, told = made[0]
        self.at[branch] = At(checkpoint.id, number)
        saved = Saved(self.at[branch], branch, self.session, begun_s, told)
        self._books.saved.setdefault(self._bench.name, []).append(saved)
        self._bench.did(f"save {number}, {saved.at.id[:8]} on {parent[:8]} of {branch},")
        return saved.at

    def _sent(
        self, change: Change, branch: str, parent: str, on_conflict: OnConflict, durability: Durability
    ) -> Awaitable[Checkpoint]:
        if change.whole:
            return self.thread.save(change.after, branch=branch, parent=parent, on_conflict=on_conflict, durability=durability)
        return self.thread.update(
            change.channels,
            append=change.append,
            remove=change.remove,
            branch=branch,
            parent=parent,
            on_conflict=on_conflict,
            durability=durability,
        )
