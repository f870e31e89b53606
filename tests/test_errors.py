"""The error tree: each class has its own code, and crosses the wire as itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from contextlib import suppress
from pathlib import Path

import pytest

import shoal
from shoal import errors
from shoal.errors import BY_CODE, ShoalError, from_wire

CLASSES = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, ShoalError)]


def ids(error: type[ShoalError]) -> str:
    return error.__name__


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [error.code for error in CLASSES]
    assert sorted(codes) == sorted(set(codes))
    assert all("code" in vars(error) for error in CLASSES)


def test_every_class_is_found_by_its_code() -> None:
    assert {error.code: error for error in CLASSES} == BY_CODE


@pytest.mark.parametrize("error", CLASSES, ids=ids)
def test_an_error_crosses_the_wire_as_itself(error: type[ShoalError]) -> None:
    sent = error("what happened. What to do.", retry_after_s=1.5, heads=["a"])
    got = from_wire(sent.code, sent.message, sent.detail, sent.written)
    assert type(got) is error
    assert (str(got), got.message, got.detail, got.written) == (str(sent), sent.message, sent.detail, sent.written)


@pytest.mark.parametrize("written", ["no", "yes", "unknown"])
def test_whether_anything_was_written_crosses_the_wire(written: str) -> None:
    assert from_wire("conflict", "m", {}, written).written == written


def test_a_code_of_a_newer_version_becomes_the_root() -> None:
    got = from_wire("from-the-future", "m", {"why": "x"}, "yes")
    assert (type(got), got.message, got.detail, got.written) == (ShoalError, "m", {"why": "x"}, "yes")


def test_a_code_of_a_newer_version_that_says_so_can_be_retried() -> None:
    got = from_wire("from-the-future", "m", {}, "no", retryable=True)
    assert (type(got), got.retryable) == (errors.Retryable, True)


@pytest.mark.parametrize("error", CLASSES, ids=ids)
def test_an_error_is_retryable_if_and_only_if_it_is_caught_as_such(error: type[ShoalError]) -> None:
    assert error.retryable is issubclass(error, errors.Retryable)
    assert error is errors.Retryable or "retryable" not in vars(error) or error is ShoalError


def test_errors_that_the_caller_must_mend_are_not_retryable() -> None:
    for base in (errors.InvalidInput, errors.NotFound, errors.Conflict, errors.StorageError):
        assert not any(error.retryable for error in CLASSES if issubclass(error, base))


def _everywhere(error: type[ShoalError]) -> set[type[ShoalError]]:
    return {error}.union(*map(_everywhere, error.__subclasses__()))


def test_no_error_is_of_a_private_class() -> None:
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        with suppress(ImportError):  # Of a framework that is not installed.
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    document = (Path(__file__).parents[1] / "docs" / "ERRORS.md").read_text()
    shoals = {error for error in _everywhere(ShoalError) if error.__module__.partition(".")[0] == "shoal"}
    assert len(shoals) > len(CLASSES)  # Those that leave over HTTP alone are documented by their codes.
    for error in shoals - set(CLASSES):
        assert not error.__name__.startswith("_")
        assert error.__module__ in ("shoal.api.http.problems", "shoal.workflows.streams.decisions")
        assert f"| `{error.code}` | {error.status} |" in document, error


def test_an_unknown_word_for_written_leaves_the_default_of_the_class() -> None:
    assert from_wire("outcome-unknown", "m", {}, "perhaps").written == "unknown"


def test_one_error_does_not_change_what_others_of_its_class_say() -> None:
    from_wire("conflict", "m", {}, "yes")
    assert errors.Conflict("m").written == "no"


@pytest.mark.parametrize("error", CLASSES, ids=ids)
def test_a_status_is_an_error_of_http(error: type[ShoalError]) -> None:
    assert 400 <= error.status <= 599


def test_errors_after_a_write_may_have_happened_say_so() -> None:
    maybe = {errors.OutcomeUnknown, errors.StorageFull, errors.KeyExpired}
    assert {error for error in CLASSES if error.written != "no"} == {*maybe, errors.DeletedMeanwhile}


def drawn() -> dict[str, int]:
    """Class → depth, as the module's docstring draws the tree: after a colon come the classes below, over several lines."""
    depths: dict[str, int] = {}
    tree = (errors.__doc__ or "").partition("    ShoalError\n")[2]
    for line in re.sub(r",\n *│ {4,}", ", ", tree).splitlines():
        branch, _, names = line.partition("─ ")
        here, colon, below = names.partition(": ")
        depths |= dict.fromkeys(here.split(", "), len(branch) // 4)
        depths |= dict.fromkeys(below.split(", ") if colon else (), len(branch) // 4 + 1)
    return depths


def test_the_tree_in_the_docstring_lists_every_class_at_its_depth() -> None:
    depths = {error.__name__: len(error.__mro__) - len(ShoalError.__mro__) for error in CLASSES if error is not ShoalError}
    assert drawn() == depths
