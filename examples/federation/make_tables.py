"""Write made-up tables of three hospitals, north.csv, south.csv and west.csv, and all.csv for the simulator.

    python make_tables.py

Whether a patient is readmitted within a month depends on age, pressure, sugar, days in hospital and the kind of
admission, in the same way in all hospitals; the patients differ. all.csv has all rows with a column for the hospital. A
real federation does not need it.
"""

import csv
import math
import random
from collections.abc import Iterator
from pathlib import Path

HOSPITALS = {"north": (420, 71.0, 0.7), "south": (260, 58.0, 0.3), "west": (90, 64.0, 0.5)}
"""Patients of each hospital, their mean age, and the share of emergencies."""

Patient = dict[str, str | float]


def patients(hospital: str, draw: random.Random) -> Iterator[Patient]:
    count, years, urgent = HOSPITALS[hospital]
    for _ in range(count):
        age = round(min(max(draw.gauss(years, 13), 18), 100))
        pressure = round(draw.gauss(105 + age / 2, 12))
        sugar = round(draw.lognormvariate(1.75, 0.25), 1)
        days = 1 + min(int(draw.expovariate(0.2)), 60)
        sex = draw.choice(("f", "m"))
        came = draw.choices(("planned", "emergency", "transfer"), (1 - urgent, urgent, 0.15))[0]
        risk = (age - 65) / 9 + (pressure - 138) / 18 + 2.2 * (sugar > 7) + (days - 5) / 4 + 1.6 * (came == "emergency")
        back = draw.random() < 1 / (1 + math.exp(1.2 - 1.4 * risk))
        yield {
            "age": age,
            "pressure_mmhg": pressure,
            "sugar_mmol": sugar,
            "days": days,
            "sex": sex,
            "came": came,
            "back": "yes" if back else "no",
        }


def write(path: Path, rows: list[Patient]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path.name}: {len(rows)} patients")


def main() -> None:
    here, everybody = Path(__file__).parent, []
    for number, hospital in enumerate(HOSPITALS):
        rows = list(patients(hospital, random.Random(number)))
        write(here / f"{hospital}.csv", rows)
        everybody += [{"hospital": hospital, **row} for row in rows]
    write(here / "all.csv", everybody)


if __name__ == "__main__":
    main()
