"""Looking around on the machine at hand: what is found is true, and nothing is left open or changed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpumon.config import Config, HostConfig, HttpConfig
from gpumon.doctor.surroundings import gather, gather_within
from gpumon.host.host_files import HostFiles

LOOPBACK = Config(http=HttpConfig(listen="127.0.0.1:0"))


def test_what_every_process_has() -> None:
    around = gather(LOOPBACK, HostFiles(), {"NVIDIA_VISIBLE_DEVICES": "all"})
    assert around.uid == os.geteuid()
    assert around.open_files != 0
    assert around.environ == {"NVIDIA_VISIBLE_DEVICES": "all"}
    assert around.bindings is not None
    assert around.listen == ""


def test_nothing_is_left_open() -> None:
    gather(LOOPBACK, HostFiles(), {})
    before = len(os.listdir("/proc/self/fd"))
    gather(LOOPBACK, HostFiles(), {})
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_character_devices_of_the_driver_count(tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia0").write_text("a plain file")
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "nvidia-uvm").symlink_to("/nowhere")
    (tmp_path / "null").symlink_to("/dev/null")
    nodes = gather(LOOPBACK, HostFiles(), {}, dev=str(tmp_path)).device_nodes
    assert [(node.name, node.usable) for node in nodes] == [("nvidiactl", True)]
    assert gather(LOOPBACK, HostFiles(), {}, dev="/nowhere").device_nodes == ()


def test_the_drivers_node_is_opened_only_if_that_is_allowed(tmp_path: Path) -> None:
    # /dev/tty without a terminal: its mode lets it be opened, opening it fails.
    (tmp_path / "nvidiactl").symlink_to("/dev/tty")
    code = (
        "import os; os.setsid()\n"
        "from gpumon.config import Config, HttpConfig\n"
        "from gpumon.doctor.surroundings import gather\n"
        "from gpumon.host.host_files import HostFiles\n"
        "config = Config(http=HttpConfig(listen='127.0.0.1:0'))\n"
        f"look = lambda allowed: gather(config, HostFiles(), {{}}, open_driver=allowed, dev={str(tmp_path)!r})\n"
        "print([look(allowed).device_nodes[0].usable for allowed in (True, False)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[False, True]\n"


def test_a_kernel_log_that_is_not_there_and_one_that_is_not_wanted() -> None:
    wanted = LOOPBACK.model_copy(update={"host": HostConfig(kernel_log=Path("/nowhere"))})
    error = gather(wanted, HostFiles(), {}).kernel_log
    assert error is not None
    unwanted = LOOPBACK.model_copy(update={"host": HostConfig(kernel_log=None)})
    assert gather(unwanted, HostFiles(), {}).kernel_log is None


def test_a_proc_that_shows_nothing_leaves_no_page_placement(tmp_path: Path) -> None:
    config = LOOPBACK.model_copy(update={"host": HostConfig(procfs=tmp_path)})
    assert gather(config, HostFiles(procfs=str(tmp_path)), {}).page_placement is not None


@pytest.mark.parametrize(
    ("body", "is_gpumon"), [(b"# TYPE gpumon_build info\ngpumon_build_info 1\n", True), (b"up 1\n", False)]
)
def test_what_holds_the_address_is_asked_whether_it_is_gpumon(body: bytes, is_gpumon: bool) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        config = Config(http=HttpConfig(listen=f"127.0.0.1:{server.server_port}"))
        around = gather(config, HostFiles(), {})
        thread.join(5)
    assert (around.listen != "", around.already_running) == (True, is_gpumon)


def test_something_on_the_address_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: server.accept()[0].close())
        thread.start()
        around = gather(Config(http=HttpConfig(listen=f"127.0.0.1:{server.getsockname()[1]}")), HostFiles(), {})
        thread.join(5)
    assert (around.listen != "", around.already_running) == (True, False)


def test_a_gpumon_that_runs_tries_neither_its_own_addresses_nor_a_child() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = Config(http=HttpConfig(listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        around = gather_within(config, HostFiles(), {})
        assert gather(config, HostFiles(), {}).listen != ""
    assert (around.listen, around.otlp_listen, around.kubelet) == ("", (), None)
    assert around.page_placement is None
    assert around.uid == os.geteuid()
