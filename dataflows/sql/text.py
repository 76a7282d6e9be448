"""A text of SQL statements with the places of its words, so that an error can say where it is and what to write instead.

What our dialect adds (window functions over streams, ``WATERMARK``, ``EMIT`` …) is found among the tokens and replaced in the
text; what is left is DuckDB's SQL, untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import DeclarationError
from tidegate.storage.sql.parameters import for_sqlglot

OPEN = {TokenType.L_PAREN: TokenType.R_PAREN}
CLOSE = frozenset({TokenType.R_PAREN})


@dataclass(frozen=True)
class Text:
    """The whole text, and the file that it came from, if it did."""

    sql: str
    file: str | None = None

    def place(self, offset: int) -> str:
        """``line 3, column 7``."""
        before = self.sql[:offset]
        line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
        return f"{f'{self.file}, ' if self.file else ''}line {line}, column {column}"

    def refused(self, offset: int, why: str, instead: str) -> DeclarationError:
        """An error that says where, why, and what works."""
        line = self.sql[self.sql.rfind("\n", 0, offset) + 1 :].partition("\n")[0]
        return DeclarationError(f"{self.place(offset)}: {why}; {instead}\n  {line.strip()}", offset=offset)


@dataclass
class Piece:
    """A part of the text as tokens: a statement, a clause, the arguments of a call."""

    text: Text
    tokens: Sequence[Token]
    replaced: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end + 1

    def words(self, at: int, count: int = 1) -> tuple[str, ...]:
        """The next words from a place on, in upper case; a word of several ("PARTITION BY") counts as one."""
        return tuple(token.text.upper() for token in self.tokens[at : at + count])

    def says(self, at: int, *words: str) -> bool:
        return self.words(at, len(words)) == words

    def part(self, low: int, high: int) -> Piece:
        return Piece(self.text, self.tokens[low:high])

    def refused(self, at: int, why: str, instead: str) -> DeclarationError:
        token = self.tokens[min(at, len(self.tokens) - 1)]
        return self.text.refused(token.start, why, instead)

    def matching(self, at: int) -> int:
        """The place of the parenthesis that closes the one at this place."""
        depth = 0
        for place in range(at, len(self.tokens)):
            kind = self.tokens[place].token_type
            depth += (kind in OPEN) - (kind in CLOSE)
            if not depth:
                return place
        raise self.refused(at, "this parenthesis is never closed", "add ')'")

    def split(self, low: int, high: int) -> list[tuple[int, int]]:
        """The places between commas, outside of parentheses."""
        found, begin, depth = [], low, 0
        for place in range(low, high):
            kind = self.tokens[place].token_type
            depth += (kind in OPEN) - (kind in CLOSE)
            if kind is TokenType.COMMA and not depth:
                found.append((begin, place))
                begin = place + 1
        return [*found, (begin, high)] if begin < high else found

    def find(self, *words: str, low: int = 0) -> int | None:
        """The first place of these words outside of parentheses."""
        depth = 0
        for place in range(low, len(self.tokens)):
            kind = self.tokens[place].token_type
            if not depth and self.says(place, *words):
                return place
            depth += (kind in OPEN) - (kind in CLOSE)
        return None

    def replace(self, low: int, high: int, by: str) -> None:
        """Let the tokens from ``low`` to before ``high`` read ``by``."""
        self.replaced.append((self.tokens[low].start, self.tokens[high - 1].end + 1, by))

    def sql(self, low: int = 0, high: int | None = None) -> str:
        """The text of these tokens, with what was replaced."""
        last = len(self.tokens) if high is None else high
        if low >= last:
            return ""
        begin, end = self.tokens[low].start, self.tokens[last - 1].end + 1
        parts, at = [], begin
        for start, stop, by in sorted(self.replaced):
            if begin <= start and stop <= end:
                parts += [self.text.sql[at:start], by]
                at = stop
        return "".join([*parts, self.text.sql[at:end]])


def statements(text: Text) -> Iterable[Piece]:
    """The statements of a text, cut at semicolons."""
    try:
        tokens = DuckDB().tokenize(for_sqlglot(text.sql))
    except SqlglotError as error:
        raise DeclarationError(f"this text can't be read as SQL: {error}") from None
    begin = 0
    for place, token in enumerate([*tokens, None]):
        if token is None or token.token_type is TokenType.SEMICOLON:
            if place > begin:
                yield Piece(text, tokens[begin:place])
            begin = place + 1


def name_at(piece: Piece, at: int, what: str) -> str:
    """The name of what is declared here."""
    if at < len(piece.tokens):
        found = piece.tokens[at]
        if found.token_type is TokenType.IDENTIFIER or found.text.isidentifier():
            return found.text
    raise piece.refused(at, f"here the name of the {what} is missing", f"write it after CREATE {what.upper()}")


def text_at(piece: Piece, at: int, what: str) -> str:
    """The text in quotes at this place."""
    if at < len(piece.tokens) and piece.tokens[at].token_type is TokenType.STRING:
        return piece.tokens[at].text
    raise piece.refused(at, f"{what} takes a text", f"write {what} = '…'")


__all__ = ["Piece", "Text", "Token", "TokenType", "name_at", "statements", "text_at"]
