"""Files: as a source, as a sink, and as a history to backfill."""
