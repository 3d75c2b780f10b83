"""Write speeches.csv, what seven of Shakespeare's roles say, and passages.csv, passages of four of his plays."""

import csv
from pathlib import Path

from archipel.data.fetch import fetch
from archipel.data.sources.shakespeare import PLAYS, play_roles, play_texts

HERE = Path(__file__).parent
ROLES, LINES, LENGTH = 7, 60, 160

texts = play_texts(fetch(PLAYS, True))
roles = play_roles(texts)
largest = sorted(roles, key=lambda role: -sum(map(len, roles[role])))[:ROLES]

with (HERE / "speeches.csv").open("w", newline="") as stream:
    table = csv.writer(stream)
    table.writerow(["role", "text"])
    for role in largest:
        text = " ".join(roles[role])
        pieces = [text[start : start + LENGTH] for start in range(0, len(text), LENGTH)]
        table.writerows([role, piece] for piece in pieces[:LINES])

with (HERE / "passages.csv").open("w", newline="") as stream:
    table = csv.writer(stream)
    table.writerow(["play", "text"])
    for play in ("hamlet", "henry_v", "merchant_of_venice", "tempest"):
        name = next(name for name in texts if play in name)
        text = " ".join(texts[name].split())[5000:]  # behind the list of roles
        pieces = [text[start : start + LENGTH] for start in range(0, len(text), LENGTH)]
        table.writerows([play, piece] for piece in pieces[: 3 * LINES])
