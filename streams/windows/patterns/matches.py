"""What a procedure sees of a pattern after its batch was taken in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidegate.errors import MistakeError, near
from tidegate.storage.schema import Relation
from tidegate.streams.windows.patterns.plan import Node, PatternPlan, nodes
from tidegate.streams.windows.state.results import ResultRows, Slide


class Match:
    """A match, or a partial match whose time was over (``id`` None). ``match["f"]``: the rows bound to ``f``."""

    __slots__ = ("_node", "_plan", "id")

    def __init__(self, plan: PatternPlan, node: Node, number: int | None) -> None:
        self._plan = plan
        self._node = node
        self.id = number

    @property
    def rows(self) -> tuple[Any, ...]:
        """Its rows, in order."""
        return tuple([self._plan.shown(node[3]) for node in nodes(self._node)])

    @property
    def bound(self) -> tuple[tuple[str, Any], ...]:
        """Its rows, in order, each with what it was bound to."""
        positions = self._plan.automaton.positions
        return tuple([(positions[node[2]].variable, self._plan.shown(node[3])) for node in nodes(self._node)])

    @property
    def start(self) -> Any:
        """The time of its first row; without ``on=`` its number."""
        return self._plan.when(nodes(self._node)[0])

    @property
    def end(self) -> Any:
        """The time of its last row; without ``on=`` its number."""
        return self._plan.when(self._node)

    @property
    def key(self) -> tuple[Any, ...]:
        """The values of the ``by`` columns."""
        return self._plan.by_values(self._node[3])

    def __getitem__(self, variable: str) -> tuple[Any, ...]:
        known = self._plan.automaton.variables
        if variable not in known:
            raise MistakeError(f"the match has no rows called {variable!r}; {near(variable, known, 'there are')}")
        return tuple([row for name, row in self.bound if name == variable])

    def __repr__(self) -> str:
        return f"Match({self.id}, {', '.join(f'{name}={tuple(row)}' for name, row in self.bound)})"


class PatternSlide(Slide):
    """One execution's view of a pattern: ``matches`` and their ``results``, and partial matches that ``timed_out``."""

    __slots__ = ("_first", "_found", "_matches", "_over", "_plan", "_several")

    def __init__(
        self,
        added: Any,
        plan: PatternPlan,
        found: Sequence[Node],
        first: int,
        over: Sequence[Node],
        results: ResultRows,
        late: Sequence[Any],
        commit: Callable[[], None],
        held_back: Callable[[], int],
    ) -> None:
        super().__init__(added, (), results, len(found) + len(over), late, commit, held_back)
        self._plan = plan
        self._found = found
        self._first = first
        self._over = over
        self._matches: tuple[Match, ...] | None = None
        self._several = len(plan.relations) > 1

    @property
    def matches(self) -> tuple[Match, ...]:
        """The matches, made when they are asked for."""
        if self._plan.spec.aggregate:
            raise MistakeError(
                "the pattern has aggregate=, so no matches are made; read .results, or declare it without aggregate="
            )
        if self._matches is None:
            self._matches = tuple([Match(self._plan, node, n) for n, node in enumerate(self._found, self._first)])
        return self._matches

    @property
    def timed_out(self) -> tuple[Match, ...]:
        """The partial matches whose time was over with this batch, with ``timeout=True``."""
        return tuple([Match(self._plan, node, None) for node in self._over])

    @property
    def added(self) -> Any:
        """The rows that this batch brought; of several streams, those of each."""
        if not self._several:
            return Slide.added.fget(self)  # type: ignore[attr-defined]
        return tuple([getattr(side, "rows", side) for side in self._added])

    def shown_each(self, relation: Relation) -> Iterator[Any]:
        """The results, one match after another."""
        for row in self.rows:
            yield (row,)
