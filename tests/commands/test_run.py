"""``gpumon run`` and ``demo``: what they hand over. What they then do is tested in tests/e2e."""

from __future__ import annotations

import pytest

from tests.command_line import App, Invoke


@pytest.mark.parametrize(
    ("command", "scenario"),
    [("run", None), ("demo", "demo"), ("demo --scenario x.yaml", "x.yaml"), ("record x --demo", "demo")],
)
def test_run_and_demo_hand_over_the_configuration_and_a_way_to_read_it_again(
    invoke: Invoke, app: App, command: str, scenario: str | None
) -> None:
    assert invoke(*command.split(), "--listen", "127.0.0.1:0")[0] == 7
    assert [(config.http.listen, told) for config, told, _ in app.calls] == [("127.0.0.1:0", scenario)]
    assert app.reloaded == app.calls[0][0]
