"""The status of the federation: for operators, for Prometheus and for the log."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from archipel.core.parts.clipping import Movements
from archipel.core.parts.local_noise import ExampleSpending
from archipel.core.parts.privacy_account import PrivacyAccount
from archipel.core.records import Capped, Committed, Scores
from archipel.core.types import Evaluate, Spent, Train
from archipel.federation.controller.admissions import Admissions
from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.meters import Meters
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.security.certificates import SOON
from archipel.federation.security.gate import Turned
from archipel.federation.security.names import Identity

log = logging.getLogger("archipel.federation")

LAST = 10
"""Versions whose shares are shown."""
OUTLIER = 3.0
"""A learner whose last update moved the model this many times more, or less, than the median gets a warning."""


class StatusBoard:
    """Collect the status of a running federation."""

    def __init__(
        self, event_log: EventLog, sessions: Mapping[str, LearnerSession], admissions: Admissions, meters: Meters
    ) -> None:
        self._log = event_log
        self._sessions = sessions
        self._admissions = admissions
        self._meters = meters
        self.restarts = 0
        """Controllers before this one that were killed and restarted."""
        self.score: float | None = None
        self._commits: deque[dict[str, Any]] = deque(maxlen=LAST)
        """Shares of the last versions' weights, by learner."""
        self._certificates: dict[str, datetime] = {}
        """When the certificates of the controller and of callers expire."""
        self._capped_moments: tuple[str, ...] = ()
        """Learners whose moments were limited to the largest share allowed."""
        self.record_scores(event_log.durable.last_scores())

    def record_scores(self, scores: Scores | None) -> None:
        """Note the last score of the model."""
        evaluation = self._log.durable.controller.evaluation
        if scores is not None and evaluation is not None:
            self.score = scores.metrics.get(evaluation.metric)

    def record_commit(self, commit: Committed) -> None:
        """Note who made a version, and each learner's share of its weights."""
        weights = [sum(row) for row in commit.weights]
        whole = sum(weights) or 1.0
        shares: dict[str, float] = {}
        for learner, weight in zip(commit.learners, weights, strict=True):
            shares[learner] = shares.get(learner, 0.0) + weight / whole
        self._commits.append({"version": commit.version, "shares": {name: round(s, 4) for name, s in shares.items()}})

    def record_certificate(self, who: str, expires: datetime) -> None:
        """Note when a certificate expires."""
        self._certificates[who] = expires
        self._meters.certificates.labels(who).set(expires.timestamp())

    def warn_of_share(self, capped: Capped) -> None:
        """Warn of a learner that claims more than the largest share allowed."""
        log.warning(
            "a learner claims more than the largest share allowed and is limited to it: check its counts",
            extra={"learner": capped.learner, "what": capped.what, "most_share": capped.most_share},
        )
        self._log.note(capped.learner, "capped", of=capped.what, most_share=capped.most_share)

    def capped_moments(self, learners: Sequence[str]) -> None:
        """Note whose moments were limited."""
        self._capped_moments = tuple(learners)
        if learners:
            self._meters.capped.labels("moments").set(len(learners))

    def turned_away(self, turned: Turned) -> bool:
        """Count a caller that the gate rejected; return whether it got a row of its own in the audit."""
        self._meters.refusals.labels("caller").inc()
        peer = turned.peer
        about = {"caller": str(peer.identity), "serial": peer.serial, "address": peer.address}
        who = "stranger" if peer.identity is None else str(peer.identity)
        host = peer.address.rpartition(":")[0]
        noted = self._log.note_refusal(who, host, reason=turned.reason, serial=peer.serial, address=peer.address)
        if noted:
            log.warning("a caller was rejected", extra={"reason": turned.reason, **about})
        return noted

    def refused(self, who: str, call: str, reason: str) -> None:
        """Count a call that could not be answered, and note it in the audit."""
        self._meters.refusals.labels("call").inc()
        if self._log.note_refusal(who, call=call, reason=reason):
            log.warning("a call was refused", extra={"caller": who, "call": call, "reason": reason})

    def measure(self) -> None:
        """Update the gauges."""
        state = self._log.state
        self._meters.version.set(state.version)
        self._meters.learners.set(sum(member.active for member in state.members.values()))
        self._meters.tasks.labels("train").set(len(state.out))
        self._meters.tasks.labels("evaluate").set(len(state.inquiries))
        for what, names in state.capped.items():
            self._meters.capped.labels(what).set(len(names))
        if self.score is not None:
            self._meters.score.set(self.score)

    def report(self, who: Identity) -> dict[str, Any]:
        """Return the status for an operator; a learner sees only itself among the learners."""
        controller, state = self._log.durable.controller, self._log.state
        return {
            "version": state.version,
            "rounds": state.rounds,
            "seconds": round(self._log.now, 1),
            "score": self.score,
            "epsilon": self._epsilon(),
            "metric": controller.evaluation.metric if controller.evaluation else None,
            "stopped": self._log.stopped,
            "waiting for": None if state.begun else f"{controller.learners} learners",
            "updates waiting": self._waiting(who),
            "restarts": self.restarts,
            "certificates": self._expiring(who),
            "versions": list(self._commits) if who.kind == "operator" else [],
            "learners": self._learners(who),
        }

    def _waiting(self, who: Identity) -> int:
        """Return how many updates wait for their commit; to a learner, its own: others' tell who takes part."""
        queue = self._log.state.queue.values()
        return len(queue) if who.kind == "operator" else sum(update.learner == who.name for update in queue)

    def _epsilon(self) -> dict[str, float] | None:
        """Return what the versions so far reveal, where the method adds noise."""
        account = self._log.state.memory.get("privacy")
        if isinstance(account, PrivacyAccount):
            return {"spent": account.epsilon, "delta": account.delta, "noise": account.noise}
        told = max(self._spent().values(), key=lambda one: one.epsilon, default=None)
        return None if told is None else {"spent": told.epsilon, "delta": told.delta, "noise": told.noise}

    def _spent(self) -> dict[str, Spent]:
        """Return the accounts that learners have reported."""
        account = self._log.state.memory.get("privacy")
        return account.latest if isinstance(account, ExampleSpending) else {}

    def _expiring(self, who: Identity) -> list[dict[str, Any]]:
        """Return when the certificates that were seen expire, the first one first; a learner sees its own."""
        now = datetime.now(UTC)
        return [
            {"who": whose, "expires": expires.isoformat(), "soon": expires < now + timedelta(days=SOON)}
            for whose, expires in sorted(self._certificates.items(), key=lambda item: item[1])
            if who.kind == "operator" or whose in (str(who), "controller")
        ]

    def _learners(self, who: Identity) -> list[dict[str, Any]]:
        """Return the status of all learners; to a learner, its own."""
        memory = self._log.state.memory.get("merge")
        movements = memory if isinstance(memory, Movements) else Movements()
        norms = movements.norms()  # once: each learner's is compared with the median of all
        names = [name for name in self._sessions if who.kind == "operator" or name == who.name]
        return [{**self._learner(name), "movement": _movement(name, norms, movements.clipped)} for name in names]

    def _learner(self, name: str) -> dict[str, Any]:
        session, member = self._sessions[name], self._log.state.members.get(name)
        if name in self._admissions.withdrawn:
            state = "withdrawn"
        elif name in self._admissions.paused:
            state = "paused"
        elif member is None:
            state = "never seen"
        else:
            rests = session.rests_until > self._log.now
            state = "there" if member.active else "resting" if rests else "gone"
            if member.active and member.resting:
                state = "privacy budget spent"
        return {
            "name": name,
            "state": state,
            "examples": None if member is None else member.examples,
            "capped": self._capped(name),
            "training": [task for task, command in session.orders.items() if isinstance(command, Train)],
            "evaluating": sum(isinstance(command, Evaluate) for command in session.orders.values()),
            "epsilon": self._spent()[name].epsilon if name in self._spent() else None,
            "seen": None if member is None else round(self._log.now - session.seen, 1),
        }

    def _capped(self, name: str) -> list[str]:
        """Return what a learner claims more of than the largest share allowed."""
        found = dict(self._log.state.capped)
        moments = ["moments"] if name in self._capped_moments else []
        return [*moments, *(what for what in sorted(found) if name in found[what])]


def _movement(name: str, norms: Mapping[str, float], clipped: Mapping[str, int]) -> dict[str, Any] | None:
    """Return how far a learner's last update moved the model, also in medians of all learners' last updates."""
    if name not in norms:
        return None
    median = statistics.median_low(norms.values())
    relative = norms[name] / median if median else 1.0
    return {
        "norm": norms[name],
        "medians": round(relative, 2),
        "clipped": clipped.get(name, 0),
        "outlier": len(norms) > 2 and not 1 / OUTLIER < relative < OUTLIER,
    }
