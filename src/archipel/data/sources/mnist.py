"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 in ten classes.

The files are the four official idx files, compressed or not. Values are between 0 and 1, shape [examples, 1, 28, 28];
the 10,000 official test images come last and are the source's test set. RADFed splits all 70,000:
`dataclasses.replace(ap.data.mnist(), test=None)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from archipel.data.fetch import DataFiles, File, Found, fetch
from archipel.data.lazy import remembered
from archipel.data.source import Source
from archipel.data.sources.idx import LabelledImages, idx_array, official_split, pair

DIGITS = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def files(digests: Mapping[str, str], *addresses: str) -> tuple[File, ...]:
    """Return the four files with their addresses."""
    return tuple(
        File(name, tuple(address + name for address in addresses), f"sha256:{digest}")
        for name, digest in digests.items()
    )


MNIST = DataFiles(
    "mnist",
    (files(DIGITS, "http://yann.lecun.com/exdb/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),),
)
FMNIST = DataFiles(
    "fmnist",
    (files(FASHION, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),),
    folders=("fashion-mnist", "fmnist"),
    how="On Debian and derivatives, `apt install dataset-fashion-mnist` installs them where they are searched.",
)


def mnist(verify: bool = True) -> Source:
    """Load 70,000 handwritten digits of 28 x 28 in 10 classes; the last 10,000 are the official test set.

    verify: refuse files that are not the official ones.
    """
    return grey(MNIST, verify)


def fmnist(verify: bool = True) -> Source:
    """Load 70,000 pictures of clothes of 28 x 28 in 10 classes; the last 10,000 are the official test set.

    verify: refuse files that are not the official ones.
    """
    return grey(FMNIST, verify)


def grey(wanted: DataFiles, verify: bool) -> Source:
    """Return the source in four idx files."""
    found = fetch(wanted, verify)

    def decode(folder: Path | None) -> Source:
        return official_split(wanted.name, 10, part(found, 0), part(found, 2), folder)

    return remembered(wanted.name, found.paths, verify, decode)


def part(found: Found, first: int) -> LabelledImages:
    """Read the images and labels of one of the two parts."""
    images, labels = (idx_array(found.read(first + place), str(found.paths[first + place])) for place in (0, 1))
    return pair(images, labels, str(found.paths[first]))
