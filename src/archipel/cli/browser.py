"""Open a page in a browser, if this machine has a screen."""

import os
import sys
import webbrowser


def open_in_browser(url: str) -> None:
    """Open the address if this is a terminal on a screen; scripts and remote shells only print it."""
    screen = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if sys.stdout.isatty() and screen and "SSH_CONNECTION" not in os.environ:
        webbrowser.open(url)
