"""What all constructors of methods have in common: a wrong keyword is an error that names the nearest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from archipel.core.algorithm import Algorithm
from archipel.core.checks import nearest
from archipel.core.types import Local

P = ParamSpec("P")


def constructor(make: Callable[P, Algorithm]) -> Callable[P, Algorithm]:
    """Refuse keywords that neither the method nor local training has.

    >>> from archipel import fedavg
    >>> fedavg(epoch=2)
    Traceback (most recent call last):
    TypeError: fedavg: no setting 'epoch'. Did you mean 'epochs'? It has fraction, equally, deadline, epochs, steps, \
batch, rate, momentum, optimiser, options.
    """
    own = [name for name, one in inspect.signature(make).parameters.items() if one.kind is not one.VAR_KEYWORD]
    known = [*own, *(name for name in Local.__annotations__ if name not in own)]

    @wraps(make)
    def checked(*args: P.args, **settings: P.kwargs) -> Algorithm:
        for name in settings:
            if name not in known:
                raise TypeError(
                    f"{make.__name__}: no setting {name!r}. Did you mean {nearest(name, known)!r}? "
                    f"It has {', '.join(known)}."
                )
        return make(*args, **settings)

    return checked
