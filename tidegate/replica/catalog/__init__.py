"""The PostgreSQL catalog as clients look for it: tables, functions, and the rewriting of queries that use them."""
