"""docs/ERRORS.md is what the code says."""

from __future__ import annotations

import pytest

from shoal.errors import BY_CODE
from tests import reference


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.PAGES[name](), "run `python -m tests.reference`"


def test_every_error_is_on_its_page() -> None:
    assert {each.error for each in reference.described()} == set(BY_CODE.values())
