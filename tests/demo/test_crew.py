"""What an agent does when its node goes away: it resumes, records the module again, and gives up in the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.demo import crew
from shoal.demo.course import Message, Plan
from shoal.demo.crew import ATTEMPTS_MAX, Crew, Figures, Member
from shoal.errors import Disconnected, InvalidInput, NoQuorum, OutcomeUnknown, ShoalError

WRITING, SAVED = Message("writing", 4, 0, "id", "a", "m.py"), Message("saved", 4, 1, "id", "a")


class Scripted:
    """An agent and its store: each recording, and each answer, is as the script says."""

    number = 4
    checkpoint = "id"

    def __init__(self, *recordings: ShoalError | None, nodes: str = "") -> None:
        self._recordings = list(recordings)
        self._nodes = nodes
        self.position = 0
        self.found = 0  # By the next `resume`.
        self.resumed = 0

    async def record(self, module: str, figures: Figures) -> None:
        failure = self._recordings.pop(0)
        if failure is not None:
            raise failure
        self.position += 1

    async def resume(self) -> None:
        self.resumed += 1
        self.position = max(self.position, self.found)

    async def status(self) -> SimpleNamespace:
        node, self._nodes = (self._nodes[0], self._nodes[1:]) if self._nodes else ("a", "")
        return SimpleNamespace(node=node)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    messages: list[Message] = []
    monkeypatch.setattr(crew, "_say", messages.append)
    monkeypatch.setattr(crew, "ATTEMPT_DELAY_S", 0)
    return messages


async def record(script: Scripted) -> None:
    member = Member(script, script)  # type: ignore[arg-type]
    member._node = "a"
    await member.record("m.py", Figures())


async def test_a_module_that_goes_well_is_saved_and_nothing_else(said: list[Message]) -> None:
    script = Scripted(None)
    await record(script)
    assert said == [WRITING, SAVED]
    assert script.resumed == 0


async def test_an_agent_that_was_taken_to_another_node_resumes_there_before_it_goes_on(said: list[Message]) -> None:
    script = Scripted(None, nodes="bb")
    await record(script)
    assert said == [WRITING, Message("resumed", 4, 1, "id", "b"), Message("saved", 4, 1, "id", "b")]
    assert script.resumed == 1


@pytest.mark.parametrize("error", [Disconnected("x"), OutcomeUnknown("x"), NoQuorum("x")], ids=lambda error: error.code)
async def test_an_agent_whose_call_raised_resumes_and_records_the_module_again(said: list[Message], error: ShoalError) -> None:
    script = Scripted(error, None)
    await record(script)
    assert said == [WRITING, Message("resumed", 4, 0, "id", "a", reason=type(error).__name__), SAVED]


async def test_a_module_that_was_done_though_its_answer_was_lost_is_not_recorded_again(said: list[Message]) -> None:
    script = Scripted(OutcomeUnknown("no answer"), InvalidInput("recorded again"))
    script.found = 1
    await record(script)
    assert said == [WRITING, Message("resumed", 4, 1, "id", "a", reason="OutcomeUnknown"), SAVED]


async def test_an_agent_gives_up_after_so_many_attempts(said: list[Message]) -> None:
    script = Scripted(*[Disconnected("no node")] * ATTEMPTS_MAX)
    with pytest.raises(Disconnected, match="no node"):
        await record(script)


async def test_a_refusal_that_no_repetition_cures_is_raised_at_once(said: list[Message]) -> None:
    script = Scripted(InvalidInput("wrong"))
    with pytest.raises(InvalidInput, match="wrong"):
        await record(script)
    assert script.resumed == 0


async def test_a_crew_that_fails_says_why_and_exits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)

    async def fail(_: Crew, member: Member) -> None:
        raise Disconnected(f"no node for {member.agent.number}")

    monkeypatch.setattr(Crew, "_work", fail)
    await Crew(Plan(str(tmp_path), [], False, 3, 2, [0, 1])).run()
    assert codes == [1]
    assert capsys.readouterr().err == "Disconnected: no node for 0; Disconnected: no node for 1\n"
