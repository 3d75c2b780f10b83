"""Studies: a file that says what is to be run, the runs that follow from it, and the folder that holds them."""

from archipel.study.files import read_study
from archipel.study.results import load_results, run_study
from archipel.study.schema import Study

__all__ = ["Study", "load_results", "read_study", "run_study"]
