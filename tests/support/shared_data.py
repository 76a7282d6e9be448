"""Where the shared records are: beside the checkout, or beside the folder it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT.parent / "shared" / "data", ROOT.parent.parent / "shared" / "data"]
DATA = next((place for place in PLACES if place.is_dir()), PLACES[0])
PAP = DATA / "mimic3_pap_waveforms"
CLINICAL = DATA / "mimic3_demo_clinical"
WFDB = DATA / "wfdb_samples" / "original"

needs_pap = pytest.mark.skipif(not PAP.is_dir(), reason="the shared PAP waveforms are not beside this checkout")
needs_clinical = pytest.mark.skipif(
    not CLINICAL.is_dir(), reason="the shared MIMIC-III charts are not beside this checkout"
)
needs_wfdb = pytest.mark.skipif(not WFDB.is_dir(), reason="the shared WFDB samples are not beside this checkout")
