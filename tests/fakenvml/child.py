"""A child process with the real pynvml on the fake library, driven over a pipe by a test.

    with Child(node) as child:
        assert child("pynvml.nvmlDeviceGetPowerUsage(h[0])") == 76400

Run as a program it is the other end: it reads one JSON string of Python per line and answers with
the value of the last expression, or with the NVML error code that was raised.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.fakenvml.controller import FakeNode


class RaisedError(Exception):
    """The child's code raised: ``code`` of an NVMLError, otherwise None and its text."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Child:
    """``init`` runs nvmlInit and opens every GPU as ``h[index]`` (None where that fails)."""

    def __init__(self, node: FakeNode, *, init: bool = True, by_path: bool = True) -> None:
        env = node.env()
        if by_path:
            env.pop("LD_LIBRARY_PATH")
        root = Path(__file__).parents[2]
        env["PYTHONPATH"] = str(root)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.fakenvml.child import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=root, text=True,
        )  # fmt: skip
        if by_path:
            self(f"import ctypes; ctypes.CDLL({str(node.library)!r})")
        self("import pynvml, threading, time, math")
        if init:
            self("pynvml.nvmlInit(); h = open_all()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, code: str) -> Any:
        self.send(code)
        return self.answer()

    def send(self, code: str) -> None:
        """Without waiting: for calls that hang."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RaisedError(None, f"the child died with {self._process.wait()}")
        kind, value, text = json.loads(line)
        if kind == "raised":
            raise RaisedError(value, text)
        return value

    def code(self, code: str) -> int:
        """The NVML return code of the expression, 0 when it worked."""
        try:
            self(code)
        except RaisedError as raised:
            if raised.code is None:
                raise
            return raised.code
        return 0

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


def serve() -> None:
    """The child's loop."""
    import pynvml

    def open_all() -> list[Any]:
        handles: list[Any] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError:
                handles.append(None)
        return handles

    scope: dict[str, Any] = {"open_all": open_all}
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                value = eval(code, scope)
            except SyntaxError:
                exec(code, scope)
                value = None
            answer = ["value", value, ""]
        except pynvml.NVMLError as error:
            answer = ["raised", error.value, str(error)]
        except Exception as error:  # noqa: BLE001  # goes to the test as it is
            answer = ["raised", None, f"{type(error).__name__}: {error}"]
        sys.stdout.write(json.dumps(answer, default=repr) + "\n")
        sys.stdout.flush()
