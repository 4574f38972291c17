"""Reading a Dockerfile: what the image's has, and refusal of what this reader does not know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.dockerfile import Copy, DockerfileError, Run, parse

TEXT = r"""# a comment
ARG BASE=debian:12
FROM ${BASE} AS build
WORKDIR /src
COPY a b ./
COPY tree tree
# between
RUN one \
    # inside
    && two

FROM ${BASE}
ARG VERSION=1.2
LABEL title="some thing" \
      version="${VERSION}"
COPY --from=build /src/x /opt/x
ENV A=1 \
    B="two words"
USER 65534:65534
EXPOSE 80 81
ENTRYPOINT ["/bin/x", "-m"]
CMD ["run"]
"""


def test_stages_have_their_steps_in_order() -> None:
    first, last = parse(TEXT)
    assert (first.base, first.name, last.name) == ("debian:12", "build", "1")
    assert first.steps == [
        Copy(None, ("a", "b"), "/src/"),
        Copy(None, ("tree",), "/src/tree"),
        Run("one && two"),
    ]
    assert last.steps == [Copy("build", ("/src/x",), "/opt/x")]


def test_the_last_stage_says_how_it_starts() -> None:
    stage = parse(TEXT)[-1]
    assert {"A": "1", "B": "two words"}.items() <= stage.environment.items()
    assert stage.labels == {"title": "some thing", "version": "1.2"}
    assert (stage.user, stage.ports) == ("65534:65534", [80, 81])
    assert (stage.entrypoint, stage.command) == (["/bin/x", "-m"], ["run"])


@pytest.mark.parametrize(
    "line",
    [
        "ENTRYPOINT gpumon run",
        'CMD {"a": 1}',
        "COPY --chown=1 a b",
        "COPY a",
        "HEALTHCHECK CMD true",
        "ADD a b",
        "FROM a AS",
    ],
)
def test_what_is_not_known_is_refused(line: str) -> None:
    with pytest.raises(DockerfileError):
        parse(f"FROM base\n{line}\n")


@pytest.mark.parametrize("text", ["", "# nothing\n", "RUN early\nFROM base\n"])
def test_a_file_without_a_base_is_refused(text: str) -> None:
    with pytest.raises(DockerfileError):
        parse(text)


@given(st.text(alphabet='FROMCPYUNE ${}"[]\\\n-=ab/.#', max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert parse(f"FROM base\n{text}")
    except (DockerfileError, ValueError):  # shlex tells of an open quotation with a ValueError
        pass
