"""The hospital: waveforms raise alerts, doctors decide, and one list of medications stays right."""
