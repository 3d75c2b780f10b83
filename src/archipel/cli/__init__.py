"""The command line.

`archipel run`, `reproduce`, `report`, `view`, `algorithms`, `data`, `new` and `doctor`; for a real federation `ca`,
`controller`, `learner`, `status`, `operator` and `replay`.

Exit codes: 0 done; 1 a run failed; 2 what was asked for cannot be done as it was asked; 130 stopped by Ctrl-C.
"""

from archipel.cli.loading import loading, stop_at_once


def main() -> None:
    """Run `archipel`. Its modules are imported late, so that Ctrl-C is handled from the start."""
    stop_at_once()
    with loading():
        from archipel.cli.program import run_program
    run_program()
