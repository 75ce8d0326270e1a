"""Signatures: demanded, verified before the file is parsed, refused when anything is off or another file was signed."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest
from tests.program.build import certified
from typer.testing import CliRunner

from intact8.cli.app import app
from intact8.errors import ProgramError
from intact8.program.file import load, save
from intact8.program.signing import CONTEXT, VARIABLE, sign, signature_path
from intact8.runtime import load as load_for_running

pytest.importorskip("cryptography", reason="signing is an extra")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(certified(), tmp_path / "net.safetensors")


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return make_keys(tmp_path / "keys")


def make_keys(folder: Path) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    folder.mkdir()
    key = Ed25519PrivateKey.generate()
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def test_a_signed_file_loads(path: Path, keys: tuple[Path, Path]) -> None:
    assert sign(path, keys[0]) == signature_path(path)
    assert load_for_running(path, engine="reference", public_key=keys[1]).info.signed
    assert not load_for_running(path, engine="reference").info.signed
    assert load(path, keys[1]).remarks == ()


def test_every_byte_counts(path: Path, keys: tuple[Path, Path]) -> None:
    sign(path, keys[0])
    whole = path.read_bytes()
    for position in (0, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ProgramError, match="signature .* other content.*not what was signed.*sign it again"):
            load(path, keys[1])
    path.write_bytes(whole + b" ")
    with pytest.raises(ProgramError, match="other content.*when it was signed"):
        load(path, keys[1])


def test_every_bit_of_the_signature_counts(path: Path, keys: tuple[Path, Path]) -> None:
    text = sign(path, keys[0], "net", 3).read_bytes()
    for place in range(len(text)):
        signature_path(path).write_bytes(text[:place] + bytes([text[place] ^ 1 << place % 8]) + text[place + 1 :])
        with pytest.raises(ProgramError, match="signature"):
            load(path, keys[1])


def test_another_file_of_the_signer_is_not_this_one(path: Path, keys: tuple[Path, Path]) -> None:
    sign(path, keys[0], "resnet", 7)
    for expect in (None, "resnet", "resnet@7", "resnet@1"):
        load(path, keys[1], expect)
    with pytest.raises(ProgramError, match="another program than expected was signed: resnet version 7, not detector"):
        load(path, keys[1], "detector")
    with pytest.raises(ProgramError, match="an older version than expected was signed: 7, not 8"):
        load(path, keys[1], "resnet@8")
    sign(path, keys[0])
    load(path, keys[1], "net")
    with pytest.raises(ProgramError, match="older version"):
        load(path, keys[1], "net@1")


@pytest.mark.parametrize("expect", ["", "@1", "net@", "net@-1", "net@x", "net>=1", "n t", "net\n"])
def test_expectations_that_say_nothing(path: Path, keys: tuple[Path, Path], expect: str) -> None:
    sign(path, keys[0])
    with pytest.raises(ProgramError, match="says nothing that can be expected"):
        load(path, keys[1], expect)


def test_an_expectation_needs_a_key(path: Path) -> None:
    with pytest.raises(ProgramError, match="no key says who may sign it"):
        load(path, None, "net")


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a b", 1), ("a\nversion: 9", 1), ("n", -1), ("n", 10**18)])
def test_what_cannot_be_signed(path: Path, keys: tuple[Path, Path], name: str, version: int) -> None:
    with pytest.raises(ProgramError, match="to sign"):
        sign(path, keys[0], name, version)


def test_a_signature_of_the_first_version(path: Path, keys: tuple[Path, Path]) -> None:
    """It is verified, with a remark, and fulfils no expectation."""
    import hashlib

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(keys[0].read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    signature = key.sign(CONTEXT + hashlib.sha512(path.read_bytes()).digest())
    signature_path(path).write_bytes(base64.b64encode(signature) + b"\n")
    info = load_for_running(path, engine="reference", public_key=keys[1]).info
    assert info.signed and "first version" in info.remarks[0]
    with pytest.raises(ProgramError, match="names nothing; sign it again"):
        load(path, keys[1], "net")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ProgramError, match="does not fit"):
        load(path, keys[1])


def test_another_key_does_not_count(path: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(path, keys[0])
    with pytest.raises(ProgramError, match="does not fit"):
        load(path, make_keys(tmp_path / "others")[1])


def test_a_key_that_any_signature_fits_does_not_count(path: Path, tmp_path: Path) -> None:
    """Points of small order: known public keys to which everybody has the private one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = b"\x01" + bytes(31)
    key = Ed25519PublicKey.from_public_bytes(raw).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "low.pem").write_bytes(key)
    signature_path(path).write_bytes(base64.b64encode(raw + bytes(32)))
    with pytest.raises(ProgramError, match="small order"):
        load(path, tmp_path / "low.pem")


@pytest.mark.parametrize("content", [None, b"", b"not base64!", b"AAAA", b"A" * 4096], ids=lambda v: str(v)[:16])
def test_a_signature_that_is_none(path: Path, keys: tuple[Path, Path], content: bytes | None) -> None:
    if content is not None:
        signature_path(path).write_bytes(content)
    with pytest.raises(ProgramError, match="signature|not signed"):
        load(path, keys[1])


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
@pytest.mark.parametrize("role", ["signature", "key"])
def test_what_is_no_file(path: Path, keys: tuple[Path, Path], what: str, role: str) -> None:
    sign(path, keys[0])
    place = signature_path(path) if role == "signature" else keys[1]
    place.unlink()
    if what == "pipe":
        os.mkfifo(place)
    elif what == "device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    with pytest.raises(ProgramError, match=f"cannot read the {role}"):
        load(path, keys[1])


def test_keys_that_are_none(path: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot read the key"):
        sign(path, tmp_path / "absent.pem")
    with pytest.raises(ProgramError, match="no Ed25519 private key.*make one"):
        sign(path, keys[1])
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key, locked = load_pem_private_key(keys[0].read_bytes(), None), tmp_path / "locked.pem"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")))
    with pytest.raises(ProgramError, match="is encrypted.*write it without a password: openssl"):
        sign(path, locked)
    sign(path, keys[0])
    with pytest.raises(ProgramError, match="no Ed25519 public key"):
        load(path, keys[0])


def test_the_environment_demands_it_everywhere(
    path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(keys[1]))
    for opening in (load, load_for_running):
        with pytest.raises(ProgramError, match="not signed"):
            opening(path)
    run = CliRunner().invoke
    commands = (["inspect"], ["verify"], ["export", "--onnx", f"{path}.onnx"], ["bench"], ["lint"], ["report"])
    for command, *options in commands:
        assert run(app, [command, str(path), *options]).exit_code == 2, command
    assert run(app, ["sign", str(path), "--key", str(keys[0])]).exit_code == 0
    assert run(app, ["inspect", str(path)]).exit_code == 0


def test_the_commands(path: Path, keys: tuple[Path, Path]) -> None:
    run = CliRunner().invoke
    options = [str(path), "--public-key", str(keys[1]), "--expect"]
    check = ["check", *options, "resnet@7", "--engine", "reference", "--no-probe"]
    assert run(app, check).exit_code == 1
    signed = run(app, ["sign", str(path), "--key", str(keys[0]), "--name", "resnet", "--version", "7"])
    assert signed.exit_code == 0
    result = run(app, check)
    assert result.exit_code == 0 and "by the key given" in result.stdout and "resnet version 7" in result.stdout
    assert run(app, ["inspect", *options, "resnet@7"]).exit_code == 0
    for command in ("inspect", "verify", "bench", "lint", "report"):
        assert run(app, [command, *options, "resnet@8"]).exit_code == 2, command
