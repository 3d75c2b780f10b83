"""The methods of the five papers side by side: digits on ten islands, five fast and five slow learners.

Every method has the same virtual time, and every score is the learners' mean on their own test parts, so that methods
with private layers can be compared with those without.
"""

import archipel as ap

SECONDS = 60.0
LOCAL: dict[str, float] = {"epochs": 2, "batch": 16, "rate": 0.1}

METHODS = [
    ap.fedavg(**LOCAL),
    ap.fedasync(**LOCAL),
    ap.async_dvw(tombstones={"fast": 4, "slow": 1}, loss={"fast": 0, "slow": 1}, batch=16, rate=0.1, momentum=0.0),
    ap.fed2a(**LOCAL),
    ap.divide_and_conquer(epochs=4, tuning_epochs=2, batch=16, rate=0.1, decay=0.99),
    ap.hdafl(**LOCAL),
    ap.radfed(fraction=0.3, hops=5, **LOCAL),
]


def main() -> None:
    data = ap.data.digits().split(learners=10, sizes="powerlaw", classes=3)
    fleet = ap.Fleet(fast=5, slow=5)
    print(f"{data}\n{'method':<20}{'score':>8}{'commits':>9}{'rounds':>8}{'MB up':>8}{'MB down':>9}")
    for method in METHODS:
        run = ap.simulate(
            method,
            data,
            fleet=fleet,
            ending=ap.Ending(seconds=SECONDS),
            evaluation=ap.Evaluation(seconds=SECONDS / 20, every=None, at="learners", mean="learners"),
        )
        moved, (_, last) = run.traffic, run.commits[-1]
        up, down = moved["train up bytes"] / 2**20, moved["train down bytes"] / 2**20
        down += moved.get("evaluate down bytes", 0) / 2**20
        print(f"{method.name:<20}{run.score:>8.3f}{last.version:>9}{last.rounds:>8}{up:>8.2f}{down:>9.2f}")


if __name__ == "__main__":
    main()
