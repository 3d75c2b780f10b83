"""Build the C library, once for each kind of processor; which one is loaded is decided where it runs.

They are plain shared libraries, loaded with ctypes, and not Python extensions: one wheel serves every Python 3. Without
a compiler the install succeeds all the same, torch computes everything, and the reason is kept in `<kind>.failed.txt`
beside the place of the library, where `archipel doctor` finds it.
"""

import os
import sys
from glob import glob
from pathlib import Path
from platform import machine

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

KINDS = {"default": []}
"""The names of torch (`torch.backends.cpu.get_cpu_capability`), and the compiler's options."""
if machine() in ("x86_64", "AMD64"):
    KINDS |= {"avx2": ["-march=x86-64-v3"], "avx512": ["-march=x86-64-v4"]}


def failure(library: Path) -> Path:
    """Return the file that says why a library was not built."""
    return library.with_suffix(".failed.txt")


class BuildLibraries(build_ext):
    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.unlink(missing_ok=True)  # an older build must not replace one that fails
        failure(library).unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except (CCompilerError, BaseError) as error:
            print(f"archipel: the C library {library.name} was not compiled: {error}", file=sys.stderr)
            library.parent.mkdir(parents=True, exist_ok=True)
            failure(library).write_text(f"{library.name} was not compiled: {error}\n")

    def copy_extensions_to_source(self) -> None:
        """For an editable install: leave in the sources what a wheel would hold, and nothing older."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            library = Path(self.get_ext_fullpath(ext.name))
            for source, target in ((built, library), (failure(built), failure(library))):
                target.unlink(missing_ok=True)
                if source.exists():
                    self.copy_file(str(source), str(target))

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return ext.export_symbols  # no PyInit


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": PlatformWheel},
    ext_modules=[
        Extension(
            f"archipel.kernels.native.{kind}",
            sources=sorted(glob("src/archipel/kernels/native/*.c")),
            depends=sorted(glob("src/archipel/kernels/native/*.h")),
            extra_compile_args=["-O3", "-std=gnu11", "-Wall", "-Wno-psabi", "-fno-math-errno", *options],
            optional=True,
        )
        for kind, options in KINDS.items()
    ],
)
