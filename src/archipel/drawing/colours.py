"""The colours that all figures share."""

INK = "#333333"
SLATE = "#5c6f7b"
NOTHING = "#eeeeee"
"""Cells without a value."""
SHADES = "viridis_r"
"""Colour map from light (low) to dark (high), readable with colour blindness and in print."""
