"""The handshake of two nodes: their identities, the proof that they share a key, and whether they can work together.

Nothing here awaits, draws randomness or owns a socket: nonces are arguments, and
messages to send are returned. Laws:

- There are four messages, each within `HANDSHAKE_BYTES_MAX`: the dialler's hello, the
  acceptor's welcome with its proof, the dialler's proof, and "accepted". A refusal may
  take the place of any answer, and is the last message.
- A proof is an HMAC under the cluster's key of the prover's role and of both
  hellos, byte for byte. Each hello holds a nonce: no proof is valid twice. A side
  believes nothing in the other's hello until it has checked the other's proof.
- A side proves one key, and takes proofs of that one and of those that are accepted beside it: a cluster's key is changed
  while its nodes have different ones (`shoal.transport.keyring`).
- If a side refuses, both know: it raises here, and `refusal` tells the other.
  A refusal itself is not proven: it is shown to people, and nothing is decided by it.
- For any bytes, a side continues or raises a ShoalError.
- The tag and the version of a hello keep their place in every version.
- A node that speaks a newer version than the other decides whether they can work together: only it knows both.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Annotated, NoReturn, TypeVar

import msgspec
from msgspec import Meta, Struct

from shoal.cluster.peering import Identity
from shoal.errors import InvalidValue, PeerRefused, ShoalError, from_wire
from shoal.records import NamedTuple

PEER_PROTOCOL = 7
"""The newest version spoken here. Two nodes speak the older one of their newest versions."""

PEER_PROTOCOL_OLDEST = 6
"""The oldest version spoken here: the last release's, so that the nodes of a cluster can be upgraded one after another."""

HANDSHAKE_BYTES_MAX = 16 * 1024
NONCE_BYTES = 32
NAME_CHARS_MAX = 100  # Of a peer's name, in texts for people.
OPENING_BYTES = 16
ORIGINALS_MAX = 64
"""The directories of which a node says that its own is a copy: the latest."""

_HELLO_BYTES_MAX = HANDSHAKE_BYTES_MAX - 256  # A welcome has a proof beside it.
_REASON_CHARS_MAX = 500
_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Side(NamedTuple):
    """The facts that a node brings to a handshake."""

    identity: Identity
    cluster: str
    key: bytes  # Empty: no key is required, and none is proven.
    engine: str  # The version of pycrdt.
    also: tuple[bytes, ...] = ()  # Keys that a peer may prove instead; none is empty.


# ── messages ──────────────────────────────────────────────────────────────────


class PeerHello(Struct, array_like=True, frozen=True, tag="peer-hello"):
    """The first message of each side: who it is, and with which software."""

    protocol: int
    cluster: str
    node: _Id
    opening: _Id
    name: str
    software: str
    engine: str
    nonce: _Nonce
    members: tuple[str, ...] = ()
    epoch: int = 0  # Of its list of members.
    originals: Annotated[tuple[_Id, ...], Meta(max_length=ORIGINALS_MAX)] = ()  # Of which its directory is a copy.

    @property
    def identity(self) -> Identity:
        """The sender. It is to be believed only after its proof was checked."""
        protocol = 0 if self.protocol == PEER_PROTOCOL else self.protocol
        return Identity(self.node, self.name, self.software, self.members, self.opening, self.epoch, protocol, self.originals)


class PeerWelcome(Struct, array_like=True, frozen=True, tag="peer-welcome"):
    """The acceptor's answer to a hello."""

    hello: bytes  # The acceptor's own, packed. The proof is over these bytes, so it holds for fields of later versions too.
    proof: bytes


class PeerProof(Struct, array_like=True, frozen=True, tag="peer-proof"):
    """The dialler's proof."""

    proof: bytes


class PeerAccepted(Struct, array_like=True, frozen=True, tag="peer-accepted"):
    """The acceptor's last message: the link may be used."""


class PeerRefusal(Struct, array_like=True, frozen=True, tag="peer-refused"):
    """Ends the handshake with a ShoalError. Nothing was written, because nothing was sent yet."""

    code: str
    message: str
    reason: str | None = None


class _AnyHello(Struct, array_like=True, frozen=True, tag="peer-hello"):
    """The beginning of every version's hello."""

    protocol: int


_encoder = msgspec.msgpack.Encoder()
_any_hello = msgspec.msgpack.Decoder(_AnyHello)
_hello = msgspec.msgpack.Decoder(PeerHello)
_welcome: msgspec.msgpack.Decoder[PeerWelcome | PeerRefusal] = msgspec.msgpack.Decoder(PeerWelcome | PeerRefusal)
_proof: msgspec.msgpack.Decoder[PeerProof | PeerRefusal] = msgspec.msgpack.Decoder(PeerProof | PeerRefusal)
_accepted: msgspec.msgpack.Decoder[PeerAccepted | PeerRefusal] = msgspec.msgpack.Decoder(PeerAccepted | PeerRefusal)

_Decoded = TypeVar("_Decoded")
_Answer = TypeVar("_Answer", PeerWelcome, PeerProof, PeerAccepted)
_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError)

ACCEPTED = _encoder.encode(PeerAccepted())
"""The acceptor's last message: after it the dialler sends its messages."""


def refusal(error: ShoalError) -> bytes:
    """The message that tells the other side why it is refused."""
    reason = error.detail.get("reason")
    return _encoder.encode(
        PeerRefusal(error.code, error.message[:_REASON_CHARS_MAX], reason if isinstance(reason, str) else None)
    )


# ── the two sides ─────────────────────────────────────────────────────────────


class _Meeting:
    __slots__ = ("_own", "_side", "itself", "peer", "proven_key", "told")

    def __init__(self, side: Side, *, nonce: bytes) -> None:
        self._side = side
        self._own = _packed(side, nonce=nonce)
        self.peer: Identity | None = None
        """The other side, as its hello says; to be believed only after its proof was checked."""
        self.proven_key = b""
        """The key that the other side proved, once it has."""
        self.told = False
        """True once the other side refused: it need not be told."""
        self.itself = False
        """True once it is proven that the other side is this very node."""

    def _meet(self, packed: bytes) -> PeerHello:
        hello = _decode_hello(packed)
        self.peer = hello.identity
        return hello

    def _answer(self, decoder: msgspec.msgpack.Decoder[_Answer | PeerRefusal], message: bytes, what: str) -> _Answer:
        answer = _decoded(decoder, message, what)
        if isinstance(answer, PeerRefusal):
            self.told = True
            raise from_wire(answer.code, answer.message, {"reason": answer.reason}, "no")
        return answer

    def _check_proof(self, given: bytes, *, role: bytes, dialler: bytes, acceptor: bytes) -> None:
        for key in (self._side.key, *self._side.also):
            if hmac.compare_digest(given, _prove(key, role=role, dialler=dialler, acceptor=acceptor)):
                self.proven_key = key
                return
        self._refuse("key", "they do not hold the same cluster_key")

    def _check_company(self, hello: PeerHello) -> None:
        """Whether these two can work together."""
        if hello.cluster != self._side.cluster:
            self._refuse("cluster", f"one is of the cluster {self._side.cluster!r}, the other of {hello.cluster!r}")
        if _generation(hello.engine) != _generation(self._side.engine):
            self._refuse("engine", f"one has pycrdt {self._side.engine}, the other {hello.engine}; major.minor must agree")

    def _check_distinct(self) -> None:
        assert self.peer is not None
        if self.peer.node != self._side.identity.node:
            return
        self.itself = self.peer.opening == self._side.identity.opening
        if self.itself:
            self._refuse("self", "they are the same node")
        self._refuse("clone", "one's data directory is a copy of the other's; give each node its own")

    def _refuse(self, reason: str, why: str) -> NoReturn:
        ours, theirs = self._side.identity.name, "" if self.peer is None else self.peer.name[:NAME_CHARS_MAX]
        raise PeerRefused(f"{ours} and {theirs} cannot be peers: {why}. Nothing was written.", reason=reason)


class Dialling(_Meeting):
    """The side that dials: send `hello`, then the result of `welcomed`, then wait for `accepted`."""

    __slots__ = ()

    @property
    def hello(self) -> bytes:
        """The first message to send."""
        return self._own

    def welcomed(self, message: bytes) -> bytes:
        """Check the acceptor's answer, after which `peer` can be believed. Returns this side's proof.

        Raises:
            PeerRefused: by this side, or, with `told` set, by the other.
            InvalidValue: the message is no answer to a hello.
        """
        welcome = self._answer(_welcome, message, "the answer to a hello is neither a welcome nor a refusal")
        hello = self._meet(welcome.hello)
        self._check_proof(welcome.proof, role=_ACCEPTOR, dialler=self._own, acceptor=welcome.hello)
        self._check_company(hello)
        self._check_distinct()
        return _encoder.encode(PeerProof(_prove(self._side.key, role=_DIALLER, dialler=self._own, acceptor=welcome.hello)))

    def accepted(self, message: bytes) -> None:
        """Check the acceptor's last message.

        Raises:
            PeerRefused: by the other side.
            InvalidValue: the message is no answer to a proof.
        """
        self._answer(_accepted, message, "the answer to a proof is neither an acceptance nor a refusal")


class Accepting(_Meeting):
    """The side that was dialled: send the result of `greeted`, then wait for `proven`, then send `ACCEPTED`."""

    __slots__ = ("_theirs",)

    def __init__(self, side: Side, *, nonce: bytes) -> None:
        super().__init__(side, nonce=nonce)
        self._theirs = b""

    def greeted(self, message: bytes) -> bytes:
        """Take the dialler's hello, and return the welcome.

        A node that has dialled itself is welcomed: it recognizes itself from the welcome, which is proven; a refusal is not.

        Raises:
            PeerRefused: another cluster, protocol or engine.
            InvalidValue: the message is no hello.
        """
        hello = self._meet(message)
        self._check_company(hello)
        self._theirs = message
        proof = _prove(self._side.key, role=_ACCEPTOR, dialler=message, acceptor=self._own)
        return _encoder.encode(PeerWelcome(self._own, proof))

    def proven(self, message: bytes) -> Identity:
        """Check the dialler's proof, and return its identity.

        Raises:
            PeerRefused: by this side, or, with `told` set, by the other.
            InvalidValue: the message is no answer to a welcome.
        """
        answer = self._answer(_proof, message, "the answer to a welcome is neither a proof nor a refusal")
        self._check_proof(answer.proof, role=_DIALLER, dialler=self._theirs, acceptor=self._own)
        self._check_distinct()
        assert self.peer is not None
        return self.peer


# ── bytes ─────────────────────────────────────────────────────────────────────

_DIALLER = b"shoal peer dialler"
_ACCEPTOR = b"shoal peer acceptor"


def _prove(key: bytes, *, role: bytes, dialler: bytes, acceptor: bytes) -> bytes:
    """RFC 2104, over the role and the digests of both hellos."""
    if not key:
        return b""
    return hmac.digest(key, role + sha256(dialler).digest() + sha256(acceptor).digest(), "sha256")


def _packed(side: Side, *, nonce: bytes) -> bytes:
    """A hello. If the list of members is too long for it, it is left out, and so not compared."""
    node, name, software, members, opening, epoch, _, originals, _ = side.identity
    hello = PeerHello(PEER_PROTOCOL, side.cluster, node, opening, name, software, side.engine, nonce, members, epoch, originals)
    packed = _encoder.encode(hello)
    return packed if len(packed) <= _HELLO_BYTES_MAX else _encoder.encode(msgspec.structs.replace(hello, members=()))


def _decode_hello(packed: bytes) -> PeerHello:
    """The hello in these bytes.

    Raises:
        InvalidValue: they are no hello.
        PeerRefused: it has another version of the protocol.
    """
    version = _decoded(_any_hello, packed, "the first message is no peer's hello").protocol
    strange = PeerRefused(
        f"one node speaks version {PEER_PROTOCOL} of the peer protocol, the other {version}. Nothing was written. Update the "
        "older of the two, one release at a time.",
        reason="protocol",
    )
    if version < PEER_PROTOCOL_OLDEST:
        raise strange
    try:
        return _decoded(_hello, packed, "the peer's hello is malformed")
    except InvalidValue:
        if version > PEER_PROTOCOL:
            raise strange from None
        raise


def _decoded(decoder: msgspec.msgpack.Decoder[_Decoded], message: bytes, what: str) -> _Decoded:
    if len(message) > HANDSHAKE_BYTES_MAX:
        raise InvalidValue(f"{what}: it has {len(message)} bytes of at most {HANDSHAKE_BYTES_MAX}. Nothing was written.")
    try:
        return decoder.decode(message)
    except _UNDECODABLE as reason:
        raise InvalidValue(f"{what}: {reason}. Nothing was written.") from None


def _generation(engine: str) -> list[str]:
    """Major and minor version, within which pycrdt's wire format stays the same."""
    return engine.split(".")[:2]
