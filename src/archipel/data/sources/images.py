"""Decode PNG and PPM images with Pillow, which is an extra."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

MODES = ("L", "RGB")
"""Pillow's names of 8-bit grey and 8-bit RGB."""


def image_array(data: bytes, what: str, form: str) -> NDArray[np.uint8]:
    """Return the pixels of an image, [height, width, channels].

    what: name of the image in errors; form: "PNG" or "PPM".
    """
    try:
        # imported late: it is an extra
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"{what} is a {form} image, and reading it needs Pillow: pip install '.[data]' in the source folder"
        ) from error
    try:
        # compares the checksums that a PNG holds; the image has to be opened again afterwards
        Image.open(io.BytesIO(data), formats=(form,)).verify()
        image = Image.open(io.BytesIO(data), formats=(form,))
        if image.mode not in MODES:
            raise ValueError(f"{what} is an image of mode {image.mode}. Only 8-bit grey and RGB images are read.")
        pixels = np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{what} is damaged or not a {form} image: {error}. Copy or unpack it again.") from error
    return pixels.reshape(image.height, image.width, -1)
