"""ISCX VPN-nonVPN 2016: network flows of 15 s, with 23 times and rates each, by activity.

Scenario A2 has two captures, without VPN (8,965 flows) and through a VPN (9,793), of seven activities: the
captures are the sites. Labels of the second have a `VPN-` prefix, so the sites share no class; `strip` removes the
prefix from some activities, or from "all". With `strip` of some activities it is HDAFL's mixed case, in which some
classes are shared. In scenario A1 the capture is the label: two classes, VPN or not.

Classes are numbered in the order of `activities(strip)`. x keeps the values of the files (microseconds, and -1
where a flow had no idle time); standardise after splitting.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.checks import one_of
from archipel.data.fetch import DataFiles, File, fetch
from archipel.data.source import Source

ACTIVITIES = ("BROWSING", "CHAT", "STREAMING", "MAIL", "VOIP", "P2P", "FT")
PREFIX = "VPN-"
FEATURES = 23
CAPTURES = ("NO-VPN", "VPN")
HOW = (
    "The publisher requires a registration (https://www.unb.ca/cic/datasets/vpn.html): get 'Scenario A1-ARFF.zip' and "
    "'Scenario A2-ARFF.zip' there and unpack them."
)


def arff(scenario: str, capture: str) -> File:
    """Return one file of a scenario: as in the official archive, or with the scenario before its name."""
    name = f"TimeBasedFeatures-Dataset-15s-{capture}.arff"
    folder = f"Scenario {scenario}-ARFF"
    return File(f"{folder}/{name}", also=(f"{folder}/{folder}/{name}", f"{scenario}-{name}"))


def wanted(scenario: str) -> DataFiles:
    """Return the files of a scenario; A1 has both captures in one file."""
    captures = CAPTURES if scenario == "A2" else ("VPN",)
    return DataFiles("iscx_vpn", (tuple(arff(scenario, capture) for capture in captures),), how=HOW)


def iscx_vpn(strip: str | Sequence[str] = (), scenario: str = "A2") -> Source:
    """Load 18,758 network flows with 23 numbers each, by activity; the captures with and without VPN are the sites.

    strip: activities whose labels lose their `VPN-` prefix, or "all".
    scenario: "A2", labels are activities, or "A1", labels are with or without VPN.
    """
    one_of("iscx_vpn", "scenario", scenario, ("A1", "A2"))
    if scenario == "A1":
        if strip:
            raise ValueError(f"iscx_vpn: strip={strip!r}, but labels of scenario A1 are captures, not activities.")
        found = fetch(wanted("A1"))
        x, labels = flows(found.read(), str(found.paths[0]), ("Non-VPN", "VPN"))
        return Source(
            torch.from_numpy(x),
            torch.from_numpy(labels),
            2,
            "iscx_vpn-A1",
            sites=torch.from_numpy(labels),
            site_names=CAPTURES,
        )
    names = activities(strip)
    found = fetch(wanted("A2"))
    plain, plain_labels = flows(found.read(0), str(found.paths[0]), ACTIVITIES)
    tunnel, tunnel_labels = flows(found.read(1), str(found.paths[1]), tuple(PREFIX + name for name in ACTIVITIES))
    # an activity without its prefix has the same number with and without VPN
    number = np.array(
        [names.index(PREFIX + name) if PREFIX + name in names else k for k, name in enumerate(ACTIVITIES)]
    )
    return Source(
        torch.from_numpy(np.concatenate([plain, tunnel])),
        torch.from_numpy(np.concatenate([plain_labels, number[tunnel_labels]])),
        len(names),
        "iscx_vpn",
        sites=torch.from_numpy(np.repeat(np.arange(2), [len(plain), len(tunnel)])),
        site_names=CAPTURES,
    )


def activities(strip: str | Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the classes if the prefix of these activities is removed."""
    stripped = ACTIVITIES if strip == "all" else (strip,) if isinstance(strip, str) else tuple(strip)
    for name in stripped:
        one_of("iscx_vpn", "strip", name, ACTIVITIES)
    return ACTIVITIES + tuple(PREFIX + name for name in ACTIVITIES if name not in stripped)


def flows(data: bytes, what: str, labels: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Parse an ARFF file into numbers and labels; header lines of this set end with commas."""
    lines = data.decode("ascii", "replace").splitlines()
    marks = [number for number, line in enumerate(lines) if line.strip(" ,").upper() == "@DATA"]
    attributes = sum(line.upper().startswith("@ATTRIBUTE") for line in lines)
    if not marks or attributes != FEATURES + 1:
        raise ValueError(
            f"{what} is not an ARFF file of this set: {attributes} attributes instead of {FEATURES + 1}, "
            f"{'no' if not marks else 'a'} @DATA. Unpack the official archive again."
        )
    values, codes = [], []
    code = {label: number for number, label in enumerate(labels)}
    for number, line in enumerate(lines[marks[0] + 1 :], start=marks[0] + 2):
        fields = line.strip().split(",")
        if not any(fields):
            continue
        try:
            values.append([float(field) for field in fields[:FEATURES]])
            codes.append(code[fields[FEATURES]])
        except (ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"{what}: line {number} should be {FEATURES} numbers and one of {', '.join(labels)}, got "
                f"{line[:80]!r}. Is it truncated? Unpack the official archive again."
            ) from error
    return np.array(values, np.float32), np.array(codes, np.int64)
