"""eICU: stays in intensive care in many hospitals of the US, and whether the patient died in hospital.

The files are the tables patient, apacheApsVar and apachePredVar (csv.gz) of the open demo (2,520 stays in 186
hospitals, downloaded if absent) or of the full set (PhysioNet, after registration), which have the same format. Stays
with APACHE variables and a known outcome are kept: 2,179 of the demo. Hospitals are the sites, named by their number;
the classes are alive and expired, by `hospitaldischargestatus`.

x has the columns of `FEATURES`: the first day's measurements and findings that APACHE's prediction uses, and nothing
that is known only later (discharge, length of stay, APACHE's scores). APACHE treats a missing measurement (-1) as
normal; here it becomes a fixed value from the middle of the range to which APACHE III gives no points, and a column
`<name> missing` marks it. Nothing is computed from the data, so no information leaks from test patients. Values are in
the units of the tables; standardise after splitting.

RADFed keeps hospitals with more than 100 admissions and at most 20 % mortality, of which the demo has none:
`eicu(admissions=100, mortality=0.2)`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

import numpy as np
import torch

from archipel.core.checks import at_least, share
from archipel.data.fetch import DataFiles, File, Found, fetch
from archipel.data.source import Source

ADDRESS = "https://physionet.org/files/eicu-crd-demo/2.0.1/"
WANTED = DataFiles(
    "eicu",
    (
        tuple(
            File(name, (ADDRESS + name,), sums=f"{ADDRESS}SHA256SUMS.txt", also=(name.lower(),))
            for name in ("patient.csv.gz", "apacheApsVar.csv.gz", "apachePredVar.csv.gz")
        ),
    ),
    folders=("eicu", "eicu_demo"),
    how=(
        "The demo is open (https://physionet.org/content/eicu-crd-demo/); the full set requires a registration "
        "(https://physionet.org/content/eicu-crd/), its tables go into a folder 'eicu'."
    ),
)
KEY = "patientunitstayid"

NORMAL = {
    "urine": 2500.0,
    "wbc": 10.0,
    "temperature": 37.0,
    "respiratoryrate": 18.0,
    "sodium": 140.0,
    "heartrate": 75.0,
    "meanbp": 90.0,
    "ph": 7.4,
    "hematocrit": 45.0,
    "creatinine": 1.0,
    "albumin": 3.5,
    "pao2": 90.0,
    "pco2": 40.0,
    "bun": 12.0,
    "glucose": 110.0,
    "bilirubin": 1.0,
    "fio2": 21.0,
    "eyes": 4.0,
    "motor": 6.0,
    "verbal": 5.0,
    "meds": 0.0,
}
"""Measurements (apacheApsVar), and the value that replaces a missing one."""

SUPPORT = ("intubated", "vent", "dialysis")
"""Yes or no in apacheApsVar."""

HISTORY = (
    *("aids", "hepaticfailure", "lymphoma", "metastaticcancer", "leukemia", "immunosuppression", "cirrhosis"),
    *("diabetes", "electivesurgery", "activetx", "readmit", "ima", "midur", "thrombolytics"),
    *("ventday1", "oobventday1", "oobintubday1"),
)
"""Yes or no in apachePredVar; blank means no, as for elective surgery of patients without an operation."""

ADMISSION_SOURCES = 8

FEATURES: tuple[str, ...] = (
    "age",
    "female",
    *NORMAL,
    *(f"{name} missing" for name in NORMAL),
    *SUPPORT,
    *HISTORY,
    "operated",
    *(f"admitsource={number}" for number in range(1, ADMISSION_SOURCES + 1)),
)
"""The columns of x."""

StayFields = Mapping[str, str]
"""The fields of one stay in one table, by column."""


def eicu(admissions: int = 0, mortality: float = 1.0, diagnoses: bool = False) -> Source:
    """Load stays in intensive care with APACHE's variables; classes: died or not; sites: hospitals.

    admissions: hospitals with more stays than this are kept.
    mortality: hospitals in which at most this share of the stays ended with death are kept.
    diagnoses: add a column for every admission diagnosis in the tables.
    """
    at_least(0, "eicu", admissions=admissions)
    share("eicu", "mortality", mortality)
    found = fetch(WANTED)
    patients, physiology, predictors = (rows(found, number) for number in range(3))
    # sorted by id, so that the order of the tables does not matter
    stays = sorted(
        (
            stay
            for stay in physiology.keys() & predictors.keys() & patients.keys()
            if outcome(patients[stay]) is not None
        ),
        key=int,
    )
    x = np.array([features(patients[stay], physiology[stay], predictors[stay]) for stay in stays], np.float32)
    died = np.array([outcome(patients[stay]) for stay in stays], np.int64)
    hospitals = np.array([int(patients[stay]["hospitalid"]) for stay in stays])
    codes, diagnosis = np.unique([predictors[stay]["admitdiagnosis"] for stay in stays], return_inverse=True)
    if diagnoses:
        x = np.concatenate([x, np.eye(len(codes), dtype=np.float32)[diagnosis]], axis=1)

    site = np.unique(hospitals, return_inverse=True)[1]
    counts = np.bincount(site)
    fits = (counts > admissions) & (np.bincount(site, weights=died) <= mortality * counts)
    if not fits.any():
        raise ValueError(
            f"eicu: no hospital has more than {admissions} stays and a mortality of at most {mortality:g}. In "
            f"{found.paths[0].parent} the largest has {counts.max()} stays. Lower the limits, or get the full set."
        )
    kept = fits[site]
    names, sites = np.unique(hospitals[kept], return_inverse=True)
    return Source(
        torch.from_numpy(x[kept]),
        torch.from_numpy(died[kept]),
        2,
        "eicu",
        sites=torch.from_numpy(sites),
        site_names=tuple(str(name) for name in names),
        categories={"admitdiagnosis": torch.from_numpy(np.unique(diagnosis[kept], return_inverse=True)[1])},
    )


def rows(found: Found, number: int) -> dict[str, StayFields]:
    """Return the rows of a table by stay."""
    table = list(csv.DictReader(io.StringIO(found.read(number).decode())))
    wanted = (
        {KEY, "hospitalid", "age", "hospitaldischargestatus"},
        {KEY, *NORMAL, *SUPPORT},
        {KEY, *HISTORY, "gender", "admitsource", "admitdiagnosis"},
    )[number]
    lacking = sorted(wanted - set(table[0] if table else ()))
    # DictReader fills short rows with None
    if lacking or any(row[column] is None for row in table for column in wanted):
        raise ValueError(
            f"{found.paths[number]} is truncated or not a table of eICU: it lacks "
            f"{', '.join(lacking) or 'a part of a row'}. Copy or download it again."
        )
    return {row[KEY]: row for row in table}


def outcome(patient: StayFields) -> int | None:
    """Return 1 if the patient died in hospital, 0 if not, None if it is not recorded."""
    return {"Alive": 0, "Expired": 1}.get(patient["hospitaldischargestatus"])


def features(patient: StayFields, physiology: StayFields, predictors: StayFields) -> list[float]:
    """Return one row of x."""
    measured = {name: number(physiology[name]) for name in NORMAL}
    source = number(predictors["admitsource"])
    return [
        # ages above 89 are given as "> 89"; a missing one becomes 65
        90.0 if patient["age"].startswith(">") else float(patient["age"] or 65),
        float(number(predictors["gender"]) == 1),
        *(normal if (value := measured[name]) is None else value for name, normal in NORMAL.items()),
        *(float(measured[name] is None) for name in NORMAL),
        *(float(number(physiology[name]) == 1) for name in SUPPORT),
        *(float(number(predictors[name]) == 1) for name in HISTORY),
        float(predictors["admitdiagnosis"].startswith("S-")),
        *(float(source == place) for place in range(1, ADMISSION_SOURCES + 1)),
    ]


def number(text: str) -> float | None:
    """Parse a value of a table; return None if it is missing."""
    value = float(text) if text else -1.0
    return None if value == -1 else value
