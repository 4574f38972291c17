"""Asks every gpumon behind a name for /-/ready and /metrics. Run by `helm test` in gpumon's own image.

Arguments: http or https, the name, the port, and how often to try, every five seconds (default 12). A page that wants
credentials (401) counts as an answer, since there are none here. Certificates are not checked: they are of names, and
what is asked are addresses. Exit code 1: some did not answer, or there are none.
"""

import ssl
import sys
import time
import urllib.error
import urllib.request
from socket import SOCK_STREAM, gaierror, getaddrinfo

PAUSE_S = 5


def ask(scheme: str, address: str, port: str) -> str:
    """What is wrong there; empty: nothing."""
    host = f"[{address}]" if ":" in address else address
    context = ssl._create_unverified_context() if scheme == "https" else None  # noqa: S323 - see above
    for path, expected in (("/-/ready", b"ok"), ("/metrics", b"gpumon_build_info")):
        try:
            url = f"{scheme}://{host}:{port}{path}"
            with urllib.request.urlopen(url, timeout=10, context=context) as answer:  # noqa: S310 - http or https
                if expected not in answer.read():
                    return f"{path}: an answer without {expected.decode()}"
        except urllib.error.HTTPError as err:
            if err.code != 401:
                return f"{path}: {err.code} {err.read(200).decode(errors='replace').strip()}"
        except OSError as err:
            return f"{path}: {err}"
    return ""


def failures(scheme: str, name: str, port: str) -> list[str]:
    try:
        found = sorted({str(each[4][0]) for each in getaddrinfo(name, port, type=SOCK_STREAM)})
    except gaierror as err:
        return [f"{name}: {err}: no node runs gpumon, see nodeSelector and tolerations"]
    told = {address: ask(scheme, address, port) for address in found}
    sys.stdout.write("".join(f"{address}: {wrong or 'ok'}\n" for address, wrong in told.items()))
    return [f"{address}: {wrong}" for address, wrong in told.items() if wrong]


def main(scheme: str, name: str, port: str, tries: str = "12") -> int:
    for left in range(int(tries) - 1, -1, -1):
        wrong = failures(scheme, name, port)
        if not wrong:
            return 0
        if left:
            time.sleep(PAUSE_S)
    sys.stderr.write("\n".join(wrong) + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
