"""Joining a Ray that somebody else has started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOIN = """
import sys
from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import load_config
from retool_trainer.workers import cluster

with cluster(load_config(quickstart_config(), ["ray.address=" + sys.argv[1]])):
    import ray
    print(ray.get(ray.remote(lambda: 6 * 7).remote(), timeout=60))
"""


@pytest.mark.parametrize("has_token", [True, False])
def test_a_cluster_of_ray_start_is_joined_whether_or_not_its_user_has_a_token(
    tmp_path: Path, has_token: bool
) -> None:
    """Any local `ray.init` leaves a token behind, and `ray start` then asks for it."""
    if has_token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    unset = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"}
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment |= {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    command = ["--head", "--block", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
    command += [f"--port={address.partition(':')[2]}", "--num-cpus=1"]
    head = subprocess.Popen(
        [str(Path(sys.executable).with_name("ray")), "start", *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(address)
        done = subprocess.run(
            [sys.executable, "-c", JOIN, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout == "42\n", done.stderr
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait(30)


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no Ray at {address}")
