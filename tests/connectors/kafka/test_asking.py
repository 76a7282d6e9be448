"""Requests to brokers that do not answer are made in short turns."""

from __future__ import annotations

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from tidegate.connectors.kafka.offsets import TURN_S, asked  # noqa: E402


def test_an_answer_of_a_later_turn_counts() -> None:
    turns: list[float] = []

    def ask(turn_s: float) -> str:
        turns.append(turn_s)
        if len(turns) < 3:
            raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))
        return "here"

    assert asked(ask, 60) == "here"
    assert turns == [TURN_S] * 3


@pytest.mark.parametrize(
    ("code", "stopped"),
    [(confluent_kafka.KafkaError._TRANSPORT, True), (confluent_kafka.KafkaError._AUTHENTICATION, False)],
)
def test_it_ends_when_stopped_and_at_an_answer_that_is_an_error(code: int, stopped: bool) -> None:
    turns: list[float] = []

    def ask(turn_s: float) -> None:
        turns.append(turn_s)
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))

    with pytest.raises(confluent_kafka.KafkaException):
        asked(ask, 60, lambda: stopped)
    assert len(turns) == 1


def test_an_interrupt_passes_between_two_turns() -> None:
    def ask(turn_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asked(ask, 60)
