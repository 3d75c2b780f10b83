"""Errors of the operating system about a path, in plain words."""

from __future__ import annotations

import errno

REASONS = {
    errno.EACCES: "permission denied",
    errno.EEXIST: "it exists already",
    errno.EISDIR: "it is a directory, and a file is needed",
    errno.ELOOP: "it is a symbolic link that leads back to itself",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOENT: "there is no such file or directory",
    errno.ENOSPC: "the disk is full",
    errno.ENOTDIR: "a part of this path is a file, and a directory is needed",
    errno.EROFS: "the file system is read-only",
}


def reason(error: OSError) -> str:
    """Say why a path cannot be used."""
    return REASONS.get(error.errno or 0, error.strerror or str(error))


def in_words(error: OSError) -> str:
    """Return the error as a sentence with its path; an error that was raised with a sentence of its own keeps it."""
    return str(error) if error.filename is None else f"{error.filename}: {reason(error)}."
