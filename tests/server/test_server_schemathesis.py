"""Whatever the OpenAPI document allows, and much that it does not, is answered without a server error."""

from __future__ import annotations

from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.control import SkipTest
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_process import Server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def _probe(server: Server, examples: int, mode: GenerationMode) -> int:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    schema.config.generation.update(modes=[mode])
    probed = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events") or operation.path == "/v1/procedures/linger":
            continue  # they last as long as they are asked to

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def probe(case: schemathesis.Case) -> None:
            if "timeout_s" in (case.query or {}) and case.method.upper() == "POST":
                case.query["timeout_s"] = 0.01  # an alert waits for its doctor for as long as it is told to
            case.call_and_validate(checks=CHECKS, timeout=20)

        with suppress(SkipTest):  # there is nothing to get wrong, so no wrong request to make
            probe()
        probed += 1
    return probed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_a_server_error(shared: Server, mode: GenerationMode) -> None:
    assert _probe(shared, 6, mode) > 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_a_server_error_at_length(shared: Server, mode: GenerationMode) -> None:
    assert _probe(shared, 150, mode) > 20
