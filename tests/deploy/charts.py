"""Render deploy/helm/shoal with Helm, for each of deploy/helm/values, into deploy/kubernetes: `python -m tests.deploy.charts`.

Laws:
- A rendered file names what it was rendered from, by a digest of the chart and its values, so that a stale one is noticed where
  there is no Helm.
- Helm itself renders, through its Python package; nothing here understands templates.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "deploy" / "helm" / "shoal"
VALUES = ROOT / "deploy" / "helm" / "values"
RENDERED = ROOT / "deploy" / "kubernetes"
NAMES = sorted(file.stem for file in VALUES.glob("*.yaml"))
RELEASE, NAMESPACE = "shoal", "shoal"
_ORDER = ("PodDisruptionBudget", "Certificate", "Service", "StatefulSet", "ServiceMonitor")


def digest(name: str) -> str:
    """Of the chart's files and the values of this name."""
    files = [*sorted(file for file in CHART.rglob("*") if file.is_file()), VALUES / f"{name}.yaml"]
    whole = sha256()
    for file in files:
        whole.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()


def render(values: dict[str, Any], *, release: str = RELEASE) -> dict[str, str]:
    """The chart's templates as Helm renders them; `values` stand above the chart's own.

    Raises:
        helm_python.HelmError: a value is not legal, or a template says that it cannot be.
    """
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values))
        rendered: dict[str, str] = chart.render(values, name=release, namespace=NAMESPACE)
        return rendered


def written(name: str) -> str:
    """The text of the rendered file for the values of this name."""
    values = yaml.safe_load((VALUES / f"{name}.yaml").read_text())
    parts = [
        part.strip("\n")
        for file, text in render(values).items()
        if file.endswith(".yaml")
        for part in re.split(r"^---$", text, flags=re.MULTILINE)
        if yaml.safe_load(part)
    ]
    parts.sort(key=lambda part: (_ORDER.index(yaml.safe_load(part)["kind"]), yaml.safe_load(part)["metadata"]["name"]))
    about = (VALUES / f"{name}.yaml").read_text().splitlines()[0]
    origin = f"# Helm rendered it from deploy/helm/shoal and deploy/helm/values/{name}.yaml (`make chart`): do not edit it."
    return f"{about}\n{origin}\n# {digest(name)}\n" + "".join(f"---\n{part}\n" for part in parts)


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of the rendered file of this name."""
    return [each for each in yaml.safe_load_all((RENDERED / f"{name}.yaml").read_text()) if each]


def main() -> int:
    """Write all rendered files, and return the exit code."""
    RENDERED.mkdir(exist_ok=True)
    for name in NAMES:
        (RENDERED / f"{name}.yaml").write_text(written(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
