"""The colours that all figures share."""

INK = "#333333"
SLATE = "#5c6f7b"
NOTHING = "#eeeeee"
"""Cells without a value."""
SHADES = "viridis_r"
"""Light is little, dark is much; it reads the same to the colour-blind and in print."""
