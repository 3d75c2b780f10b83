"""Data on islands: take a source, split it over learners, and every learner is an index array."""

from archipel.data.digits import digits
from archipel.data.islands import Island, Islands
from archipel.data.source import Source, from_arrays
from archipel.data.splits import stratified_validation

__all__ = ["Island", "Islands", "Source", "digits", "from_arrays", "stratified_validation"]
