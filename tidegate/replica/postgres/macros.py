"""PostgreSQL's arithmetic as macros of DuckDB.

A quotient of ``numeric`` has as many digits as PostgreSQL gives it: at least 16 significant ones, counted in its groups of
four decimal digits. It is a DECIMAL(38,24) here; what does not fit into that is an error.
"""

from __future__ import annotations

from typing import Any

SCALE = 24
QUOTIENT = f"DECIMAL(38,{SCALE})"
_TOO_LONG = (
    "error('numeric field overflow: a numeric quotient has at most 14 digits before and 24 after the point here; cast to "
    "float8')"
)
_ZERO = "error('division by zero')"
_DIGITS = "ltrim(replace(CAST(abs({x}) AS VARCHAR), '.', ''), '0')"
_AFTER = "len(split_part(CAST({x} AS VARCHAR), '.', 2))"

MACROS = {
    "tg_quotient": f"(a, b) AS CASE WHEN b = 0 THEN {_ZERO} ELSE a // b END",
    "tg_remainder": f"(a, b) AS CASE WHEN b = 0 THEN {_ZERO} ELSE a % b END",
    "tg_float_quotient": f"(a, b) AS CASE WHEN b = 0 THEN {_ZERO} ELSE a / b END",
    "tg_finite": "(x) AS CASE WHEN x IS NULL OR isfinite(x) THEN x ELSE error('input is out of range') END",
    # a number's decimal digits, those after its point, its weight in groups of four, and its first group
    "tg_digits": f"(x) AS {_DIGITS.format(x='x')}",
    "tg_after": f"(x) AS {_AFTER.format(x='x')}",
    "tg_leading": "(x) AS len(tg_pg.tg_digits(x)) - 1 - tg_pg.tg_after(x)",
    "tg_weight": "(x) AS CASE WHEN x = 0 THEN 0 ELSE CAST(floor(tg_pg.tg_leading(x) / CAST(4 AS DOUBLE)) AS BIGINT) END",
    "tg_first": "(x) AS CASE WHEN x = 0 THEN 0 ELSE CAST(rpad(left(tg_pg.tg_digits(x), "
    "tg_pg.tg_leading(x) - 4 * tg_pg.tg_weight(x) + 1), CAST(tg_pg.tg_leading(x) - 4 * tg_pg.tg_weight(x) + 1 AS "
    "INTEGER), '0') AS INTEGER) END",
    "tg_scale": "(a, b) AS greatest(16 - 4 * (tg_pg.tg_weight(a) - tg_pg.tg_weight(b) - "
    "CASE WHEN tg_pg.tg_first(a) <= tg_pg.tg_first(b) THEN 1 ELSE 0 END), tg_pg.tg_after(a), tg_pg.tg_after(b), 0)",
    "tg_whole": f"(digits) AS coalesce(TRY_CAST(digits AS HUGEINT), {_TOO_LONG})",
    "tg_rounded": "(n, d) AS n // d + CASE WHEN n % d >= d - n % d THEN 1 ELSE 0 END",
    "tg_point": f"(q, scale) AS CASE WHEN scale <= {SCALE} THEN tg_pg.tg_whole(CAST(q AS VARCHAR) || "
    f"repeat('0', CAST({SCALE} - scale AS INTEGER))) WHEN q % tg_pg.tg_whole('1' || repeat('0', CAST(scale - {SCALE} AS "
    f"INTEGER))) = 0 THEN q // tg_pg.tg_whole('1' || repeat('0', CAST(scale - {SCALE} AS INTEGER))) ELSE {_TOO_LONG} END",
    "tg_divided": "(a, b, scale) AS CAST(CASE WHEN (a < 0) <> (b < 0) THEN -1 ELSE 1 END * tg_pg.tg_point("
    "tg_pg.tg_rounded(tg_pg.tg_whole('0' || tg_pg.tg_digits(a) || repeat('0', CAST(scale + tg_pg.tg_after(b) - "
    "tg_pg.tg_after(a) AS INTEGER))), tg_pg.tg_whole(tg_pg.tg_digits(b))), scale) AS DECIMAL(38,0)) * "
    f"CAST('0.{'0' * (SCALE - 1)}1' AS DECIMAL({SCALE},{SCALE}))",
    "tg_numeric_quotient": f"(a, b) AS CASE WHEN a IS NULL OR b IS NULL THEN NULL WHEN b = 0 THEN {_ZERO} WHEN a = 0 THEN 0 "
    "ELSE tg_pg.tg_divided(a, b, tg_pg.tg_scale(a, b)) END",
    "tg_average": "(total, n) AS CASE WHEN n = 0 THEN NULL ELSE tg_pg.tg_numeric_quotient(total, n) END",
    "tg_float_numeric": "(x) AS CASE WHEN x = 0 OR (abs(x) >= 0.001 AND abs(x) < 1e20) THEN "
    "CAST(printf('%.15g', CAST(x AS DOUBLE)) AS DECIMAL(38,18)) WHEN x IS NULL THEN NULL ELSE "
    "error('this number needs more digits than numeric has here: cast to numeric(p,s)') END",
    "tg_epoch": "(us) AS CAST(us AS DECIMAL(38,0)) * CAST('0.000001' AS DECIMAL(6,6))",
    "tg_json": "(x) AS CASE WHEN x IS NULL THEN NULL ELSE to_json(x) END",
    "tg_start": "(s, start, n) AS CASE WHEN n < 0 THEN error('negative substring length not allowed') ELSE "
    "substring(s, greatest(start, 1), greatest(n + least(start, 1) - 1, 0)) END",
}


def declare_macros(connection: Any) -> None:
    for name, body in MACROS.items():
        connection.execute(f"CREATE MACRO tg_pg.{name}{body}")
