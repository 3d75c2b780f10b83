"""A finished run: its data with its final score, its files, its figure and a summary."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archipel.core.metrics import higher_is_better
from archipel.core.records import Handed, PrivacySpent, Record
from archipel.runs.final_score import final_score, validated_score
from archipel.runs.run_data import RunData
from archipel.runs.score_curves import score_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Run(RunData):
    """The result of a simulation or a federation: data to save, to compare and to draw."""

    @property
    def final_score(self) -> float:
        """The mean over the last fifth of its budget, each version counting as long as it was the current one."""
        return final_score(self)

    @property
    def validated_score(self) -> float:
        """The test score of the version that the validation learners score best; NaN without such learners."""
        return validated_score(self)

    def to_pandas(self, kind: type[Record] | None = None) -> DataFrame:
        """Return the records, or those of one kind, as a pandas DataFrame: run.to_pandas(Scores)."""
        try:
            # imported late: it is an extra
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install '.[pandas]' in the source folder") from error
        return DataFrame(self.rows(kind))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Save everything into a folder; `archipel.load_run(folder)` reads it, and other tools too."""
        from archipel.runs.save import save_run  # imported late: pydantic is slow to import

        save_run(self, folder)

    def save_adapter(self, folder: str | os.PathLike[str], learner: str | None = None) -> None:
        """Save the adapters as PEFT does: `PeftModel.from_pretrained(base, folder)` loads them.

        learner: include this learner's private layers; None: the shared layers only.
        """
        from archipel.runs.save_adapter import save_adapter  # imported late, as above

        save_adapter(self, folder, learner)

    def plot(self) -> Figure:
        """Draw the score against virtual time, local rounds and megabytes, as a matplotlib figure."""
        return score_curves([self]).figure

    def summary(self) -> str:
        """Summarise the run in a few lines."""
        moved = self.traffic
        mega = {kind: moved.get(f"{kind} bytes", 0) / 2**20 for kind in ("train down", "train up", "evaluate down")}
        models = sum(moved.get(f"{kind} models", 0) for kind in ("train down", "train up", "evaluate down"))
        commits = self.commits
        scores = self.scores
        used = {"rounds": f"{self.rounds} local rounds", "seconds": f"{self.seconds:,.1f} s"}[self.budget]
        validated = self.validated_score
        chosen = "" if math.isnan(validated) else f", at the best validation {validated:.4f}"
        pick = max if higher_is_better(self.metric) else min
        best = pick((s.metrics[self.metric] for _, s in scores if self.metric in s.metrics), default=float("nan"))
        handed = self.of(Handed)
        why = f" ({self.execution_reason})" if self.execution_reason else ""
        lines = [
            f"{self.name}: {self.metric} {self.final_score:.4f} over the last fifth of {used} "
            f"(last version {self.score:.4f}, best {best:.4f}{chosen})",
            f"  {len(commits)} commits, {self.rounds} local rounds in {self.seconds:,.1f} s, "
            f"{len(handed)} tasks handed out, {len(self.refusals)} not applied",
            f"  {models} models moved: {mega['train down']:.2f} MB to learners, {mega['train up']:.2f} MB back, "
            f"{mega['evaluate down']:.2f} MB for weighing",
            f"  ended because {self.reason}; executed {self.execution}{why}; model {self.fingerprint()}",
        ]
        if spent := self.of(PrivacySpent):
            last = spent[-1][1]
            whose = "learner" if last.of == "learner" else "example of a learner"
            lines.append(f"  epsilon {last.epsilon:.4g} at delta {last.delta:g} for any one {whose}")
        return "\n".join(lines)
