"""What a health check found: its findings, its metrics and its status.

The status is the worst finding. Four outputs: the line of a Nagios plugin (the exit code is 0, 1, 2 or 3),
the Prometheus text format (exit code 0), JSON, and text for people.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CheckStatus(StrEnum):
    """Status of a check."""

    OK = "OK"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"


class CheckFormat(StrEnum):
    """Output format of a check."""

    NAGIOS = "nagios"
    JSON = "json"
    PROMETHEUS = "prometheus"
    TEXT = "text"


EXIT_CODES = {CheckStatus.OK: 0, CheckStatus.WARNING: 1, CheckStatus.CRITICAL: 2, CheckStatus.UNKNOWN: 3}


@dataclass(frozen=True)
class CheckMetric:
    """One measured value. warn, crit: its thresholds, 0 for none. unit: "s", "B", "%" or ""."""

    name: str
    value: float
    help: str = ""
    unit: str = ""
    warn: float = 0
    crit: float = 0

    def text(self) -> str:
        """Performance data as Nagios reads it: `rtt=0.0012s;0.5000;1.0000`."""
        digits = 4 if self.unit == "s" else 0
        text = f"{self.name}={self.value:.{digits}f}{self.unit}"
        if self.warn or self.crit:
            text += f";{self.warn:.{digits}f}" if self.warn else ";"
        if self.crit:
            text += f";{self.crit:.{digits}f}"
        return text


@dataclass
class CheckResult:
    """The result of one check.

    suite: the kind of check, part of the names of Prometheus metrics. name: what was checked.
    """

    suite: str
    name: str
    criticals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    oks: list[str] = field(default_factory=list)
    metrics: list[CheckMetric] = field(default_factory=list)

    @property
    def status(self) -> CheckStatus:
        """The worst finding; OK without any."""
        if self.criticals:
            return CheckStatus.CRITICAL
        return CheckStatus.WARNING if self.warnings else CheckStatus.OK

    def critical(self, text: str) -> None:
        """Add a finding, like the two methods below."""
        self.criticals.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def ok(self, text: str) -> None:
        self.oks.append(text)

    def ok_unless_found(self, text: str) -> None:
        """Add an OK if there is neither a warning nor a critical finding."""
        if self.status is CheckStatus.OK:
            self.ok(text)

    def measure(
        self, name: str, value: float, help: str = "", *, unit: str = "", warn: float = 0, crit: float = 0
    ) -> None:
        """Add a metric. warn, crit: its thresholds; none are 0, or negative."""
        self.metrics.append(CheckMetric(name, value, help, unit, max(warn, 0), max(crit, 0)))

    def judge(self, text: str, *, is_critical: bool, is_warning: bool = False) -> None:
        """Add one finding, of the worst degree that applies."""
        if is_critical:
            self.critical(text)
        elif is_warning:
            self.warn(text)
        else:
            self.ok(text)

    # --- output --------------------------------------------------------------------------------

    def exit_code(self, form: CheckFormat) -> int:
        """Exit code of the command. Prometheus reads the status as a metric, so that it is 0 there."""
        return 0 if form is CheckFormat.PROMETHEUS else EXIT_CODES[self.status]

    def render(self, form: CheckFormat, *, namespace: str = "nats_server_check") -> str:
        """The output without a newline at its end. namespace: first part of Prometheus names."""
        if form is CheckFormat.JSON:
            import msgspec

            return msgspec.json.format(msgspec.json.encode(self.as_json()), indent=2).decode()
        if form is CheckFormat.PROMETHEUS:
            return self._prometheus(namespace)
        return self._text() if form is CheckFormat.TEXT else self._nagios()

    def as_json(self) -> dict[str, Any]:
        """The result with the field names of the official command line."""
        page: dict[str, Any] = {"status": self.status, "check_suite": self.suite, "check_name": self.name}
        for key, texts in (("warning", self.warnings), ("critical", self.criticals), ("ok", self.oks)):
            if texts:
                page[key] = texts
        page["perf_data"] = [_metric_json(one) for one in self.metrics]
        return page

    def _nagios(self) -> str:
        found = [f"Crit:{text}" for text in self.criticals] + [f"Warn:{text}" for text in self.warnings]
        found += [f"OK:{text}" for text in self.oks]
        line = " ".join([self.status, self.name, *found])
        if self.metrics:
            line += " | " + " ".join(metric.text() for metric in self.metrics)
        # A line break would end the plugin's output, and a bar its text.
        return line.replace("\n", " ")

    def _text(self) -> str:
        lines = [f"{self.name}: {self.status}", ""]
        for degree, texts in (("OK", self.oks), ("Warning", self.warnings), ("Critical", self.criticals)):
            lines += [f"  {degree:<9} {text}" for text in texts]
        if self.metrics:
            lines += ["", "Metrics:", ""]
            width = max(len(metric.name) for metric in self.metrics)
            lines += [
                f"  {metric.name:<{width}}  {_number(metric)}  {metric.help}" for metric in self.metrics
            ]
        return "\n".join(lines)

    def _prometheus(self, namespace: str) -> str:
        item = _label(self.name)
        lines = []
        for metric in sorted(self.metrics, key=lambda metric: metric.name):
            full = f"{namespace}_{self.suite}_{metric.name}"
            about = metric.help or f"Data about the check {self.suite}"
            lines += [f"# HELP {full} {about}", f"# TYPE {full} gauge"]
            lines.append(f'{full}{{item="{item}"}} {metric.value:g}')
        full = f"{namespace}_{self.suite}_status_code"
        lines += [f"# HELP {full} Nagios compatible status code for {self.suite}", f"# TYPE {full} gauge"]
        lines.append(f'{full}{{item="{item}",status="{self.status}"}} {EXIT_CODES[self.status]}')
        return "\n".join(lines)


def _metric_json(metric: CheckMetric) -> dict[str, Any]:
    page = {"name": metric.name, "value": metric.value, "warning": metric.warn, "critical": metric.crit}
    return page | ({"unit": metric.unit} if metric.unit else {})


def _number(metric: CheckMetric) -> str:
    return f"{metric.value:,.4f}{metric.unit}" if metric.unit == "s" else f"{metric.value:,.0f}{metric.unit}"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
