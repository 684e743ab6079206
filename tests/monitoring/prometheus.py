"""A real Prometheus with our rules, that scrapes what it is told to."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.fakes.waiting import eventually
from tests.monitoring.files import dashboards, queries, rule_files, rules, variable_queries
from tests.monitoring.promql import selectors

PROGRAM: Final = "prometheus"
LIMIT_S: Final = 30.0
Labels = Mapping[str, str]


class Prometheus:
    """The running program's HTTP interface."""

    def __init__(self, port: int, log: Path) -> None:
        self._log = log
        # one for all: httpx.get reads the system's certificates for every query
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            return self._client.get("/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, path: str, **fields: str) -> Any:
        """The data of an answer. Raises AssertionError for an error, with its words."""
        answer = self._client.get(f"/api/v1/{path}", params=fields)
        assert answer.status_code == 200, f"{fields}: {answer.text}"
        return answer.json()["data"]

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        data = self.ask("query", query=query)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def wait_for(self, query: str, limit_s: float = LIMIT_S) -> None:
        """Until a query has series."""
        eventually(lambda: self.series(query), limit_s)

    def targets(self) -> list[dict[str, Any]]:
        """Who is scraped, and with what result."""
        found: list[dict[str, Any]] = self.ask("targets", state="active")["activeTargets"]
        return found

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()


@contextmanager
def running_prometheus(
    folder: Path, scrape_configs: Sequence[Mapping[str, Any]]
) -> Iterator[Prometheus]:
    """Start it with our rules, evaluated each second; stop it at the end."""
    page = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rule_files()],
        "scrape_configs": list(scrape_configs),
    }
    config, log = folder / "prometheus.yaml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump(page))
    port = _free_port()
    command = [
        PROGRAM,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    one = Prometheus(port, log)
    try:

        def is_up() -> bool:
            assert process.poll() is None, one.log()
            return one.is_ready()

        eventually(is_up, LIMIT_S)
        yield one
    finally:
        one.close()
        process.terminate()
        process.wait(LIMIT_S)


def target(job: str, address: str, **labels: str) -> dict[str, Any]:
    """A job with one target, scraped as a ServiceMonitor of ours asks for."""
    return {
        "job_name": job,
        "honor_labels": True,
        "static_configs": [{"targets": [address], "labels": labels}],
    }


def everything_asked() -> Iterator[tuple[str, str]]:
    """(where, query) of every panel, variable and recording rule, and of each series of an alert.

    An alert's own expression is empty while all is well.
    """
    for name, board in dashboards().items():
        for title, query in queries(board):
            yield f"{name}: {title}", query
        for variable, series in variable_queries(board):
            yield f"{name}: ${variable}", series
    for rule in rules():
        if not rule.is_alert:
            yield rule.name, rule.expr
            yield rule.name, rule.name
        else:
            yield from ((rule.name, name) for name, _ in selectors(rule.expr))


def without_series(
    server: Prometheus, is_excused: Callable[[str], bool], limit_s: float = LIMIT_S
) -> list[tuple[str, str]]:
    """(where, query) of those that need series and are still answered without at the end.

    `is_excused`: whether a query names what can't occur here. Raises AssertionError for a query
    that is answered with an error.
    """
    left = list(dict.fromkeys(everything_asked()))
    assert [server.series(query) for _, query in left]  # an error is none of the time's
    end_s = time.monotonic() + limit_s
    while any(not is_excused(query) for _, query in left) and time.monotonic() < end_s:
        left = [each for each in left if not server.series(each[1])]
        time.sleep(0.5)
    return [(where, query) for where, query in left if not is_excused(query)]


def alerts_in_error(server: Prometheus) -> list[str]:
    """Rules that can't be evaluated."""
    return [
        f"{rule['name']}: {rule.get('lastError')}"
        for group in server.ask("rules")["groups"]
        for rule in group["rules"]
        if rule["health"] != "ok"
    ]


def firing(server: Prometheus) -> set[str]:
    """Names of alerts that are pending or firing."""
    return {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
