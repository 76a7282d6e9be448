"""An app that has changed since its directory was written: what becomes of everything that is stored."""
