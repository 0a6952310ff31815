"""Control messages between the processes of a job: one JSON object a datagram, decoded strictly, never pickled.

A message is a frozen dataclass with an ``epoch``; a Codec knows the classes of one channel and turns datagrams into them and
back. Anything that does not match a class exactly is a WireError, which costs the sender its connection and nobody else
anything. File descriptors travel beside the object (SCM_RIGHTS) and are closed when the datagram is refused.

    datagram   {"type": "Hello", "epoch": 3, "rank": 0, "role": "trainer"}
"""

from __future__ import annotations

import array
import collections.abc
import json
import math
import os
import select
import socket
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Protocol

from leto.core.errors import JobError, WireError

MAX_MESSAGE_BYTES = 60 << 10
MAX_DESCRIPTORS = 253
"""SCM_MAX_FD: what the kernel passes in one datagram."""
MAX_EPOCH = (1 << 16) - 1
"""Width of the epoch in a marker word."""

_MAX_INTEGER = 1 << 63
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)

_Decoder = Callable[[Any, str], Any]


class PeerClosed(WireError):
    """The other end of the channel is gone."""


class Message(Protocol):
    """What every message has: the epoch of its sender."""

    @property
    def epoch(self) -> int: ...


class Codec:
    """Encodes and decodes the message classes of one channel. Their names are the type tags, so they must differ.

    Fields may be bool, int (64 bits), float (finite), str, an Enum, a dataclass of such fields, ``X | None``,
    ``tuple[X, ...]``, or ``Mapping[str, Any]`` for a JSON object that the channel only carries.
    """

    def __init__(self, classes: Iterable[type[Any]]) -> None:
        self._decoders: dict[str, _Decoder] = {}
        for cls in classes:
            assert "epoch" in {f.name for f in fields(cls)}, f"{cls.__name__} carries no epoch"
            assert cls.__name__ not in self._decoders, f"two messages are called {cls.__name__}"
            self._decoders[cls.__name__] = _dataclass_decoder(cls)

    def encode(self, message: Message) -> bytes:
        """Raises WireError when the datagram would be too long."""
        assert type(message).__name__ in self._decoders, f"{type(message).__name__} is no message of this channel"
        datagram = json.dumps({"type": type(message).__name__} | _plain(message), separators=(",", ":"), allow_nan=False)
        raw = datagram.encode()
        if len(raw) > MAX_MESSAGE_BYTES:
            raise WireError(f"{type(message).__name__} of {len(raw)} bytes is longer than {MAX_MESSAGE_BYTES}")
        return raw

    def decode(self, datagram: bytes) -> Any:
        """The message of one datagram. Raises WireError that says what is wrong with it."""
        if len(datagram) > MAX_MESSAGE_BYTES:
            raise WireError(f"datagram of {len(datagram)} bytes is longer than {MAX_MESSAGE_BYTES}")
        try:
            raw = json.loads(datagram, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            raise WireError(f"datagram is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise WireError("datagram is not a JSON object")
        tag = raw.pop("type", None)
        decoder = self._decoders.get(tag) if isinstance(tag, str) else None
        if decoder is None:
            raise WireError(f"unknown message type {tag!r:.80}")
        message = decoder(raw, tag)
        if not 0 <= message.epoch <= MAX_EPOCH:
            raise WireError(f"{tag}.epoch: {message.epoch} is not an epoch")
        return message


class Channel:
    """One end of a SOCK_SEQPACKET connection that speaks a codec. Owns the socket."""

    def __init__(self, sock: socket.socket, codec: Codec) -> None:
        sock.settimeout(None)  # deadlines are polls, so that both directions can have their own
        self._socket = sock
        self._codec = codec

    @classmethod
    def connect(cls, path: str, codec: Codec, timeout_s: float) -> Channel:
        """Raises JobError when nobody serves ``path`` within the deadline."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(timeout_s)
            sock.connect(path)
        except OSError as error:
            sock.close()
            raise JobError(f"{path}: cannot connect: {error.strerror or error}") from None
        return cls(sock, codec)

    @classmethod
    def pair(cls, codec: Codec) -> tuple[Channel, Channel]:
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(left, codec), cls(right, codec)

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self, timeout_s: float) -> bool:
        """Whether a message, or the end of the connection, is there or comes in time."""
        return self._poll(select.POLLIN, timeout_s)

    def send(self, message: Message, fds: Sequence[int] = (), timeout_s: float = 0.0) -> None:
        """Send one datagram; ``fds`` are duplicated into the receiver and stay the caller's.

        Raises PeerClosed, or JobError when the peer leaves its queue full until the deadline.
        """
        raw = self._codec.encode(message)
        if len(fds) > MAX_DESCRIPTORS:
            raise WireError(f"{len(fds)} descriptors do not fit one datagram, {MAX_DESCRIPTORS} do")
        if not self._poll(select.POLLOUT, timeout_s):
            raise JobError(f"no room to send {type(message).__name__} within {timeout_s:g} s: the peer does not read")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._socket.sendmsg([raw], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise JobError(f"no room to send {type(message).__name__}: the peer does not read") from None
        except OSError as error:
            raise PeerClosed(f"the peer is gone: {error.strerror}") from None

    def receive(self, timeout_s: float) -> tuple[Any, list[int]]:
        """The next message with its descriptors, which are close-on-exec and the caller's to close.

        Raises JobError at the deadline, PeerClosed at the end of the connection, WireError for a malformed datagram; then no
        descriptor is left open.
        """
        if not self._poll(select.POLLIN, timeout_s):
            raise JobError(f"no message within {timeout_s:g} s")
        datagram, fds = self._receive_raw()
        try:
            return self._codec.decode(datagram), fds
        except WireError:
            close_all(fds)
            raise

    def request(self, message: Message, timeout_s: float) -> tuple[Any, list[int]]:
        """Send, then wait for the one answer. A deadline that passes closes the channel: the late answer must not be
        taken for the next request's."""
        deadline = time.monotonic() + timeout_s
        try:
            self.send(message, timeout_s=timeout_s)
            return self.receive(deadline - time.monotonic())
        except JobError:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def _poll(self, events: int, timeout_s: float) -> bool:
        if self._socket.fileno() < 0:
            raise PeerClosed("the connection is closed")
        poller = select.poll()
        poller.register(self._socket, events)
        return bool(poller.poll(max(timeout_s, 0.0) * 1000))

    def _receive_raw(self) -> tuple[bytes, list[int]]:
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        try:
            datagram, ancillary, result, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES + 1, _ANCILLARY_BYTES, flags)
        except BlockingIOError:
            raise JobError("no message is waiting") from None
        except OSError as error:
            raise PeerClosed(f"the peer is gone: {error.strerror}") from None
        fds = _descriptors(ancillary)
        if not datagram:  # an empty datagram reads like the end: nobody here sends one
            close_all(fds)
            raise PeerClosed("the peer closed the connection")
        if result & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(fds)
            raise WireError(f"datagram is longer than {MAX_MESSAGE_BYTES} bytes or carries too many descriptors")
        return datagram, fds


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key appears twice")
    return unique


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is beyond a double")
    return number


def _plain(value: Any) -> Any:
    """The JSON form of a field."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _decoder(hint: Any) -> _Decoder:
    """The strict decoder of one field type: JSON value and its place in the message -> field value, or WireError."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (a for a in arguments if a is not type(None))
        return _optional_decoder(_decoder(inner))
    if origin is tuple:
        assert arguments[1:] == (Ellipsis,), f"{hint}: only tuple[X, ...] crosses a channel"
        return _tuple_decoder(_decoder(arguments[0]))
    if origin is collections.abc.Mapping:
        return _scalar_decoder(dict, lambda value: True)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_decoder(hint)
    if is_dataclass(hint):
        return _dataclass_decoder(typing.cast(type[Any], hint))
    return _scalar_decoder(hint, _SCALARS[hint])


_SCALARS: Mapping[type[Any], Callable[[Any], bool]] = {
    bool: lambda value: True,
    int: lambda value: -_MAX_INTEGER <= value < _MAX_INTEGER,
    float: lambda value: True,
    str: lambda value: True,
}


def _scalar_decoder(expected: type[Any], valid: Callable[[Any], bool]) -> _Decoder:
    def decode(value: Any, where: str) -> Any:
        if type(value) is not expected or not valid(value):  # exact: a bool is an int to isinstance
            raise WireError(f"{where}: {value!r:.80} is no {expected.__name__}")
        return value

    return decode


def _optional_decoder(inner: _Decoder) -> _Decoder:
    return lambda value, where: None if value is None else inner(value, where)


def _tuple_decoder(inner: _Decoder) -> _Decoder:
    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise WireError(f"{where}: {value!r:.80} is no array")
        return tuple(inner(item, f"{where}[{index}]") for index, item in enumerate(value))

    return decode


def _enum_decoder(cls: type[Enum]) -> _Decoder:
    members = {member.value: member for member in cls}

    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in members:
            raise WireError(f"{where}: {value!r:.80} is none of {', '.join(map(str, members))}")
        return members[value]

    return decode


def _dataclass_decoder(cls: type[Any]) -> _Decoder:
    hints = typing.get_type_hints(cls)
    decoders = {f.name: _decoder(hints[f.name]) for f in fields(cls)}

    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise WireError(f"{where}: {value!r:.80} is no object")
        if value.keys() != decoders.keys():
            odd = sorted(value.keys() ^ decoders.keys())
            raise WireError(f"{where}: missing or unknown keys: {', '.join(odd):.200}")
        return cls(**{name: decoder(value[name], f"{where}.{name}") for name, decoder in decoders.items()})

    return decode
