"""HDAFL Table 5: traffic of two networks, what is lost against pooled data and what is saved by not sending them."""

from __future__ import annotations

import lzma
import math
from pathlib import Path

import numpy as np
from torch import Tensor

from archipel.papers import claims
from archipel.papers.finished_runs import FinishedRuns
from archipel.papers.hdafl import PAPER
from archipel.papers.reproduction import Measure, PaperColumn, PaperRow, PaperTable, Reproduction
from archipel.papers.studies import Scale, StudyPart
from archipel.report.measures import Spread, latest, traffic_by
from archipel.runs.history import history, moved
from archipel.runs.run import Run
from archipel.study.build import build_data
from archipel.study.grid import cells

TRAFFIC = StudyPart("traffic", "traffic.toml")


def loss_at(rounds: int) -> Measure:
    """Points of accuracy below (negative) or above the centralised model of the same seed after so many rounds."""

    def measure(evidence: FinishedRuns, part: str, method: str) -> Spread:
        pooled = {run.seed: run.final_score for run in evidence.runs(part, "centralised")}
        return Spread.of(100 * (score_at(run, rounds) - pooled[run.seed]) for run in evidence.runs(part, method))

    return measure


def score_at(run: Run, rounds: int) -> float:
    return latest(history(run), lambda point: point.rounds == rounds)


def gain_at(rounds: int) -> Measure:
    """Bytes of the compressed data over those of the models that the learners have sent by then."""

    def measure(evidence: FinishedRuns, part: str, method: str) -> Spread:
        data = evidence.once("data-bytes", lambda: data_bytes(evidence))
        return Spread.of(data / sent if sent else math.nan for sent in sent_by(evidence.runs(part, method), rounds))

    return measure


def sent_by(runs: list[Run], rounds: int) -> list[int]:
    """Bytes of all uploads until that round, each of which ends with a commit."""
    return [moved(traffic_by(run, rounds), "bytes", "train up") for run in runs]


def data_bytes(evidence: FinishedRuns) -> int:
    """Return the size of the learners' training examples with the first seed, each learner's apart."""
    split = build_data(cells(evidence.study(TRAFFIC))[0].study).split
    return sum(len(packed(split.x[island.train], split.y[island.train])) for island in split.learners)


def packed(x: Tensor, y: Tensor) -> bytes:
    """Column by column, four bytes a number and one a label, by LZMA at its strongest."""
    columns = np.ascontiguousarray(x.numpy().astype(np.float32).T)
    return lzma.compress(columns.tobytes() + y.numpy().astype(np.uint8).tobytes(), preset=9 | lzma.PRESET_EXTREME)


METHODS = (PaperColumn("FedAvg", method="fedavg"), PaperColumn("HDAFL", method="hdafl"))
LOSS = PaperTable(
    "Table 5: accuracy loss in points against the centralised model",
    METHODS,
    (
        PaperRow("4 rounds", (-2.0, -1.2), measure=loss_at(4)),
        PaperRow("8 rounds", (-1.6, -0.4), measure=loss_at(8)),
        PaperRow("20 rounds", (-1.7, -0.5), measure=loss_at(20)),
    ),
    part=TRAFFIC.name,
)
GAIN = PaperTable(
    "Table 5: communication gain, times fewer bytes than the data",
    METHODS,
    (
        PaperRow("4 rounds", (28.9, 32.9), measure=gain_at(4)),
        PaperRow("8 rounds", (14.5, 16.5), measure=gain_at(8)),
        PaperRow("20 rounds", (5.8, 6.6), measure=gain_at(20)),
    ),
    part=TRAFFIC.name,
)

REPRODUCTION = Reproduction(
    name="hdafl-table5",
    paper=PAPER,
    title="Table 5: traffic classification in two networks, against a centralised model",
    folder=Path(__file__).parent,
    parts=(TRAFFIC,),
    tables=(LOSS, GAIN),
    claims=(
        claims.higher("HDAFL loses less accuracy than FedAvg at 4, 8 and 20 rounds", LOSS.title, "HDAFL", "FedAvg"),
        claims.higher("HDAFL saves more bytes than FedAvg", GAIN.title, "HDAFL", "FedAvg"),
        claims.above("HDAFL's models take fewer bytes than the data, up to 20 rounds", GAIN.title, "HDAFL", 1.0),
    ),
    scales={
        "smoke": Scale(
            "All flows, the network of the full scale, 4 rounds of one epoch, one seed.",
            {"seeds": [0], "ending.rounds": 4, "training.epochs": 1},
        ),
        "small": Scale(
            "All flows of ISCX VPN-nonVPN in two captures, 80 % of them for training; MLP of two hidden layers of 32, "
            "20 rounds of 5 epochs; five seeds, the rate of each method chosen of two on validation parts.",
            {"seeds": [0, 1, 2, 3, 4], "tune": {"training.rate": [0.005, 0.02]}},
        ),
        "full": Scale(
            "The same with six seeds and a rate of 0.02: the paper's own 1.9 million flows are proprietary.",
        ),
    },
    readings=(
        "ISCX VPN-nonVPN (18,758 flows) stands for the paper's proprietary set (1.9 million). Its two captures, one of "
        "them through a VPN, are the two networks. Browsing, chat, streaming and mail are one class in both; VoIP, "
        "P2P and file transfer are classes of their own in each: of ten classes each network has seven, four are "
        "shared. A shared class looks different in the two, as in section 3.2.",
        "A flow is 23 times and rates here and not the sizes of ten packets, which have an order, so an MLP stands for "
        "the 1D-CNN; its head holds 15 % of the numbers (12 % by the paper's gains). Features are standardised by both "
        "networks' statistics together, since packet sizes have one scale everywhere.",
        "Epochs, batch and rate are not given. Five epochs of 7,000 to 8,000 flows in a round are still far fewer "
        "steps than one of a million.",
        "All models are scored by the mean over the two networks of the accuracy on a fifth of their own flows. The "
        "centralised model trains on both networks' flows for as many epochs as the others in 20 rounds; its score is "
        "the final one, over the last fifth of its rounds, that of the others the single one after 4, 8 and 20 rounds.",
        "The communication gain is the bytes of the training flows, column by column, four bytes a number and one a "
        "label, compressed with LZMA, over the bytes of all models that the learners have sent by then. One direction "
        "counts, as in Table 4: data would travel one way too.",
    ),
    remarks=(
        "Classes that are not shared make most of FedAvg's loss: with all seven activities shared (`--set "
        "data.source.strip=all` on traffic.toml) both methods lose much less. How many of its 35 classes both "
        "networks have, the paper does not say.",
        "HDAFL can score above the centralised model. Its private classifier knows which network a flow is from; the "
        "pooled one has to tell apart three pairs of classes that differ in that alone.",
        "There are a hundred times fewer flows to send than in the paper, so the communication gains are smaller.",
        "Of two rates the larger one was chosen for all three methods.",
    ),
)
