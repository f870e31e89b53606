"""A request that is defined is one that nodes take: each family's is exported, and in the unions."""

from __future__ import annotations

import importlib
import pkgutil
from typing import get_args

import pytest
from msgspec import Struct

from shoal.protocol import requests
from shoal.protocol.requests.base import Maintenance, ObjectRead, ObjectWrite, Read, Reply, Request, Write

FAMILIES = [
    module.name for module in pkgutil.iter_modules(requests.__path__) if module.name not in ("declared", "families", "unions")
]
STRUCTS = {value for value in vars(requests).values() if isinstance(value, type) and issubclass(value, Struct)}
PUSHED = set(get_args(requests.Push)) | {requests.Refused}
"""Replies that answer no request: they are told to who subscribed, or are part of another."""


def family_of(family: str) -> str:
    return f"shoal.protocol.requests.{family}"


@pytest.mark.parametrize("family", FAMILIES)
def test_all_that_a_family_defines_is_exported(family: str) -> None:
    module = importlib.import_module(family_of(family))
    defined = {value.__name__ for value in vars(module).values() if getattr(value, "__module__", None) == family_of(family)}
    assert defined <= set(module.__all__)
    assert all(getattr(requests, name) is getattr(module, name) for name in module.__all__)


def test_every_request_is_in_the_union() -> None:
    made = {struct for struct in STRUCTS if issubclass(struct, Request)} - {
        Request,
        Read,
        Write,
        ObjectRead,
        ObjectWrite,
        Maintenance,
    }
    assert set(get_args(requests.AnyRequest)) | set(get_args(requests.Subscription)) == made


def test_every_reply_is_in_the_union() -> None:
    made = {struct for struct in STRUCTS if issubclass(struct, Reply)} - {Reply}
    assert set(get_args(requests.AnyReply)) | PUSHED == made


def test_what_answers_writes_and_what_answers_reads_are_told_apart() -> None:
    assert set(get_args(requests.AnyWrite)) & set(get_args(requests.AnyRead)) == set()
    assert set(get_args(requests.BatchWrite)) < set(get_args(requests.AnyWrite))
