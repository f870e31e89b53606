"""What a bearer may say: authors are bound to tokens, and what it says of others is left out."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest

from shoal.access.bearer import Bearer, Token
from shoal.access.gate import Gate
from shoal.access.grants import Rights, parsed, rule_of
from shoal.access.keys import load
from shoal.config import Config
from shoal.errors import Forbidden, Unauthenticated
from shoal.protocol import requests
from shoal.protocol.requests import Request
from shoal.protocol.requests.families import operations
from tests.access.conftest import Mint

VALUE = msgspec.msgpack.encode(1)
UPDATE = requests.Update("s", "d", b"\0\0", {})


def rights(*allow: str) -> Rights:
    return Rights("ada", [parsed(each) for each in allow])


@pytest.mark.answers("authors-are-bound")
def test_every_field_that_names_an_author_is_bound() -> None:
    named = {
        kind.__name__: set(rule_of(kind).authors + rule_of(kind).hearsay)
        for kind in operations()
        if rule_of(kind).authors or rule_of(kind).hearsay
    }
    said = {"author", "authors", "by"}
    fields = {kind.__name__: set(kind.__struct_fields__) & said for kind in operations() if set(kind.__struct_fields__) & said}
    read = {"History", "ListSummaries", "ReadTimeline", "ReadSpaceAudit"}  # They read what an author wrote.
    assert fields.keys() - named.keys() == read
    assert named == {name: found for name, found in fields.items() if name not in read}


SAYING: list[Any] = [
    lambda by: requests.Save("s", "t", {}, author=by),
    lambda by: requests.Enqueue("s", "t", "inbox", [requests.QueueItem(None, VALUE)], by),
    lambda by: requests.Move("s", "t", "main", "x", by=by),
    lambda by: requests.MoveThread("s", "t", "paused", by=by),
    lambda by: requests.Patch("s", "d", b"[]", by),
    lambda by: requests.Batch([requests.Add("s", "n", 1), requests.Save("s", "t", {}, author=by)]),
    lambda by: requests.Fenced([], requests.Batch([requests.Save("s", "t", {}, author=by)])),
    lambda by: msgspec.structs.replace(UPDATE, authors={7: by}),
]


@pytest.mark.answers("authors-are-bound")
@pytest.mark.parametrize("say", SAYING, ids=range(len(SAYING)))
def test_nobody_writes_under_anothers_name(say: Any) -> None:
    mine = rights("s:write")
    for name in ("ada", ""):
        assert mine.check(say(name)) == say(name)
    with pytest.raises(Forbidden) as caught:
        mine.check(say("bob"))
    assert caught.value.detail["action"] == "impersonate"
    assert "Nothing was written" in caught.value.message
    with pytest.raises(Forbidden):
        rights("s:write", "other:impersonate").check(say("bob"))
    assert rights("s:write,impersonate").check(say("bob")) == say("bob")
    with pytest.raises(Forbidden):
        rights("s:admin").check(say("bob"))


def test_a_mirrors_claims_on_other_authors_are_left_out() -> None:
    said = msgspec.structs.replace(UPDATE, authors={1: "ada", 2: "bob", 3: ""})
    assert rights("s:write").check(said) == msgspec.structs.replace(UPDATE, authors={1: "ada", 3: ""})
    assert rights("s:write").check(requests.Batch([said])).writes[0].authors == {1: "ada", 3: ""}  # type: ignore[attr-defined]
    assert rights("s:write,impersonate").check(said) == said
    beginning = requests.RestoreBeginning("s", "d", b"0" * 32, b"", b"", {}, "bob", 1)
    assert rights("s:write").check(beginning).author == ""  # type: ignore[attr-defined]
    assert rights("s:write,impersonate").check(beginning) == beginning


def test_a_set_of_a_register_gets_the_tokens_author() -> None:
    by = msgspec.structs.replace
    said, swap = requests.Assign("s", "r", b"\x01"), requests.CompareAndSet("s", "r", b"\x01", b"\x02")
    mine = rights("s:write")
    assert mine.check(said) == by(said, by="ada")
    assert mine.check(swap) == by(swap, by="ada")
    assert mine.check(requests.Batch([said])) == requests.Batch([by(said, by="ada")])
    with pytest.raises(Forbidden):
        mine.check(by(said, by="bob"))
    assert rights("s:write,impersonate").check(by(said, by="bob")).by == "bob"  # type: ignore[attr-defined]


def test_a_batch_needs_the_rights_of_all_its_parts() -> None:
    writes: list[Any] = [requests.Add("s", "n", 1), requests.Assign("s", "r", VALUE)]
    with pytest.raises(Forbidden, match="`write` of register"):
        rights("s:append").check(requests.Batch(writes))
    with pytest.raises(Forbidden, match="'other'"):
        rights("s:write").check(requests.Batch([requests.Add("s", "n", 1), requests.Add("other", "n", 1)]))
    with pytest.raises(Forbidden, match="`read` of document"):
        rights("s:counter:read").check(
            requests.MultiRead([requests.ReadCounter("s", "n"), requests.ReadDocumentJson("s", "d")])
        )
    term = requests.Term("other", "l", False, 1, "0" * 32)
    with pytest.raises(Forbidden, match="`write` of lease in the space 'other'"):
        rights("s:write").check(requests.Fenced([term], requests.Add("s", "n", 1)))


def test_an_import_needs_the_right_to_administer() -> None:
    whole = requests.Import([requests.Imported(requests.Append("s", "t", VALUE), 1)])
    with pytest.raises(Forbidden, match="`admin` of thread"):
        rights("s:write").check(whole)
    assert rights("s:admin").check(whole) == whole
    by = requests.Import([requests.Imported(requests.MoveThread("s", "t", "paused", by="bob"))])
    with pytest.raises(Forbidden, match="impersonate"):
        rights("s:admin").check(by)
    assert rights("s:admin,impersonate").check(by) == by


def test_a_watch_needs_the_kinds_that_it_shows() -> None:
    mine = rights("s:counter,map:read")
    watch: list[Request[Any]] = [requests.Watch("s", "counter"), requests.Watch("s", kinds=["counter", "map"])]
    for request in watch:
        assert mine.check(request) is request
    for request in (requests.Watch("s"), requests.Watch("s", "thread"), requests.Watch("s", kinds=["counter", "thread"])):
        with pytest.raises(Forbidden):
            mine.check(request)


def test_cluster_rights_need_a_pattern_for_all_spaces() -> None:
    assert rights("*:cluster:read").check(requests.Status())
    for grant in ("s:admin", "?*:admin", "*:thread:admin", "*:cluster:write"):
        with pytest.raises(Forbidden, match="of the cluster"):
            rights(grant).check(requests.Status())


# ── the token's end ───────────────────────────────────────────────────────────


def test_each_request_of_a_token_that_ended_is_refused() -> None:
    now_s = 0.0
    token = Token("id", "ada", "shoal", "shoal", "key", 0.0, 10.0, [parsed("s:read")])
    bearer = Bearer(token, now_s=lambda: now_s, entropy=os.urandom)
    read = requests.ReadCounter("s", "n")
    assert bearer.check(read) == read
    now_s = 10.0
    with pytest.raises(Unauthenticated, match="has expired"):
        bearer.check(read)
    now_s = 0.0
    bearer.end("revoked")
    with pytest.raises(Unauthenticated, match="is revoked"):
        bearer.check(read)


def test_a_bearer_keeps_no_text_of_a_token(mint: Mint) -> None:
    made = mint.make("s:read")
    gate = Gate({"shoal": load(mint.keys, cluster="shoal")}, config=Config(), now_s=time.time, entropy=os.urandom)
    bearer = gate.bearer(made.text, address="10.0.0.1")
    kept = [*vars(bearer).values(), *vars(gate).values(), *bearer.token]
    assert made.text not in repr(kept)
    assert made.text.rpartition(".")[2] not in repr(kept)
