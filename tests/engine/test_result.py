"""Results as notebooks show them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from tidegate.engine.result import HTML_ROWS, Result


def test_a_table_for_a_notebook() -> None:
    table = pa.table({"item": ["<tea>", None], "price": [Decimal("1.50"), Decimal("2.00")], "new": [True, False]})
    assert Result(table)._repr_html_() == (
        "<table><thead><tr><th>item</th><th>price</th><th>new</th></tr></thead><tbody>"
        "<tr><td>&lt;tea&gt;</td><td align=right>1.50</td><td>True</td></tr>"
        "<tr><td><i>NULL</i></td><td align=right>2.00</td><td>False</td></tr></tbody></table><p>2 rows</p>"
    )


def test_a_long_result_says_how_much_is_shown() -> None:
    told = Result(pa.table({"n": range(1_500)}))._repr_html_()
    assert told.count("<tr>") == HTML_ROWS + 1
    assert told.endswith("<p>1,500 rows, 100 of them shown</p>")
