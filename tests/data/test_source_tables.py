"""Covertype, heart disease, eICU and ISCX VPN: real files counted, damaged ones refused."""

import gzip
from pathlib import Path

import pytest
import torch

import archipel as ap
from archipel.data import Source
from archipel.data.sources.eicu import FEATURES as STAY
from archipel.data.sources.eicu import HISTORY, NORMAL, SUPPORT
from archipel.data.sources.heart_disease import FEATURES as HEART
from archipel.data.sources.iscx_vpn import ACTIVITIES, activities
from tests.real_files import cache, needs

# Covertype


def forest(rows: int) -> list[str]:
    lines = []
    for row in range(rows):
        marks = [0] * 44
        marks[row % 4] = marks[4 + row % 40] = 1
        lines.append(",".join(str(value) for value in (*range(row, row + 9), -row, *marks, row % 7 + 1)))
    return lines


def cover(alone: Path, text: str) -> Source:
    (alone / "covertype").mkdir(exist_ok=True)
    (alone / "covertype" / "covtype.data.gz").write_bytes(gzip.compress(text.encode()))
    return ap.data.covertype(verify=False)


def test_a_small_forest(alone: Path) -> None:
    source = cover(alone, "\n".join(forest(50)) + "\n")
    assert source.x.shape == (50, 54)
    assert source.x[7, :10].tolist() == [*range(7, 16), -7]
    assert source.y.tolist() == [row % 7 for row in range(50)]
    assert source.site_names == ("Rawah", "Neota", "Comanche Peak", "Cache la Poudre")
    assert source.sites is not None
    assert source.sites.tolist() == [row % 4 for row in range(50)]
    assert source.categories["wilderness"].tolist() == source.sites.tolist()
    assert source.categories["soil"].tolist() == [row % 40 for row in range(50)]
    some = ap.data.covertype(classes=(7, 2), verify=False)
    assert some.classes == 2
    assert some.y.tolist() == [int(row % 7 == 1) for row in range(50) if row % 7 in (1, 6)]
    assert some.x[:, 0].tolist() == [row for row in range(50) if row % 7 in (1, 6)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("\n".join(forest(5))[:-3] + "\n", r"the 5 lines from line 1 on should be 55 whole numbers each"),
        ("\n".join(forest(5)) + "\n1,2,3", r"should be 55 whole numbers each"),
        ("\n".join(forest(5)).replace("1", "x") + "\n", r"should be 55 whole numbers each"),
        ("\n".join(forest(5))[:-1] + "8\n", r"line 5 should have one wilderness area, one soil type, and a class"),
        ("\n".join(line.replace(",1,", ",0,", 1) for line in forest(5)) + "\n", r"line \d should have one wilderness"),
    ],
)
def test_damaged_forests(alone: Path, text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        cover(alone, text)


def test_other_forests_and_classes(alone: Path) -> None:
    cover(alone, "\n".join(forest(5)) + "\n")
    with pytest.raises(ValueError, match=r"covtype.data.gz is not the official file"):
        ap.data.covertype()
    for classes in [(1,), (1, 1), (0, 1), (1, 8)]:
        with pytest.raises(ValueError, match=r"classes should be two or more different numbers from 1 to 7, got \("):
            ap.data.covertype(classes=classes)
    path = alone / "covertype" / "covtype.data.gz"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"covtype.data.gz is truncated or damaged"):
        ap.data.covertype(verify=False)
    assert cache() == []


@pytest.mark.slow
@needs("covertype")
def test_covertype(real: Path) -> None:
    source = ap.data.covertype(classes=(1, 2))
    assert source.x.shape == (495_141, 54)
    assert torch.bincount(source.y).tolist() == [211_840, 283_301]
    assert source.sites is not None
    assert len(torch.bincount(source.sites)) == 4
    assert int(source.categories["soil"].max()) == 39


@pytest.mark.slow
@needs("covertype")
def test_all_of_covertype(real: Path) -> None:
    source = ap.data.covertype()
    assert source.x.shape == (581_012, 54)
    assert torch.bincount(source.y).tolist() == [211_840, 283_301, 35_754, 2747, 9493, 17_367, 20_510]
    assert source.sites is not None
    assert torch.bincount(source.sites).tolist() == [260_796, 29_884, 253_364, 36_968]
    assert source.x[0, :10].tolist() == [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279]


# heart disease

PATIENT = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,0"


@needs("heart_disease")
def test_heart_disease(real: Path) -> None:
    source = ap.data.heart_disease()
    assert source.x.shape == (920, len(HEART)) == (920, 30)
    assert source.x.isfinite().all()
    assert source.site_names == ("cleveland", "hungarian", "switzerland", "va")
    assert source.sites is not None
    assert torch.bincount(source.sites).tolist() == [303, 294, 123, 200]
    assert torch.bincount(source.y).tolist() == [411, 509]
    assert torch.bincount(ap.data.heart_disease(classes=5).y).tolist() == [411, 265, 109, 107, 28]
    column = dict(zip(HEART, source.x.T, strict=True))
    # 30 '?' and 172 zeros: every Swiss, 49 of Long Beach
    assert int(column["chol missing"].sum()) == 202
    assert (column["chol"][column["chol missing"] == 1] == 200).all()
    assert int(column["trestbps missing"].sum()) == 60
    # thal is missing in 2 + 266 + 52 + 166 patients: a row of zeros, and a kind of its own
    thal = torch.stack([column[f"thal={value}"] for value in (3, 6, 7)], 1)
    assert int((thal.sum(1) == 0).sum()) == 486
    assert int((source.categories["thal"] == 3).sum()) == 486
    assert column["age"][:2].tolist() == [63, 67]
    assert column["cp=1"][:2].tolist() == [1, 0]


def hearts(alone: Path, *lines: str) -> Source:
    (alone / "heart_disease").mkdir(exist_ok=True)
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        (alone / "heart_disease" / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return ap.data.heart_disease(verify=False)


def test_missing_findings(alone: Path) -> None:
    source = hearts(alone, PATIENT, "28,1,2,?,0,?,0,185,0,?,?,?,?,3")
    row = dict(zip(HEART, source.x[1].tolist(), strict=True))
    assert {name for name, value in row.items() if name.endswith("missing") and value} == {
        f"{name} missing" for name in ("trestbps", "chol", "oldpeak", "ca")
    }
    assert (row["trestbps"], row["chol"], row["thalach"], row["oldpeak"]) == (120, 200, 185, 0)
    assert sum(row[f"slope={value}"] for value in (1, 2, 3)) == 0
    assert source.y[:2].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (PATIENT[:-4], r"line 2 should be 14 numbers or '\?', the last from 0 to 4, got '63,1,1,145"),
        (PATIENT[:-1] + "9", r"line 2 should be 14 numbers or '\?', the last from 0 to 4"),
        (PATIENT[:-1] + "?", r"line 2 should be 14 numbers"),
        (PATIENT.replace("145", "high"), r"line 2 should be 14 numbers"),
        ("63,1,9" + PATIENT[6:], r"line 2 has cp=9. Known: \(1, 2, 3, 4\)"),
    ],
)
def test_damaged_hearts(alone: Path, line: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        hearts(alone, PATIENT, line)


def test_hearts_that_are_not_the_official_ones(alone: Path) -> None:
    hearts(alone, PATIENT)
    with pytest.raises(ValueError, match=r"processed.cleveland.data is not the official file"):
        ap.data.heart_disease()
    with pytest.raises(ValueError, match=r"classes should be 2 \(disease or not\) or 5"):
        ap.data.heart_disease(classes=3)


# eICU


@pytest.mark.slow
@needs("eicu_demo")
def test_eicu(real: Path) -> None:
    source = ap.data.eicu()
    # 2,520 stays; 2,205 have APACHE variables, 26 of which have no known end
    assert source.x.shape == (2179, len(STAY))
    assert source.x.isfinite().all()
    assert torch.bincount(source.y).tolist() == [1983, 196]
    assert len(source.site_names) == 186
    assert source.sites is not None
    assert int(torch.bincount(source.sites).max()) <= 40
    column = dict(zip(STAY, source.x.T, strict=True))
    assert (column["ph"][column["ph missing"] == 1] - 7.4).abs().max() < 1e-6
    assert 6.5 < float(column["ph"].min()) <= float(column["ph"].max()) < 8
    assert float(column["age"].max()) == 90
    assert ap.data.eicu(diagnoses=True).x.shape == (2179, len(STAY) + 239)
    with pytest.raises(ValueError, match=r"no hospital has more than 100 stays and a mortality of at most 0.2"):
        ap.data.eicu(admissions=100, mortality=0.2)
    some = ap.data.eicu(admissions=20, mortality=0.1)
    assert some.sites is not None
    counts = torch.bincount(some.sites)
    assert int(counts.min()) > 20
    assert (torch.bincount(some.sites, weights=some.y.double()) <= 0.1 * counts).all()


PATIENTS = """patientunitstayid,age,hospitalid,hospitaldischargestatus
2,> 89,73,Expired
10,50,73,Alive
3,40,264,Alive
4,,264,Alive
5,30,264,
"""


def stays(alone: Path, **changes: str) -> Source:
    measured = ",".join(NORMAL)
    support = ",".join(SUPPORT)
    history = ",".join(HISTORY)
    ids = (2, 10, 3, 4, 5)
    zeros = ",".join("0" for _ in HISTORY)
    tables = {
        "patient.csv.gz": PATIENTS,
        "apacheApsVar.csv.gz": f"patientunitstayid,{measured},{support}\n"
        + "".join(f"{stay},{','.join('-1' if stay == 2 else '7' for _ in NORMAL)},0,1,0\n" for stay in ids),
        "apachePredVar.csv.gz": f"patientunitstayid,{history},gender,admitsource,admitdiagnosis\n"
        + "".join(f"{stay},{zeros},{stay % 2},8,{'S-CABG' if stay == 3 else 'CHF'}\n" for stay in ids),
    }
    (alone / "eicu").mkdir(exist_ok=True)
    for name, text in (tables | changes).items():
        (alone / "eicu" / name).write_bytes(gzip.compress(text.encode()))
    return ap.data.eicu()


def test_stays(alone: Path) -> None:
    source = stays(alone)
    column = dict(zip(STAY, source.x.T.tolist(), strict=True))
    # by number of the stay: 2, 3, 4, 10
    assert column["age"] == [90, 40, 65, 50]
    assert column["female"] == [0, 1, 0, 0]
    assert column["sodium"] == [140, 7, 7, 7]
    assert column["sodium missing"] == [1, 0, 0, 0]
    assert column["operated"] == [0, 1, 0, 0]
    assert column["vent"] == [1, 1, 1, 1]
    assert column["admitsource=8"] == [1, 1, 1, 1]
    assert source.y.tolist() == [1, 0, 0, 0]
    assert source.sites is not None
    assert (source.sites.tolist(), source.site_names) == ([0, 1, 1, 0], ("73", "264"))
    assert ap.data.eicu(mortality=0.2).site_names == ("264",)


def test_damaged_stays(alone: Path) -> None:
    with pytest.raises(ValueError, match=r"patient.csv.gz is truncated or not a table of eICU: it lacks hospitalid"):
        stays(alone, **{"patient.csv.gz": PATIENTS.replace("hospitalid", "ward")})
    with pytest.raises(ValueError, match=r"patient.csv.gz is truncated .*: it lacks a part of a row"):
        stays(alone, **{"patient.csv.gz": PATIENTS + "6,20"})
    with pytest.raises(ValueError, match=r"it lacks age, hospitaldischargestatus, hospitalid, patientunitstayid"):
        stays(alone, **{"patient.csv.gz": ""})
    with pytest.raises(ValueError, match=r"mortality should be above 0 and at most 1, got 20"):
        ap.data.eicu(mortality=20)


# ISCX VPN


@pytest.mark.slow
@needs("iscx_vpn")
def test_iscx_vpn(real: Path) -> None:
    source = ap.data.iscx_vpn()
    assert source.x.shape == (8965 + 9793, 23)
    assert (source.classes, source.site_names) == (14, ("NO-VPN", "VPN"))
    assert source.sites is not None
    tables = [torch.bincount(source.y[source.sites == site], minlength=14).tolist() for site in range(2)]
    assert tables[0] == [2500, 890, 482, 249, 2826, 1000, 1018] + [0] * 7
    assert tables[1] == [0] * 7 + [2500, 1196, 475, 491, 2271, 928, 1932]
    shared = ap.data.iscx_vpn(strip="all")
    assert shared.classes == 7
    assert torch.bincount(shared.y).tolist() == [sum(pair) for pair in zip(tables[0][:7], tables[1][7:], strict=True)]
    mixed = ap.data.iscx_vpn(strip=("CHAT", "MAIL"))
    assert mixed.classes == 12
    assert mixed.sites is not None
    both = [torch.bincount(mixed.y[mixed.sites == site], minlength=12) > 0 for site in range(2)]
    assert [activities(("CHAT", "MAIL"))[k] for k in range(12) if both[0][k] and both[1][k]] == ["CHAT", "MAIL"]
    assert torch.equal(mixed.x, source.x)


@needs("iscx_vpn")
def test_the_first_scenario_of_iscx_vpn(real: Path) -> None:
    source = ap.data.iscx_vpn(scenario="A1")
    assert (source.x.shape, source.classes) == ((18_758, 23), 2)
    assert torch.bincount(source.y).tolist() == [8965, 9793]
    with pytest.raises(ValueError, match=r"labels of scenario A1 are captures, not activities"):
        ap.data.iscx_vpn(scenario="A1", strip="all")


def test_names_of_activities() -> None:
    assert activities() == ACTIVITIES + tuple(f"VPN-{name}" for name in ACTIVITIES)
    assert activities("all") == ACTIVITIES
    assert activities("CHAT") == ACTIVITIES + tuple(f"VPN-{name}" for name in ACTIVITIES if name != "CHAT")
    with pytest.raises(ValueError, match=r"strip should be one of BROWSING, CHAT, .* got 'CHATS'. Did you mean 'CHAT'"):
        activities(["CHATS"])


def arff(*rows: str) -> str:
    attributes = "".join(f"@ATTRIBUTE a{number} NUMERIC,,,\n" for number in range(23))
    return f"@RELATION <flows>,,\n,,,\n{attributes}@ATTRIBUTE class1 {{x}},,\n@DATA,,,\n" + "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            arff(",".join(["1"] * 23) + ",CHAT", "1,2"),
            r"line 29 should be 23 numbers and one of BROWSING, .* got '1,2'",
        ),
        (arff(",".join(["1"] * 23) + ",CHATTER"), r"line 28 should be 23 numbers and one of BROWSING"),
        (arff(",".join(["x"] * 23) + ",CHAT"), r"line 28 should be 23 numbers"),
        ("@DATA\n1,2", r"is not an ARFF file of this set: 0 attributes instead of 24"),
        (arff().replace("@DATA", ""), r"is not an ARFF file of this set: 24 attributes instead of 24, no @DATA"),
    ],
)
def test_damaged_flows(alone: Path, text: str, error: str) -> None:
    folder = alone / "iscx_vpn" / "Scenario A2-ARFF"
    folder.mkdir(parents=True)
    for capture in ("NO-VPN", "VPN"):
        (folder / f"TimeBasedFeatures-Dataset-15s-{capture}.arff").write_text(text)
    with pytest.raises(ValueError, match=error):
        ap.data.iscx_vpn()


def test_flows_that_are_not_there(alone: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)iscx_vpn: its files .*requires a registration"):
        ap.data.iscx_vpn()
