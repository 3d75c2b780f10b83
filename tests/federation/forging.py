"""Certificates that no authority would issue, signed with its key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from archipel.federation.security.authority import read_authority
from archipel.federation.security.certificates import YEAR, new_key, sign
from archipel.federation.security.key_files import key_pem, no_passphrase, pem

NOW = datetime.now(UTC)


def papers(folder: Path) -> tuple[bytes, bytes]:
    """Key and certificate of a folder, as they are: none of our own checks hinders an attacker."""
    return (folder / "key.pem").read_bytes(), (folder / "certificate.pem").read_bytes()


def root(ca: Path) -> bytes:
    return (ca / "authority" / "certificate.pem").read_bytes()


def forged(ca: Path, kind: Any, *names: x509.GeneralName) -> tuple[bytes, bytes]:
    """Key and certificate from the right authority that say what they should not."""
    authority, signer = read_authority(ca, no_passphrase)
    key = new_key()
    made = sign(authority, signer, key.public_key(), kind, names, NOW, NOW + timedelta(days=YEAR))
    return key_pem(key), pem(made)
