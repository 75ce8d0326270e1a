"""Detached Ed25519 signatures of program files, through the ``cryptography`` package (``intact8[sign]``).

The signature lies beside the file, in ``FILE.sig``: a few lines of text, of which the last is the signature of the
lines before it. They say whose program it is, the how manieth, how long the file is, and its SHA-512. So a file cannot
be given in place of another one, or an older in place of a newer, where the reader says what it expects. All of it is
verified before a byte of the program file is parsed.

    intact program file, signature version 2
    name: resnet
    version: 7
    size: 11715840
    sha512: 0f3a...
    signature: 9rVn...
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from intact8.atomic_write import write_atomically
from intact8.errors import ProgramError
from intact8.regular_file import opened, path_of, unwritable

from .integrity import not_signed
from .read import read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

VARIABLE = "INTACT8_PUBLIC_KEY"
"""Environment variable with the path of the public key whose signature every file must have."""

CONTEXT = b"intact program file, signature version 1\n"
"""What was signed in front of the SHA-512 by versions before 0.2.0, whose signature is one line of base64."""

TITLE = "intact program file, signature version 2"
NAMELESS = "the signature is of the first version, which says neither name nor version of what is signed: sign it again"
LARGEST = 4096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", re.ASCII)
FORM = re.compile(
    rf"({TITLE}\nname: ({NAME.pattern})\nversion: (\d{{1,18}})\nsize: (\d{{1,18}})\nsha512: ([0-9a-f]{{128}})\n)"
    r"signature: ([A-Za-z0-9+/]{85}[AQgw]==)\n",
    re.ASCII,
)

_ORDER_8 = (
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
)
SMALL = frozenset(
    [*(n.to_bytes(32, "little") for n in (0, 1, *(2**255 - 19 + i for i in (-1, 0, 1)))), *map(bytes.fromhex, _ORDER_8)]
)
"""Encodings of the points of small order on the curve, the bit of the sign cleared."""


@dataclass(frozen=True)
class Claim:
    """What a verified signature says of a file.

    Attributes:
        path: of the program file.
        name, version: given by the signer; "" and 0 in signatures of the first version, which have none.
        size: bytes of the file; None in signatures of the first version.
        sha512: of the file, hex; "" in signatures of the first version.
        remarks: what should be known about it.
    """

    path: Path
    name: str
    version: int
    size: int | None
    sha512: str
    remarks: tuple[str, ...] = ()
    _old: tuple[Ed25519PublicKey, bytes] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.name} version {self.version}" if self.name else "without a name"

    def verify(self, data: bytes) -> None:
        """Demand that ``data``, the bytes of the file, is what was signed.

        Raises:
            ProgramError: it is not.
        """
        if self._old is not None:
            _demand(self._old[0], self._old[1], CONTEXT + hashlib.sha512(data).digest(), self.path)
        elif hashlib.sha512(data).hexdigest() != self.sha512:
            raise not_signed(self.path, "its checksum is not what was signed")


def signature_path(path: str | Path) -> Path:
    """Where the signature of a file lies.

    Example:
        >>> str(signature_path("a/net.safetensors"))
        'a/net.safetensors.sig'
    """
    path = Path(path)
    return path.with_name(f"{path.name}.sig")


def sign(path: str | Path, private_key: str | Path, name: str | None = None, version: int = 0) -> Path:
    """Write the signature of ``path`` beside it.

    Args:
        path: a program file.
        private_key: file of an unencrypted Ed25519 private key, PEM (``openssl genpkey -algorithm ed25519``).
        name: of what this is: the same for all versions of it, and no other's under this key. The file's name up to
            its first dot when None.
        version: a number to be raised with every release; 0: not counted, which no reader that demands a version takes.

    Returns:
        The path of the signature.

    Raises:
        ProgramError: cryptography is not installed, the key is no such key, the name or version is none that can be
            signed, or a file cannot be read or written.
    """
    path = path_of(path, kind=ProgramError)
    name = path.name.split(".")[0] if name is None else name
    if not NAME.fullmatch(name):
        raise ProgramError(
            f"{name!r:.140} is no name to sign",
            where=str(path),
            why="a name has up to 128 letters, digits and . _ / -, a letter or digit first",
            remedy="give another name",
        )
    if not 0 <= version < 10**18:
        raise ProgramError(f"{version} is no version to sign", where=str(path), remedy="give a number from 1 on")
    key = _private_key(path_of(private_key, "the private key", ProgramError))
    data = read(path)
    text = f"{TITLE}\nname: {name}\nversion: {version}\nsize: {len(data)}\nsha512: {hashlib.sha512(data).hexdigest()}\n"
    text += f"signature: {base64.b64encode(key.sign(text.encode())).decode()}\n"
    target = signature_path(path)
    try:
        write_atomically(target, text.encode())
    except OSError as error:
        raise unwritable(target, "the signature", ProgramError, error) from error
    return target


def claimed(path: str | Path, public_key: str | Path | None, expect: str | None) -> Claim | None:
    """Return what the signature of ``path`` says, verified by the key given or by ``INTACT8_PUBLIC_KEY``; None without
    one.

    The file itself is not read: :meth:`Claim.verify` compares its bytes.

    Raises:
        ProgramError: no signature, a wrong one, not the one expected, no such key, or cryptography is not installed.
    """
    path = path_of(path, kind=ProgramError)
    if public_key is None:
        public_key = os.environ.get(VARIABLE) or None
    if public_key is None:
        if expect is not None:
            raise ProgramError(
                f"{expect!r:.140} is expected, and no key says who may sign it",
                where=str(path),
                remedy=f"give the public key, too: --public-key, public_key= or {VARIABLE}",
            )
        return None
    expected = None if expect is None else _expectation(expect)
    key = _public_key(path_of(public_key, "the public key", ProgramError))
    claim = _claim(path, key, public_key)
    if expected is not None:
        _fits(claim, *expected)
    return claim


def _claim(path: Path, key: Ed25519PublicKey, named: str | Path) -> Claim:
    place = signature_path(path)
    if not os.path.lexists(place):
        raise ProgramError(
            "the file is not signed",
            where=str(path),
            why=f"there is no {place.name}",
            remedy="get its signature, or sign it: intact8 sign FILE --key private.pem --name NAME --version N",
        )
    with opened(place, "the signature", ProgramError) as stream:
        text = stream.read(LARGEST)
    found = FORM.fullmatch(text.decode("latin-1"))
    if found is None:
        return Claim(path, "", 0, None, "", (NAMELESS,), (key, _first_version(text, place)))
    signed, name, version, size, sha512, signature = found.groups()
    _demand(key, base64.b64decode(signature), signed.encode(), path, named)
    return Claim(path, name, int(version), int(size), sha512)


def _first_version(text: bytes, place: Path) -> bytes:
    try:
        signature = base64.b64decode(text.strip(), validate=True)
    except binascii.Error as error:
        raise _unreadable(place) from error
    if len(signature) != 64:
        raise _unreadable(place)
    return signature


def _unreadable(place: Path) -> ProgramError:
    return ProgramError("the signature cannot be read: it is damaged or none", where=str(place), remedy="get it again")


def _demand(key: Ed25519PublicKey, signature: bytes, message: bytes, path: Path, named: str | Path = "given") -> None:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature as error:
        raise ProgramError(
            "the signature does not fit the file",
            where=str(path),
            why=f"file or signature was altered, or signed with another key than {named}",
            remedy="do not use it; get file and signature again from where they come from",
        ) from error


def _expectation(text: str) -> tuple[str, int]:
    """Return ``"resnet@7"`` as name and lowest version; without one 0."""
    found = re.fullmatch(rf"({NAME.pattern})(?:@(\d{{1,18}}))?", text, re.ASCII)
    if found is None:
        raise ProgramError(
            f"{text!r:.140} says nothing that can be expected",
            where="expect",
            remedy="give NAME, or NAME@N for version N or a later one",
        )
    return found[1], int(found[2] or 0)


def _fits(claim: Claim, name: str, least: int) -> None:
    remedy = f"get the file and the signature of {name}{f' version {least} or later' if least else ''}"
    if claim.name != name:
        why = "" if claim.name else "its signature is of the first version, which names nothing; sign it again"
        raise ProgramError(
            f"another program than expected was signed: {claim}, not {name}",
            where=str(claim.path),
            why=why,
            remedy=remedy,
        )
    if claim.version < least:
        raise ProgramError(
            f"an older version than expected was signed: {claim.version}, not {least} or later",
            where=str(claim.path),
            remedy=remedy,
        )


def _missing(error: ImportError) -> ProgramError:
    return ProgramError(
        "signatures need the package cryptography",
        where="signature",
        why=str(error),
        remedy="pip install 'intact8[sign]'",
    )


def _bytes(path: Path) -> bytes:
    with opened(path, "the key", ProgramError) as stream:
        return stream.read(1 << 16)


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise _missing(error) from error
    try:
        key = load_pem_private_key(_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "private", str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", f"it is a {type(key).__name__}")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise _missing(error) from error
    try:
        key = load_pem_public_key(_bytes(path))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "public", str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", f"it is a {type(key).__name__}")
    raw = bytearray(key.public_bytes_raw())
    raw[31] &= 0x7F
    if bytes(raw) in SMALL:
        raise _no_key(path, "public", "it is a point of small order: signatures that fit it can be made by anybody")
    return key


def _no_key(path: Path, kind: str, why: str) -> ProgramError:
    make = "make one: openssl genpkey -algorithm ed25519 -out private.pem; "
    make += "openssl pkey -in private.pem -pubout -out public.pem"
    decrypt = f"write it without a password: openssl pkey -in {path} -out private.pem"
    return ProgramError(
        f"no Ed25519 {kind} key in PEM form",
        where=str(path),
        why=why[:200].rstrip("."),
        remedy=decrypt if "is encrypted" in why else make,
    )
