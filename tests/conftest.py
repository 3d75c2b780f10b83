import logging
from collections.abc import Iterator

import pytest
import torch

# one thread everywhere: small products do not gain from a second, and tests run side by side
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a command set up in this process: its handler writes to a stream that ends with the test."""
    logger = logging.getLogger("archipel")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)
