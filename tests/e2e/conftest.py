"""A real vLLM on the CPU, one server per test session, and a tiny Qwen3 checkpoint for it.

    def test_something(vllm_server: VllmServer): ...       # the shared server; reload its weights
    if you need others
    def test_two(start_vllm): with start_vllm(folder) as server: ...     # one of your own (about a
    minute)

The environment is made by scripts/make_vllm_cpu.sh. Where it cannot be made the tests are skipped
and say why,
unless RETOOL_REQUIRE_VLLM is set (CI sets it): then they fail.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 600.0  # 45 to 76 s on a quiet machine with two cores
STOP_TIMEOUT_S = 30.0

CONTROLS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


@dataclass(frozen=True)
class VllmServer:
    """A running server. It serves `model`, under that path as its name."""

    url: str
    model: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    def reload(self, folder: Path) -> None:
        """Load the weights of another checkpoint of the same shape (about 25 ms)."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        request = urllib.request.Request(
            f"{self.url}/collective_rpc",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of the engine's own environment."""
    made = subprocess.run(
        [str(ROOT / "scripts" / "make_vllm_cpu.sh")], capture_output=True, text=True, timeout=900
    )
    if made.returncode != 0:
        reason = f"scripts/make_vllm_cpu.sh exited {made.returncode}: {made.stderr.strip()[-500:]}"
        if os.environ.get("RETOOL_REQUIRE_VLLM"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(made.stdout.split()[-1])


def tiny_tokenizer() -> str:
    """A byte-level BPE without merges, and the markers of the hermes format behind the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {
        b: chr(256 + i) for i, b in enumerate(rest)
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": 256 + i, "content": text, "special": True, **flags}
                for i, text in enumerate(CONTROLS)
            ],
            "pre_tokenizer": level,
            "decoder": level,
            "model": {
                "type": "BPE",
                "vocab": {c: i for i, c in enumerate(letters.values())},
                "merges": [],
            },
        }
    )


@pytest.fixture(scope="session")
def make_tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Make a Qwen3 checkpoint of 0.1 M random parameters; the argument is the seed."""

    def make(seed: int) -> Path:
        import torch
        import transformers

        folder = tmp_path_factory.mktemp(f"tiny-qwen3-{seed}")
        config = transformers.Qwen3Config(
            vocab_size=264,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,  # the CPU attention of vLLM has no 16
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            rope_theta=1_000_000.0,
            bos_token_id=None,
            eos_token_id=258,
            pad_token_id=256,
        )
        torch.manual_seed(seed)
        model = transformers.Qwen3ForCausalLM(config).float()
        with torch.no_grad():  # the default size would sample almost uniformly
            model.lm_head.weight.mul_(8)
        model.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(tiny_tokenizer(), encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_qwen3(make_tiny_qwen3: Callable[[int], Path]) -> Path:
    """The checkpoint that the shared server starts with."""
    return make_tiny_qwen3(0)


@pytest.fixture(scope="session")
def start_vllm(
    vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Path], AbstractContextManager[VllmServer]]:
    """A server for a folder, stopped when the context ends."""

    @contextmanager
    def start(model: Path) -> Iterator[VllmServer]:
        log = tmp_path_factory.mktemp("vllm") / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        command = [str(vllm_python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--dtype", "float32", "--enforce-eager", "--enable-scale-out"]
        command += ["--max-model-len", "2048", "--max-num-seqs", "32"]
        settings = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",  # two that wait for each other crawl on a busy machine
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                cwd=log.parent,
                start_new_session=True,  # the engine core is a child: stop them together
            )
            server = VllmServer(f"http://127.0.0.1:{port}", model, process, log)
            try:
                _wait_until_healthy(server)
                yield server
            finally:
                _stop(process)

    return start


@pytest.fixture(scope="session")
def vllm_server(
    start_vllm: Callable[[Path], AbstractContextManager[VllmServer]], tiny_qwen3: Path
) -> Iterator[VllmServer]:
    """The shared server."""
    with start_vllm(tiny_qwen3) as server:
        yield server


def _wait_until_healthy(server: VllmServer) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    tail = server.log.read_text(errors="replace")[-3000:]
    code = server.process.poll()
    pytest.fail(
        f"vLLM did not become healthy within {START_TIMEOUT_S:.0f} s (exit {code}):\n{tail}"
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_TIMEOUT_S)


if sys.platform != "linux":
    collect_ignore_glob = ["test_*vllm*.py"]
