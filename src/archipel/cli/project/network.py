"""The network: any torch.nn.Module that takes a batch of rows and gives one number for each class."""

from torch import Tensor, nn


class Net(nn.Module):
    """One hidden layer; the study says how wide it is, and the data how many features and classes there are."""

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return logits
