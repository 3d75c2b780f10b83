"""The part of the package that is compiled. Without a compiler the install goes on without it, and torch does it all.

Once for each kind of machine: which of them is loaded is decided where it runs, for it may be another one.
"""

from glob import glob
from platform import machine

from setuptools import Extension, setup

KINDS = {"default": []}
"""As torch calls them (`torch.backends.cpu.get_cpu_capability`), and what the compiler is told."""
if machine() in ("x86_64", "AMD64"):
    KINDS |= {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4"]}

setup(
    ext_modules=[
        Extension(
            f"archipel.kernels.native.{kind}",
            sources=sorted(glob("src/archipel/kernels/native/*.c")),
            depends=sorted(glob("src/archipel/kernels/native/*.h")),
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wno-psabi", "-fno-math-errno", *told],
            optional=True,
        )
        for kind, told in KINDS.items()
    ]
)
