"""The applications of the papers on parallel stream processing, one file each."""
