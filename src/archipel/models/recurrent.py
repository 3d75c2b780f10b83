"""Recurrent networks that predict the next character."""

from __future__ import annotations

from torch import Tensor, nn

from archipel.core.checks import at_least


def shakespeare_lstm(vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """Build the two-layer LSTM that predicts the next character in RADFed's Shakespeare (section IV-B).

    vocabulary: number of characters; embedding: size of a character's embedding.
    hidden: width of an LSTM, which RADFed does not give; layers: number of stacked LSTMs.

    The input is a LongTensor [batch, time], 80 characters in the paper, the output logits for the next character. The
    width of 256 is LEAF's. With `layers=1` it is the network of Divide-and-Conquer (section 4.1), which is FedMA's.
    PyTorch has two biases per gate where LEAF's TensorFlow has one.
    """
    at_least(2, "shakespeare_lstm", vocabulary=vocabulary)
    at_least(1, "shakespeare_lstm", embedding=embedding, hidden=hidden, layers=layers)
    return _NextCharacter(vocabulary, embedding, hidden, layers)


def small_lstm(vocabulary: int = 80) -> nn.Module:
    """Build `shakespeare_lstm` with one layer of 64: a thirtieth of the parameters.

    vocabulary: number of characters.
    """
    at_least(2, "small_lstm", vocabulary=vocabulary)
    return _NextCharacter(vocabulary, embedding=8, hidden=64, layers=1)


class _NextCharacter(nn.Module):
    """A network of `embedding`, `lstm`, which may be several stacked ones, and `head`."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.head(states[:, -1])
        return logits
