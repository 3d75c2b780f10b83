import gc
import logging
from collections.abc import Iterator

import pytest


def pytest_collection() -> None:
    """Prepare a process that runs tests; the controller of pytest-xdist runs none, and does not import torch."""
    import torch
    from hypothesis import HealthCheck, settings

    # the same examples every time, and no verdict by the clock
    settings.register_profile(
        "archipel", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("archipel")
    # one thread everywhere: small products do not gain from a second, and tests run side by side
    torch.set_num_threads(1)
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that wait longest, or the last minute is one test's alone.

    Other workers of pytest-xdist steal from the end, so the cluster of the first one serves all its tests. Those that
    kill its nodes come last.
    """
    turns = ("tests/cluster/test_cluster_losses", "tests/cluster/", "tests/")
    items.sort(key=lambda item: (1, 0, 2)[[item.nodeid.startswith(turn) for turn in turns].index(True)])


def pytest_collection_finish() -> None:
    """Let the garbage collector ignore the modules and tests that were loaded: they stay to the end."""
    gc.enable()
    gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a command set up in this process: its handler writes to a stream that ends with the test."""
    logger = logging.getLogger("archipel")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)
