"""The state of windows: what is kept between batches, and saved with a checkpoint."""
