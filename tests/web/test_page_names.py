"""The page calls causes as everything else does, from its first moment on."""

from __future__ import annotations

import re

from gpumon.catalogue import CAUSES, TITLES
from gpumon.web.pages import page_files


def test_causes_are_called_as_the_api_calls_them() -> None:
    text = page_files()["names.js"].body.decode().partition("const CAUSES = {")[2].partition("};")[0]
    assert dict(re.findall(r'(\w+): "([^"]*)",', text)) == {cause: TITLES[cause] for cause in CAUSES}
