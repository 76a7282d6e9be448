"""Hand hygiene in an intensive care unit: who touched a patient without clean hands, told while it can still be mended."""
