"""Write heart.csv: 920 patients of four hospitals (UCI heart disease), one in a row.

    python make_csv.py

The official files are taken from $ARCHIPEL_DATA or the cache, or downloaded. They have many missing values ('?'), which
`from_csv` refuses, because how to fill them is a decision. The one made here uses no statistics of the patients, so no
information of a test part gets into training:

  A missing kind becomes the kind "unknown".
  A missing quantity gets a typical value, and a column <name>_missing marks it.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from archipel.data.fetch import fetch
from archipel.data.sources.heart_disease import WANTED

FINDINGS: dict[str, float | dict[float, str]] = {
    "age": 55,
    "sex": {0: "female", 1: "male"},
    "chest_pain": {1: "typical", 2: "atypical", 3: "not anginal", 4: "asymptomatic"},
    "blood_pressure": 120,
    "cholesterol": 200,
    "high_sugar": {0: "no", 1: "yes"},
    "ecg": {0: "normal", 1: "abnormal", 2: "hypertrophy"},
    "heart_rate": 150,
    "exercise_angina": {0: "no", 1: "yes"},
    "st_depression": 0,
    "st_slope": {1: "up", 2: "flat", 3: "down"},
    "vessels": 0,
    "thallium": {3: "normal", 6: "fixed", 7: "reversible"},
}
"""The columns of the files in order: names for the numbers of a kind, or the typical value of a quantity."""

ZERO_IS_MISSING = ("blood_pressure", "cholesterol")
"""A zero means missing; Switzerland has 0 for every cholesterol."""


def patients() -> Iterator[dict[str, str | float]]:
    found = fetch(WANTED)
    for number, path in enumerate(found.paths):
        for row in csv.reader(found.read(number).decode().splitlines()):
            *findings, degree = row
            patient: dict[str, str | float] = {"hospital": path.name.split(".")[1]}
            for (name, known), text in zip(FINDINGS.items(), findings, strict=True):
                missing = text == "?" or (name in ZERO_IS_MISSING and float(text) == 0)
                if isinstance(known, dict):
                    patient[name] = "unknown" if missing else known[float(text)]
                else:
                    patient[name] = known if missing else float(text)
                    patient[f"{name}_missing"] = int(missing)
            patient["disease"] = "no" if float(degree) == 0 else "yes"
            yield patient


def main() -> None:
    rows = list(patients())
    target = Path(__file__).with_name("heart.csv")
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    print(f"{target.name}: {len(rows)} patients")


if __name__ == "__main__":
    main()
