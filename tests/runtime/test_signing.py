"""Signatures: demanded, verified on the bytes that are parsed, refused when anything is off."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from intact.cli.app import app
from intact.errors import ProgramError
from intact.runtime import load
from intact.runtime.signing import sign, signature_path

pytest.importorskip("cryptography", reason="signing is an extra")


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
    assert load(path, engine="reference", public_key=keys[1]).info.signed
    assert not load(path, engine="reference").info.signed


def test_every_byte_counts(path: Path, keys: tuple[Path, Path]) -> None:
    sign(path, keys[0])
    whole = path.read_bytes()
    for position in (0, 8, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ProgramError):
            load(path, engine="reference", public_key=keys[1])
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ProgramError, match="does not fit"):
        load(path, engine="reference", public_key=keys[1])


def test_another_key_does_not_count(path: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(path, keys[0])
    with pytest.raises(ProgramError, match="does not fit"):
        load(path, engine="reference", public_key=make_keys(tmp_path / "others")[1])


@pytest.mark.parametrize("content", [None, b"", b"not base64!", b"AAAA", b"A" * 4096], ids=str)
def test_a_signature_that_is_none(path: Path, keys: tuple[Path, Path], content: bytes | None) -> None:
    if content is not None:
        signature_path(path).write_bytes(content)
    with pytest.raises(ProgramError, match="signature|not signed"):
        load(path, engine="reference", public_key=keys[1])


def test_keys_that_are_none(path: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot read the key"):
        sign(path, tmp_path / "absent.pem")
    with pytest.raises(ProgramError, match="no Ed25519 private key"):
        sign(path, keys[1])
    sign(path, keys[0])
    with pytest.raises(ProgramError, match="no Ed25519 public key"):
        load(path, engine="reference", public_key=keys[0])


def test_the_commands(path: Path, keys: tuple[Path, Path]) -> None:
    run = CliRunner().invoke
    check = ["check", str(path), "--engine", "reference", "--no-probe", "--public-key", str(keys[1])]
    assert run(app, check).exit_code == 1
    assert run(app, ["sign", str(path), "--key", str(keys[0])]).exit_code == 0
    result = run(app, check)
    assert result.exit_code == 0 and "by the key given" in result.stdout
