"""The PostgreSQL protocol, version 3, as far as reading clients need it."""
