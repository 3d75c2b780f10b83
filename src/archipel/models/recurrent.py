"""Recurrent networks that guess the next character."""

from __future__ import annotations

from torch import Tensor, nn

from archipel.core.checks import at_least


def shakespeare_lstm(vocabulary: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2) -> nn.Module:
    """The two-layer LSTM that guesses the next character in RADFed's Shakespeare (section IV-B).

    vocabulary: characters there are; embedding: numbers by which each is represented.
    hidden: width of an LSTM, which RADFed leaves open; layers: how many LSTMs there are, one on the other.

    It takes a LongTensor [batch, time], 80 characters in the paper, and gives logits for the one after the
    last. A width of 256 is LEAF's. With `layers=1` it is the network of Divide-and-Conquer
    (section 4.1), which is FedMA's. PyTorch keeps two biases a gate where LEAF's TensorFlow keeps one.
    """
    at_least(2, "shakespeare_lstm", vocabulary=vocabulary)
    at_least(1, "shakespeare_lstm", embedding=embedding, hidden=hidden, layers=layers)
    return _NextCharacter(vocabulary, embedding, hidden, layers)


def small_lstm(vocabulary: int = 80) -> nn.Module:
    """The same with one layer of 64: a thirtieth of the parameters.

    vocabulary: characters there are.
    """
    at_least(2, "small_lstm", vocabulary=vocabulary)
    return _NextCharacter(vocabulary, embedding=8, hidden=64, layers=1)


class _NextCharacter(nn.Module):
    """Three layers whatever the number of LSTMs: `embedding`, `lstm`, `head`."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.head(states[:, -1])
        return logits
