"""deploy/: what its files say exists, and they agree with each other and with the server's defaults."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spola.cli.serve import command
from spola.server.options import ServerOptions

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNIT = (DEPLOY / "spola.service").read_text()
OPTIONS = {name for parameter in command.params for name in parameter.opts}


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return deployment, service


@pytest.mark.parametrize("name", ["Containerfile", "spola.service", "kubernetes.yaml"])
def test_every_option_is_one_of_the_server(name: str) -> None:
    lines = [
        line
        for line in (DEPLOY / name).read_text().splitlines()
        if re.search(r"ENTRYPOINT|ExecStart|args:", line)
    ]
    given = [word for line in lines for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line)]
    assert given
    assert set(given) <= OPTIONS


def test_there_is_time_to_drain() -> None:
    pod = manifest()[0]["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    assert float(args[args.index("--drain-timeout") + 1]) + 5 <= pod["terminationGracePeriodSeconds"]
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.M)
    assert ServerOptions().drain_s + 5 <= int(stop)


def test_the_manifest_holds_together() -> None:
    deployment, service = manifest()
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health"  # needs no key
        assert container[probe]["httpGet"]["port"] in ports
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        v["name"] for v in pod["spec"]["volumes"]
    }
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    files = [arg for arg in container["args"] if arg.startswith("/")]
    assert all(any(file.startswith(f"{place}/") for place in places) for file in files)
    # The root file system is read-only: what is written must be in a volume.
    written = {entry["name"]: entry["value"] for entry in container["env"]}
    assert written["XDG_CACHE_HOME"] in places


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    program = tmp_path / "opt/spola/bin/spola"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "etc/systemd/system/spola.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(UNIT)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", f"--root={tmp_path}", "spola.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
