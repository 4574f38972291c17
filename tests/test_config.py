"""The configuration: what is refused and in which words, what wins over what, and that nothing else ever gets out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpumon.config import Config, ProcessesConfig, ServersConfig
from gpumon.config_keys import FLAGS, keys
from gpumon.config_load import ConfigError, load
from gpumon.config_types import Address, parse_listen, parse_ports
from gpumon.docs import render_config_yaml


def problems_of(text: str | bytes, tmp_path: Path, environ: dict[str, str] | None = None) -> list[str]:
    """What a file is refused for, with the folder left out of the file's name."""
    path = tmp_path / "gpumon.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, {})
    return str(caught.value).replace(f"{tmp_path}/", "").split("\n")


def loaded(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "gpumon.yaml"
    path.write_text(text)
    return load(path, {}, {})


def test_nothing_given_is_all_defaults() -> None:
    assert load(None, {}, {}) == Config()
    assert Config().http.address == Address("0.0.0.0", 9450)


def test_every_key_has_a_default_a_meaning_and_an_expectation() -> None:
    for key in keys():
        assert not key.field.is_required(), key.path
        assert key.field.description, key.path
        assert "None" not in key.expected, key.path


def test_defaults_pass_their_own_rules(tmp_path: Path) -> None:
    assert loaded(render_config_yaml(Config()), tmp_path) == Config()


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n", "http:\n", "http:\n  # listen: x\n", "{}"])
def test_empty_files_and_sections_are_all_defaults(text: str, tmp_path: Path) -> None:
    assert loaded(text, tmp_path) == Config()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes(b"\xef\xbb\xbflog: {level: debug}\n")
    assert load(tmp_path / "c.yaml", {}, {}).log.level == "debug"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cadence:\n  fast_s: 9\n", "cadence.fast_s = 9 (gpumon.yaml:2): expected a number from 0.02 to 5"),
        ("cadence: {fast_s: '0.1'}", 'cadence.fast_s = "0.1" (gpumon.yaml:1): expected a number from 0.02 to 5'),
        ("cadence: {fast_s: .nan}", "cadence.fast_s = NaN (gpumon.yaml:1): expected a number from 0.02 to 5"),
        ("cadence: {slow_s: .inf}", "cadence.slow_s = Infinity (gpumon.yaml:1): expected a number from 0.5 to 300"),
        ("cadence: {fast_s: true}", "cadence.fast_s = true (gpumon.yaml:1): expected a number from 0.02 to 5"),
        ("cadence: {fast_s: null}", "cadence.fast_s = null (gpumon.yaml:1): expected a number from 0.02 to 5"),
        ("processes: {limit: 5.0}", "processes.limit = 5.0 (gpumon.yaml:1): expected a whole number from 1 to 256"),
        ("processes: {limit: 0}", "processes.limit = 0 (gpumon.yaml:1): expected a whole number from 1 to 256"),
        ("explain: {delay_s: 1}", "explain.delay_s = 1 (gpumon.yaml:1): expected a number from 2 to 60"),
        ("explain: {enabled: 0}", "explain.enabled = 0 (gpumon.yaml:1): expected true or false"),
        ("explain: {delay: 8}", "explain.delay (gpumon.yaml:1): unknown key; did you mean explain.delay_s?"),
        ("http: {ui: yes}", 'http.ui = "yes" (gpumon.yaml:1): expected true or false'),
        ("http: {ui: 1}", "http.ui = 1 (gpumon.yaml:1): expected true or false"),
        ("log: {format: xml}", 'log.format = "xml" (gpumon.yaml:1): expected one of text, json'),
        ("log: {level: DEBUG}", 'log.level = "DEBUG" (gpumon.yaml:1): expected one of debug, info, warning, error'),
        ("host: {procfs: 3}", "host.procfs = 3 (gpumon.yaml:1): expected a path"),
        ("host: {procfs: null}", "host.procfs = null (gpumon.yaml:1): expected a path"),
        ('host: {procfs: ""}', 'host.procfs = "" (gpumon.yaml:1): expected a path: it is empty'),
        ("nvml: {library: ''}", 'nvml.library = "" (gpumon.yaml:1): expected a path or library name, or null'),
        (
            "http: {listen: 9450}",
            "http.listen = 9450 (gpumon.yaml:1): expected HOST:PORT, [IPV6]:PORT or :PORT",
        ),
        (
            "http: {listen: 'host'}",
            'http.listen = "host" (gpumon.yaml:1): expected HOST:PORT, [IPV6]:PORT or :PORT: there is no port',
        ),
        (
            "processes:\n  servers:\n    - vllm\n    - /(/\n",
            'processes.servers[1] = "/(/" (gpumon.yaml:2): expected a list of at most 64 command names or /regular '
            'expressions/: "/(/" is not a regular expression: missing ), unterminated subpattern at position 0',
        ),
        (
            "processes: {servers: vllm}",
            'processes.servers = "vllm" (gpumon.yaml:1): expected a list of at most 64 command names or /regular '
            "expressions/",
        ),
        ("cadence:\n  fasts: 1\n", "cadence.fasts (gpumon.yaml:2): unknown key; did you mean cadence.fast_s?"),
        ("cadance: {}\n", "cadance (gpumon.yaml:1): unknown section; did you mean cadence?"),
        (
            "zzz: {}\n",
            "zzz (gpumon.yaml:1): unknown section; known are http, nvml, host, cadence, processes, numa, kubernetes, "
            "store, otlp, requests, forward, export, servers, detect, explain, state, recorder, proxy, log",
        ),
        (
            "kubernetes: {labels: [app], api: false}",
            "kubernetes: labels need api: true",
        ),
        (
            "kubernetes: {api: true, labels: [app.kubernetes.io/name, 'a b']}",
            'kubernetes.labels[1] = "a b" (gpumon.yaml:1): expected a list of at most 32 keys of labels: "a b" is not '
            "the key of a label",
        ),
        (
            "servers: {ports: [8000, 9-8]}",
            'servers.ports[1] = "9-8" (gpumon.yaml:1): expected a list of at most 64 ports or ranges such as '
            '30000-30010: "9-8" is not from 1 to 65535, the lower first',
        ),
        (
            "servers: {exclude_ports: [http]}",
            'servers.exclude_ports[0] = "http" (gpumon.yaml:1): expected a list of at most 64 ports or ranges such as '
            '30000-30010: "http" is neither a port nor a range of ports',
        ),
        ("http: 5\n", "http = 5 (gpumon.yaml:1): expected keys and values below it"),
        ("http: [listen]\n", 'http = ["listen"] (gpumon.yaml:1): expected keys and values below it'),
        ("- 5\n", "gpumon.yaml:1: expected sections such as `http:`, got [5]"),
        ("5", "gpumon.yaml:1: expected sections such as `http:`, got 5"),
        (
            "nvml: {retry_min_s: 100}",
            "nvml: retry_min_s = 100 is above retry_max_s = 60: expected it at or below",
        ),
        (
            "cadence: {publish_s: 0.1, fast_s: 1}",
            "cadence: fast_s = 1 is above publish_s = 0.1: expected it at or below",
        ),
    ],
)
def test_a_wrong_value_is_one_line_with_key_value_place_and_expectation(
    text: str, expected: str, tmp_path: Path
) -> None:
    assert problems_of(text, tmp_path) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http:\n  ui: true\n  ui: false\n", "gpumon.yaml:3: key 'ui' stands twice, first on line 2"),
        ("http: {}\nlog: {}\nhttp: {}\n", "gpumon.yaml:3: key 'http' stands twice, first on line 1"),
        ("http:\n ui: {\n", "gpumon.yaml:3: "),
        ("http:\n\tui: true\n", "gpumon.yaml:2: "),
        ("a: 1\n---\nb: 2\n", "gpumon.yaml:2: "),
        ("5: 1\n", "gpumon.yaml:1: a key must be text"),
        ("? [a]\n: 1\n", "gpumon.yaml:1: a key must be text"),
        ("log: &x {level: info}\nhttp: *x\n", "gpumon.yaml:2: aliases (*name) are not supported"),
        ("a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "gpumon.yaml:2: aliases (*name) are not supported"),
        ("log: !!python/object/apply:os.system [id]\n", "gpumon.yaml:1: tag 'tag:yaml.org,2002:python/object/apply"),
        ("log: !mine {level: info}\n", "gpumon.yaml:1: tag '!mine' is not supported"),
        ("x: !!int abc\n", "gpumon.yaml:1: 'abc' is not a value of tag !!int"),
        ("x: !!binary aGk=\n", "gpumon.yaml:1: tag 'tag:yaml.org,2002:binary' is not supported"),
        ("x: " + "9" * 5000, "gpumon.yaml:1: number of 5000 digits"),
        ("\n\nx: \x01\n", "gpumon.yaml:3: character 1 is not allowed"),
        ('x: "\\uD800"\n', "gpumon.yaml:1: "),
        ('x: "\\UFFFFFFFF"\n', "gpumon.yaml:1: not YAML: "),
        ("x: " + "[" * 900, "gpumon.yaml:1: nested deeper than 8 levels"),
        ("- " * 20_000, "gpumon.yaml:1: nested deeper than 8 levels"),
        (b"log:\n  level: \xff\n", "gpumon.yaml:2: not UTF-8 (byte 0xff)"),
        ("#" * 70_000, "gpumon.yaml: larger than 65536 bytes"),
    ],
)
def test_what_is_not_plain_yaml_is_one_line_with_its_place(text: str | bytes, expected: str, tmp_path: Path) -> None:
    (problem,) = problems_of(text, tmp_path)
    assert problem.startswith(expected)
    assert len(problem) < 250


def test_files_that_cannot_be_read_are_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path / "none": f"{tmp_path}/none: No such file or directory",
        tmp_path: f"{tmp_path}: Is a directory",
        tmp_path / "pipe": f"{tmp_path}/pipe: not a regular file",
        Path("/dev/zero"): "/dev/zero: not a regular file",
        Path("a\0b"): "'a\\x00b': not a path",
        tmp_path / ("x" * 300): f"{tmp_path}/{'x' * 300}: File name too long",
    }
    for path, expected in cases.items():
        with pytest.raises(ConfigError) as caught:
            load(path, {}, {})
        assert str(caught.value) == expected


def test_a_file_that_may_not_be_read_is_one_line() -> None:
    # A regular file that nobody may open for reading, not even root.
    path = Path("/proc/sys/vm/drop_caches")
    with pytest.raises(ConfigError, match=r"\A/proc/sys/vm/drop_caches: Permission denied\Z"):
        load(path, {}, {})


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    text = "http: {listen: x, uii: true}\ncadence: {fast_s: 0}\nlog: {level: loud}\n"
    lines = problems_of(text, tmp_path, {"GPUMON_NUMA__EXACT": "maybe", "GPUMON_NUMB": "1"})
    assert [line.split(" ")[0].rstrip(":") for line in lines] == [
        "http.uii",
        "GPUMON_NUMB",
        "http.listen",
        "cadence.fast_s",
        "numa.exact",
        "log.level",
    ]


def test_the_later_source_wins_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("http: {listen: 'a:1', ui: false}\nlog: {level: debug, format: json}\n")
    environ = {"GPUMON_HTTP__LISTEN": "b:2", "GPUMON_LOG__LEVEL": "error", "PATH": "/bin"}
    config = load(path, environ, {"--listen": "c:3", "--log-level": None})
    assert (config.http.listen, config.http.ui) == ("c:3", False)
    assert (config.log.level, config.log.format) == ("error", "json")


@given(st.dictionaries(st.sampled_from(["file", "environ", "flag"]), st.integers(0, 65535), max_size=3))
def test_precedence_is_file_then_environment_then_flag(
    tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]
) -> None:
    listen = {place: f"{place}:{port}" for place, port in ports.items()}
    file = tmp_path_factory.getbasetemp() / "precedence.yaml"
    file.write_text(yaml.safe_dump({"http": {"listen": listen["file"]}} if "file" in listen else {}))
    environ = {"GPUMON_HTTP__LISTEN": listen["environ"]} if "environ" in listen else {}
    winner = next((listen[place] for place in ("flag", "environ", "file") if place in listen), "0.0.0.0:9450")
    assert load(file, environ, {"--listen": listen.get("flag")}).http.listen == winner


@pytest.mark.parametrize(
    ("variable", "text", "path", "expected"),
    [
        ("GPUMON_HTTP__LISTEN", "[::1]:0", "http.listen", "[::1]:0"),
        ("GPUMON_HTTP__ADMIN", "true", "http.admin", True),
        ("GPUMON_CADENCE__FAST_S", "1e-1", "cadence.fast_s", 0.1),
        ("GPUMON_CADENCE__SLOW_S", "7", "cadence.slow_s", 7.0),
        ("GPUMON_PROCESSES__LIMIT", "0x10", "processes.limit", 16),
        ("GPUMON_PROCESSES__SERVERS", "[vllm, '/^sgl/']", "processes.servers", ("vllm", "/^sgl/")),
        ("GPUMON_HOST__KERNEL_LOG", "null", "host.kernel_log", None),
        ("GPUMON_HOST__KERNEL_LOG", "", "host.kernel_log", None),
        ("GPUMON_HOST__PROCFS", "/a b #c", "host.procfs", Path("/a b #c")),
        ("GPUMON_NVML__LIBRARY", "12", "nvml.library", "12"),
        ("GPUMON_LOG__FORMAT", "json", "log.format", "json"),
    ],
)
def test_the_environment_is_text_where_text_is_wanted_else_yaml(
    variable: str, text: str, path: str, expected: object
) -> None:
    section, name = path.split(".")
    assert getattr(getattr(load(None, {variable: text}, {}), section), name) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {"GPUMON_CADENCE__FASTS": "1"},
            "GPUMON_CADENCE__FASTS: unknown variable; did you mean GPUMON_CADENCE__FAST_S?",
        ),
        ({"GPUMON_HTTP_LISTEN": ":1"}, "GPUMON_HTTP_LISTEN: unknown variable; did you mean GPUMON_HTTP__LISTEN?"),
        ({"GPUMON_": "1"}, "GPUMON_: unknown variable"),
        (
            {"GPUMON_PROCESSES__LIMIT": "["},
            'processes.limit = "[" (GPUMON_PROCESSES__LIMIT): expected a whole number from 1 to 256',
        ),
        (
            {"GPUMON_LOG__LEVEL": "loud\nline"},
            'log.level = "loud\\nline" (GPUMON_LOG__LEVEL): expected one of debug, info, warning, error',
        ),
    ],
)
def test_a_wrong_variable_is_one_line(environ: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, environ, {})
    assert str(caught.value) == expected


def test_variables_that_kubernetes_makes_for_a_service_called_gpumon_are_left_alone() -> None:
    environ = {
        "GPUMON_SERVICE_HOST": "10.0.0.1",
        "GPUMON_SERVICE_PORT": "9450",
        "GPUMON_SERVICE_PORT_HTTP_METRICS": "9450",
        "GPUMON_PORT": "tcp://10.0.0.1:9450",
        "GPUMON_PORT_9450_TCP": "tcp://10.0.0.1:9450",
        "GPUMON_PORT_9450_TCP_ADDR": "10.0.0.1",
        "GPUMON_METRICS_SERVICE_HOST": "10.0.0.2",
    }
    assert load(None, environ, {}) == Config()


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_sets_its_key(flag: str) -> None:
    value = {
        "--listen": "h:1",
        "--otlp-grpc": "h:2",
        "--otlp-http": "h:3",
        "--log-format": "json",
        "--log-level": "error",
    }.get(flag, "/x")
    section, name = FLAGS[flag].split(".")
    assert str(getattr(getattr(load(None, {}, {flag: value}), section), name)) == value


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r'\Alog\.format = "xml" \(--log-format\): expected one of text, json\Z'):
        load(None, {}, {"--log-format": "xml"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:0", Address("::1", 0)),
        ("[::]:9450", Address("::", 9450)),
        (":9450", Address("0.0.0.0", 9450)),
        ("localhost:65535", Address("localhost", 65535)),
        ("node-1.example:80", Address("node-1.example", 80)),
    ],
)
def test_addresses_are_taken_apart(text: str, expected: Address) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("port", ["", ":", ":-1", ":65536", ":000000070000", ":٣", ":1 ", ":1\n", ": 1", ":0x1", ":+1"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="port"):
        parse_listen("h" + port)


@pytest.mark.parametrize(
    "host",
    ["::1", "http://h", " ", "h\n", "[", "[h]", "[::1", "[::g]", "1.2.3", "1.2.3.400", "a b", "-h", "h/x", ".", "h\0"],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_listen(host + ":1")


def test_servers_are_exact_names_or_patterns_between_slashes() -> None:
    patterns = ProcessesConfig(servers=("v.lm", "text-generation-launcher", "/VLLM.*/")).server_patterns
    assert patterns == (re.compile(r"v\.lm"), re.compile(r"text\-generation"), re.compile("VLLM.*"))


def test_ports_of_servers_are_numbers_and_ranges() -> None:
    servers = ServersConfig.model_validate({"ports": [80, "8000-8010"], "exclude_ports": ["8001"]})
    assert servers.asked == (range(80, 81), range(8000, 8011))
    assert servers.excluded == (range(8001, 8002),)


@pytest.mark.parametrize("text", ["0", "65536", "1-65536", "-1", "8000-", "8000-8001-8002", "٣", "", " 80"])
def test_what_is_no_range_of_ports_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|from 1 to 65535"):
        parse_ports(text)


def test_servers_whose_gpus_are_given_are_regular_expressions() -> None:
    assert load(None, {"GPUMON_REQUESTS__GPUS": "{'vllm-.*': [GPU-1]}"}, {}).requests.gpus == {"vllm-.*": ("GPU-1",)}
    with pytest.raises(ConfigError, match=r"requests\.gpus.*not a regular expression"):
        load(None, {"GPUMON_REQUESTS__GPUS": "{'vllm-(': [GPU-1]}"}, {})


@pytest.mark.parametrize("text", ["", "//", "/", "/a", "x" * 201, "/" + "a" * 300 + "/", "/a{99999999999}/", "/*/"])
def test_servers_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        load(None, {"GPUMON_PROCESSES__SERVERS": yaml.safe_dump([text])}, {})


def test_odd_patterns_are_taken_without_a_warning() -> None:
    assert load(None, {"GPUMON_PROCESSES__SERVERS": "['/[[a]/']"}, {}).processes.servers == ("/[[a]/",)


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().http.ui = False


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(max_size=20),
    st.dates(),
    st.lists(st.text(), max_size=3),
    st.dictionaries(st.text(), st.integers(), max_size=3),
)


@given(st.sampled_from([key.path for key in keys()]), scalars)
def test_any_value_of_any_key_is_taken_or_refused_in_plain_lines(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: object
) -> None:
    section, name = path.split(".")
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump({section: {name: value}}, allow_unicode=True), encoding="utf-8")
    check_outcome(file, {})


@given(st.one_of(st.text(), st.text(alphabet="{}[]:,-?&*!|>'\"%@`#\n\t ab0.~\\xuU")))
def test_any_text_as_a_file_is_taken_or_refused_in_plain_lines(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "text.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    check_outcome(file, {})


@given(st.binary(max_size=200))
def test_any_bytes_as_a_file_are_taken_or_refused_in_plain_lines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(content)
    check_outcome(file, {})


@given(st.sampled_from([key.variable for key in keys()]), st.text())
def test_any_text_in_any_variable_is_taken_or_refused_in_plain_lines(variable: str, text: str) -> None:
    check_outcome(None, {variable: text})


@given(st.text().map(lambda text: "GPUMON_" + text), st.text())
def test_any_variable_is_taken_or_refused_in_plain_lines(variable: str, text: str) -> None:
    check_outcome(None, {variable: text})


def check_outcome(file: Path | None, environ: dict[str, str]) -> None:
    """Taken: what comes out is within every rule. Refused: lines that a terminal shows as lines, none endless."""
    try:
        config = load(file, environ, {})
    except ConfigError as err:
        refusal = str(err)
    else:
        assert Config.model_validate(config.model_dump()) == config
        return
    for line in refusal.split("\n"):
        assert line.isprintable()
        assert len(line) < 400
        assert re.search(r": \S", line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("proxy: {upstream: 'server:8000'}", "expected http(s)://HOST:PORT, perhaps with a path"),
        ("proxy: {tenant_header: 'x tenant'}", "expected the name of a header"),
        *(
            (f"proxy: {{{key}: {name}}}", f'proxy.{key} = "{name}"')
            for key in ("tenant_header", "inference_header")
            for name in (
                *("authorization", "Proxy-Authorization", "cookie", "x-api-key", "api-key", "apikey", "X-Auth-Token"),
                *("ocp-apim-subscription-key", "x-goog-iap-jwt-assertion", "x-amzn-oidc-accesstoken"),
            )
        ),
        ("proxy: {tenant_header: cookie}", "it holds credentials, and what it says would be sent with every trace"),
        ("proxy: {inject: token:20ms}", "expected a list of at most 16 rules"),
        ("proxy: {service_name: ''}", "expected a text of 1 to 128 characters"),
        ("proxy: {peek_bytes: 1}", "expected a whole number from 1024 to 67108864"),
        ("proxy: {inject_seed: 1.5}", "expected a whole number or null"),
    ],
)
def test_of_the_proxy_what_cannot_be_is_refused_with_what_was_expected(text: str, words: str, tmp_path: Path) -> None:
    (problem,) = problems_of(text, tmp_path)
    assert words in problem


@pytest.mark.parametrize("name", ["x-tenant-id", "x-key-account", "x-token-budget", "x-authored-by", "openai-project"])
def test_headers_that_hold_no_credentials_may_name_the_tenant(name: str, tmp_path: Path) -> None:
    path = tmp_path / "gpumon.yaml"
    path.write_text(f"proxy: {{tenant_header: {name}}}")
    assert load(path, {}, {}).proxy.tenant_header == name


@pytest.mark.parametrize("key", ["proxy.otlp_headers", "forward.headers", "export.headers"])
@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ('{x-key: "s3cret\\r\\nX: y"}', "the value of x-key is not one line of printable Latin-1"),
        ('{x-key: "s3cret\\n"}', "the value of x-key is not one line of printable Latin-1"),
        ('{x-key: "s3cret€"}', "the value of x-key is not one line of printable Latin-1"),
        ('{"x-key\\r\\nX": s3cret}', '"x-key\\r\\nX" is not the name of a header'),
        ('{"x key": s3cret}', '"x key" is not the name of a header'),
        ('{"": s3cret}', '"" is not the name of a header'),
        ('{"ключ": s3cret}', "is not the name of a header"),
        ("{x-key: [s3cret]}", "headers[x-key] ("),
        ("s3cret", "expected a map of texts"),
    ],
)
def test_a_header_that_cannot_be_sent_is_named_and_what_it_says_is_not(
    key: str, headers: str, words: str, tmp_path: Path
) -> None:
    section, name = key.split(".")
    (problem,) = problems_of(f"{section}: {{{name}: {headers}}}", tmp_path)
    assert problem.startswith(key)
    assert words in problem
    assert "s3cret" not in problem


def test_a_header_in_latin_1_can_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "gpumon.yaml"
    path.write_text('proxy: {otlp_headers: {Authorization: "Bearer caf\u00e9\tx"}}', encoding="utf-8")
    assert load(path, {}, {}).proxy.otlp_headers == {"Authorization": "Bearer caf\u00e9\tx"}


def test_headers_from_the_environment_that_are_no_yaml_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"GPUMON_PROXY__OTLP_HEADERS": "{x-key: 's3cret"}, {})
    assert str(caught.value).startswith("proxy.otlp_headers (GPUMON_PROXY__OTLP_HEADERS): expected a map of texts")
    assert "s3cret" not in str(caught.value)
