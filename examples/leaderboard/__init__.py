"""The S-Store voting benchmark: one vote per batch, three procedures in one nested transaction."""
