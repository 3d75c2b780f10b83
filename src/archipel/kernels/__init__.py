"""Arithmetic on vectors: the interface, torch as the reference, and C."""

from functools import cache

from archipel.kernels.interface import Kernels
from archipel.kernels.native.library import library
from archipel.kernels.native.merge import NativeKernels
from archipel.kernels.reference import TorchKernels


@cache
def kernels() -> Kernels:
    """Return the kernels of this machine: C where the library was built, else torch."""
    native = library()
    return TorchKernels() if native is None else NativeKernels(native)
