"""The controller's side of a secure sum: it routes boxes that it cannot open and adds up numbers that it cannot read.

A state machine without IO. It takes learners' messages, phase by phase; `close` ends a phase, and the next messages to
learners can be read. Given the same messages again, it reaches the same state. Its contents never open a single update:
it holds sealed boxes, tags, and for each learner shares of only one of its two secrets.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from archipel.privacy.secure_sum.channels import TAG_BYTES, agreed
from archipel.privacy.secure_sum.graph import Ring, share_threshold
from archipel.privacy.secure_sum.masking_learner import Verify, mask_seed
from archipel.privacy.secure_sum.masks import Whole, add_mask
from archipel.privacy.secure_sum.shamir import SHARE_BYTES, WrongShares, recover
from archipel.privacy.secure_sum.sum_messages import (
    PHASES,
    Cohort,
    RevealedShares,
    RoundKeys,
    SecureSumRefused,
    SumPhase,
    WrongSecret,
)

Kind: TypeAlias = Literal["seeds", "keys"]
"""The kind of secret: a learner has two."""
KINDS: tuple[Kind, ...] = ("seeds", "keys")
BOX_BYTES = 2 * SHARE_BYTES + 16
"""Two shares and the overhead of AES-GCM."""


class SumCollector:
    """One round at the controller."""

    def __init__(self, round_: str, learners: Iterable[str], *, least: int, threshold: float, verify: Verify) -> None:
        """Begin a round of these learners with phase `advertise`; least, threshold: as in `MaskingLearner`."""
        self.round = round_
        self._least, self._threshold, self._verify = least, threshold, verify
        self.phase: SumPhase = "advertise"
        self.waiting = set(learners)
        self._asked = len(self.waiting)
        """Learners that have not answered in this phase yet."""
        self.answered: set[str] = set()
        """Those that have."""
        self.senders: frozenset[str] = frozenset()
        """Learners whose numbers are in the sum, once the phase `mask` is closed."""
        self._keys: dict[str, RoundKeys] = {}
        self._digests: dict[str, bytes] = {}
        self._ring = Ring({}, threshold)
        self._neighbours: dict[str, tuple[str, ...]] = {}
        self._boxes: dict[str, Mapping[str, bytes]] = {}
        """Boxes by sender, then by receiver."""
        self._sent: dict[str, Mapping[str, bytes]] = {}
        self._confirmed: dict[str, Mapping[str, bytes]] = {}
        self._revealed: dict[str, RevealedShares] = {}
        self._lacking: dict[tuple[Kind, str], int] = {}
        """Number of missing shares of each secret, once they are requested."""
        self._secrets: dict[tuple[Kind, str], bytes] = {}
        """Those that were recovered."""
        self._wrong: set[str] = set()
        """Learners that sent wrong shares."""

    # -------------------------------------------------------------------------------------------- what learners bring

    def take_keys(self, keys: RoundKeys) -> None:
        """Accept a learner's keys; refuse keys for which others would refuse the cohort."""
        self._answers(keys.learner, "advertise")
        if any(len(part) != 32 for part in (keys.sharing, keys.masking, keys.seed_hash)):
            raise SecureSumRefused(f"{keys.learner} sent keys that are not of 32 bytes.")
        probe = X25519PrivateKey.generate()
        try:
            for key in (keys.sharing, keys.masking):
                agreed(probe, key, b"probe")
        except ValueError:
            raise SecureSumRefused(f"{keys.learner} sent keys that are not X25519 keys.") from None
        reason = self._verify(keys, keys.statement(self.round))
        if reason is not None:
            raise SecureSumRefused(f"the keys of {keys.learner} have no valid signature: {reason}.")
        self._keys[keys.learner] = keys
        self._note(keys.learner)

    def take_boxes(self, learner: str, boxes: Mapping[str, bytes]) -> None:
        """Accept the boxes that a learner has sealed for its neighbours."""
        self._answers(learner, "share")
        if boxes.keys() != set(self._neighbours[learner]) or any(len(box) != BOX_BYTES for box in boxes.values()):
            raise SecureSumRefused(f"{learner} has not sealed a box of {BOX_BYTES} bytes for each of its neighbours.")
        self._boxes[learner] = boxes
        self._note(learner)

    def take_sent(self, learner: str, tags: Mapping[str, bytes]) -> None:
        """Record that a learner's masked numbers have arrived, with these tags for its neighbours."""
        self._answers(learner, "mask")
        self._check_tags(learner, tags, self.boxes_for(learner).keys())
        self._sent[learner] = tags
        self._note(learner)

    def take_confirmed(self, learner: str, tags: Mapping[str, bytes]) -> None:
        """Accept a learner's tags for the neighbours that it confirms as senders."""
        self._answers(learner, "confirm")
        self._check_tags(learner, tags, None)
        self._confirmed[learner] = tags
        self._note(learner)

    def take_shares(self, learner: str, shares: RevealedShares) -> None:
        """Accept the shares that a learner reveals."""
        self._answers(learner, "reveal")
        known = {learner, *self.boxes_for(learner)}
        given = (*shares.seeds.values(), *shares.keys.values())
        if not known >= shares.seeds.keys() | shares.keys.keys() or any(len(one) != SHARE_BYTES for one in given):
            raise SecureSumRefused(f"{learner} has revealed something else than shares of its neighbours' secrets.")
        self._revealed[learner] = shares
        for kind in KINDS:
            for name in getattr(shares, kind):
                if (kind, name) in self._lacking:
                    self._lacking[kind, name] -= 1
        self._note(learner)

    def gone(self, learner: str) -> None:
        """Stop waiting for a learner."""
        self.waiting.discard(learner)

    # -------------------------------------------------------------------------------------------------- phase by phase

    @property
    def complete(self) -> bool:
        """Whether the phase can be closed: all learners have answered, or the shares suffice."""
        return not self.waiting or (self.phase == "reveal" and self._suffice)

    def close(self) -> SumPhase:
        """Continue with the learners that have answered; raise `SecureSumRefused`, which ends the round, if too few."""
        if self.phase == "advertise":
            self._digests = {name: keys.digest for name, keys in self._keys.items()}
            self._ring = Ring.of(self._digests, self._threshold)
            self._neighbours = {name: self._ring.neighbours(name) for name in self._keys}
        elif self.phase == "mask":
            self.senders = frozenset(self._sent)
            secrets: dict[Kind, Iterable[str]] = {"seeds": self.senders, "keys": self._dropped()}
            self._lacking = {(kind, name): self._shares_needed(name) for kind in KINDS for name in secrets[kind]}
        self._check_enough()
        self.phase = PHASES[PHASES.index(self.phase) + 1]
        self.waiting, self.answered = self.answered, set()
        return self.phase

    @property
    def cohort(self) -> int:
        """Number of learners that have sent keys."""
        return len(self._keys)

    def cohort_for(self, learner: str) -> Cohort:
        """Return the cohort as sent to a learner."""
        shown = dict.fromkeys((learner, *self._neighbours[learner]))
        for name in sorted(self._keys):
            if len(shown) >= self._least:
                break
            shown[name] = None
        return Cohort(self._digests, {name: self._keys[name] for name in shown})

    def boxes_for(self, learner: str) -> dict[str, bytes]:
        """Return the boxes for a learner."""
        return {name: self._boxes[name][learner] for name in self._neighbours[learner] if name in self._boxes}

    def tags_for(self, learner: str) -> dict[str, bytes]:
        """Return the tags of neighbours that have sent, or, when it is to reveal, that have confirmed it."""
        tags = self._confirmed if self.phase == "reveal" else self._sent
        mine = self._neighbours[learner]
        return {name: tags[name][learner] for name in mine if name in tags and learner in tags[name]}

    # ------------------------------------------------------------------------------------------------------- the sum

    def unmask(self, total: Whole) -> tuple[Whole, frozenset[str]]:
        """Remove the masks from the sum of the senders' numbers; return it, and learners that sent wrong shares."""
        total = total.copy()
        for name in sorted(self.senders):
            add_mask(total, self._secret(name, "seeds"), -1)
        for name in self._dropped():
            key = X25519PrivateKey.from_private_bytes(self._secret(name, "keys"))
            for other in self._masked_with(name):
                about = (self.round, self._ring.digest, name, other)
                # of two neighbours, the first by name has added the mask and the other subtracted it
                add_mask(total, mask_seed(key, self._keys[other].masking, *about), -1 if other < name else 1)
        return total, frozenset(self._wrong)

    @property
    def recovered(self) -> bool:
        """Whether the shares that have come give every secret, the wrong ones among them left out."""
        try:
            for kind, name in list(self._lacking):
                self._secret(name, kind)
        except SecureSumRefused:
            return False
        return True

    def _secret(self, name: str, kind: Kind) -> bytes:
        """Return a learner's secret, and remember who sent wrong shares of it."""
        if (known := self._secrets.get((kind, name))) is not None:
            return known

        def valid(secret: bytes) -> bool:
            keys = self._keys[name]
            if kind == "seeds":
                return hashlib.sha256(secret).digest() == keys.seed_hash
            return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == keys.masking

        given_ = [(one, given) for one, given in self._given(kind) if name in given]
        needed = self._shares_needed(name)
        trusted = [(one, given) for one, given in given_ if one not in self._wrong]
        given_ = trusted if len(trusted) >= needed else given_
        shares = {self._ring.numbers[one]: given[name] for one, given in given_}
        if len(shares) < needed:
            raise SecureSumRefused(f"{len(shares)} shares of {name}'s secret have arrived, and {needed} are needed.")
        try:
            secret, liars = recover(shares, needed, valid)
        except WrongShares:
            raise WrongSecret(name) from None
        self._wrong.update(one for one, number in self._ring.numbers.items() if number in liars)
        self._secrets[kind, name] = secret
        return secret

    def _given(self, kind: Kind) -> Iterable[tuple[str, Mapping[str, bytes]]]:
        return ((one, getattr(shares, kind)) for one, shares in list(self._revealed.items()))

    def _masked_with(self, name: str) -> list[str]:
        """Return the senders that share a mask with a learner that has dropped out."""
        return [other for other in self._neighbours[name] if other in self.senders]

    def _dropped(self) -> list[str]:
        """Return the learners that sealed boxes and sent no numbers: others' masks with them are still in the sum."""
        return [name for name in sorted(self._boxes) if name not in self.senders and self._masked_with(name)]

    def _shares_needed(self, name: str) -> int:
        return share_threshold(len(self._neighbours[name]), self._threshold)

    @property
    def _suffice(self) -> bool:
        """Whether there are enough shares of every secret."""
        return all(count <= 0 for count in self._lacking.values())

    # -------------------------------------------------------------------------------------------------------- checks

    def _answers(self, learner: str, phase: SumPhase) -> None:
        if self.phase != phase or learner not in self.waiting:
            raise SecureSumRefused(f"{learner} is not asked to {phase} now.")

    def _note(self, learner: str) -> None:
        self.waiting.discard(learner)
        self.answered.add(learner)

    def _check_tags(self, learner: str, tags: Mapping[str, bytes], for_: Iterable[str] | None) -> None:
        known = set(self._neighbours[learner])
        wrong = tags.keys() - known if for_ is None else tags.keys() ^ set(for_)
        if wrong or any(len(tag) != TAG_BYTES for tag in tags.values()):
            raise SecureSumRefused(f"{learner} has not sent a tag of {TAG_BYTES} bytes for each of its neighbours.")

    def _check_enough(self) -> None:
        """Refuse to continue with fewer learners than a sum needs."""
        if self.phase == "reveal":
            if not self._suffice:
                raise SecureSumRefused(f"{len(self.answered)} learners have revealed shares, too few to open the sum.")
            return
        there, needed = len(self._keys), max(self._least, self.needed(len(self._keys)))
        if self.phase == "advertise":
            there, needed = self._asked, self._least
        if len(self.answered) < needed:
            did = {"advertise": "given keys", "share": "shared secrets", "mask": "sent numbers", "confirm": "confirmed"}
            raise SecureSumRefused(
                f"{len(self.answered)} of {there} learners have {did[self.phase]}, {needed} are needed."
            )

    def needed(self, cohort: int) -> int:
        """Return how many learners of a cohort must send."""
        return math.ceil(self._threshold * cohort - 1e-9)
