"""The doctor on a healthy A2, a healthy A3, and one broken machine per check.

The machines are folders and answers in the form that the vendor's tools document; none was recorded
on hardware of ours.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from retool_trainer.config import RunConfig, load_config
from retool_trainer.launch.doctor import GROUPS, Finding, LocalMachine, Reply, examine, render
from retool_trainer.launch.doctor._machine import Machine

ROOT = Path(__file__).resolve().parents[4]


class RecordedMachine:
    """A folder as the root, and answers by the beginning of a command."""

    def __init__(self, root: Path, devices: int, devices_per_card: int) -> None:
        self.root = root
        self.environment: Mapping[str, str] = {"PATH": "/usr/bin"}
        self.packages = {
            "torch": "2.10.0",
            "torch-npu": "2.10.0.post4",
            "vllm": "0.23.0+empty",
            "vllm-ascend": "0.23.0",
            "transformers": "5.5.4",
            "triton-ascend": "3.2.2",
            "megatron-core": "0.16.1",
            "mindspeed": "0.16.0",
        }
        self.answers = {
            "npu-smi info -t board -i 0": "\tSoftware Version   : 26.0.rc1\n"
            "\tFirmware Version               : 7.8.0.2.212\n",
            "npu-smi info": _npu_smi(devices, devices_per_card),
            "python -c import acl": "Ascend910B3\n"
            if devices_per_card == 1
            else "Ascend910_9382\n",
            "python -c import ctypes": "loaded\n",
            "python -c import importlib.util": "found\n",
            "python -c import torch, torch_npu": f"{devices}\n",
            "python -m retool_trainer.launch.doctor": "all-reduce ok, 2 ranks in 9.1 s\n",
            **{f"hccn_tool -i {i} -link -g": "link status: UP\n" for i in range(devices)},
            **{
                f"hccn_tool -i {i} -ip -g": f"ipaddr:10.0.0.{i + 1}\nnetmask:255.255.255.0\n"
                for i in range(devices)
            },
            **{
                f"hccn_tool -i {i} -tls -g": f"dev_id:{i}, tls switch[0](0:disable, 1:enable)\n"
                for i in range(devices)
            },
        }
        self.failing: dict[str, Reply] = {}
        self.commands: list[str] = []
        self.closed: set[str] = set()
        self.uname, self.libc, self.version, self.files = "aarch64", "2.35", (3, 11), 65_535
        self.space_gib: dict[str, float] = {"shm": 64.0, "runs": 900.0}
        for i in range(devices):
            self.write(f"dev/davinci{i}", "")
        for name in ("davinci_manager", "devmm_svm", "hisi_hdc"):
            self.write(f"dev/{name}", "")
        (root / "dev" / "shm").mkdir()
        self.write("usr/local/Ascend/driver/version.info", "Version=26.0.rc1\n")
        self.write(
            "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=9.1.0\n",
        )
        self.write("proc/meminfo", f"MemTotal: {1024 * 2**20} kB\nMemAvailable: {900 * 2**20} kB\n")
        self.write("proc/net/tcp", "  sl  local_address rem_address   st\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def listen(self, port: int) -> None:
        self.write(
            "proc/net/tcp",
            "  sl  local_address rem_address   st\n"
            f"   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000\n",
        )

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Reply | None:
        line = " ".join(command)
        self.commands.append(line)
        for start, reply in self.failing.items():
            if line.startswith(start):
                return reply
        # Longest first: `npu-smi info` also begins `npu-smi info -t board`.
        for start in sorted(self.answers, key=len, reverse=True):
            if line.startswith(start):
                return Reply(code=0, text=self.answers[start])
        return None

    def package_version(self, name: str) -> str | None:
        return self.packages.get(name)

    def architecture(self) -> str:
        return self.uname

    def glibc(self) -> str:
        return self.libc

    def python(self) -> tuple[int, int]:
        return self.version

    def max_open_files(self) -> tuple[int, int]:
        return self.files, self.files

    def can_open(self, node: Path) -> bool:
        return node.name not in self.closed

    def free_gib(self, path: Path) -> float | None:
        return self.space_gib["shm" if path.name == "shm" else "runs"]


def _npu_smi(devices: int, devices_per_card: int) -> str:
    """The table of `npu-smi info`: two lines a chip, then the processes."""
    rule = "+---------------------------+---------------+-------------------------------------+"
    lines = [
        "| npu-smi 26.0.rc1                 Version: 26.0.rc1                                |",
        rule,
        "| NPU   Name                | Health        | Power(W)  Temp(C)   Hugepages-Usage |",
        "| Chip  (Phy-ID)            | Bus-Id        | AICore(%) Memory-Usage HBM-Usage    |",
    ]
    for i in range(devices):
        card, die = divmod(i, devices_per_card)
        name, chip = ("Ascend910", f"{die}     {i}") if devices_per_card == 2 else ("910B3", "0")
        lines += [
            f"| {card:<5} {name:<19} | OK            | 93.2   37   0    / 0                |",
            f"| {chip:<25} | 0000:{0x80 + i:02X}:00.0  | 0   0    / 0    3413 / 65536        |",
            rule,
        ]
    lines += [
        "| NPU     Chip              | Process id    | Process name     | Process memory(MB)   |",
        "| No running processes found in NPU 0                                                |",
    ]
    return "\n".join(lines) + "\n"


def _model(root: Path) -> Path:
    folder = root / "models" / "Qwen3-4B-Instruct-2507"
    folder.mkdir(parents=True)
    sizes = {
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "tie_word_embeddings": True,
        "rope_theta": 5_000_000,
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "tokenizer.json").write_text("{}")
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = {"weight_map": {f"w{i}": shard for i, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for shard in shards:
        (folder / shard).write_bytes(b"x")
    return folder


@pytest.fixture(params=["a2", "a3"])
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunConfig, RecordedMachine]:
    return _healthy(request.param, tmp_path, monkeypatch)


def _healthy(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[RunConfig, RecordedMachine]:
    monkeypatch.chdir(tmp_path)
    _model(tmp_path)
    config = load_config(ROOT / "configs" / f"qwen3-4b-npu-{kind}.yaml")
    for file in config.data.sets.values():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("{}\n")
    devices, per_card = (8, 1) if kind == "a2" else (16, 2)
    return config, RecordedMachine(tmp_path / "root", devices, per_card)


def _failed(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.status == "FAIL"]


def test_a_healthy_machine_passes_every_group(case: tuple[RunConfig, RecordedMachine]) -> None:
    config, machine = case
    findings = examine(config, machine, "/data/runs/one")
    assert _failed(findings) == []
    assert {finding.group for finding in findings} == set(GROUPS)
    assert render(findings).endswith("all checks passed\n")
    assert f"{config.devices_per_node} devices, {config.devices_per_node} needed" in render(
        findings
    )


def test_nothing_the_doctor_runs_changes_or_ends_anything(
    case: tuple[RunConfig, RecordedMachine],
) -> None:
    config, machine = case
    examine(config, machine, "/data/runs/one")
    for command in machine.commands:
        assert not any(word in command.split() for word in ("kill", "pkill", "rm", "-s", "reset"))


def _unlink(path: str) -> Callable[[RecordedMachine], None]:
    return lambda machine: (machine.root / path).unlink()


def _set(name: str, value: object) -> Callable[[RecordedMachine], None]:
    return lambda machine: setattr(machine, name, value)


def _answer(command: str, text: str, code: int = 0) -> Callable[[RecordedMachine], None]:
    return lambda machine: machine.failing.update({command: Reply(code=code, text=text)})


def _package(name: str, version: str | None) -> Callable[[RecordedMachine], None]:
    def change(machine: RecordedMachine) -> None:
        if version is None:
            del machine.packages[name]
        else:
            machine.packages[name] = version

    return change


def _beside(path: str, text: str | None) -> Callable[[RecordedMachine], None]:
    """Change a file of the working folder, where models and data are."""

    def change(machine: RecordedMachine) -> None:
        file = machine.root.parent / path
        if text is None:
            file.unlink()
        else:
            file.write_text(text)

    return change


def _no_address(machine: RecordedMachine) -> None:
    machine.failing["hccn_tool -i 2 -ip -g"] = Reply(code=1, text="hccn_tool failed")


MODEL = "models/Qwen3-4B-Instruct-2507"
LOADS = "python -c import ctypes; ctypes.CDLL('{}')"
PROCESS = (
    "| 3       0                 | 4711          | python3                  | 61022          |\n"
)

BROKEN: list[tuple[str, Callable[[RecordedMachine], None], int, str, str, str]] = [
    ("riscv", _set("uname", "riscv64"), 1, "architecture", "riscv64", "x86_64 and aarch64"),
    ("old-glibc", _set("libc", "2.28"), 1, "glibc", "2.28", "needs glibc >= 2.34"),
    ("old-python", _set("version", (3, 9)), 1, "Python", "3.9", "use 3.11 or 3.12"),
    (
        "no-driver",
        _unlink("usr/local/Ascend/driver/version.info"),
        2,
        "driver",
        "is not there",
        "mount /usr/local/Ascend/driver",
    ),
    (
        "old-driver",
        lambda m: m.write("usr/local/Ascend/driver/version.info", "Version=24.1.0\n"),
        2,
        "driver",
        "24.1.0",
        "update the driver",
    ),
    (
        "smi-8005",
        _answer("npu-smi info -t board", "dcmi module initialize failed. ret is -8005\n", 255),
        2,
        "npu-smi",
        "-8005",
        "may not open the devices",
    ),
    ("seven-nodes", _unlink("dev/davinci7"), 3, "device nodes", "7 device nodes", "--device"),
    ("no-manager", _unlink("dev/devmm_svm"), 3, "manager nodes", "/dev/devmm_svm", "--device"),
    ("closed", _set("closed", {"davinci3"}), 3, "permission", "/dev/davinci3", "--group-add"),
    (
        "old-cann",
        lambda m: m.write(
            "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
            "version=8.5.1\n",
        ),
        4,
        "CANN",
        "8.5.1",
        "install CANN 9.1.0",
    ),
    (
        "no-acl",
        _answer("python -c import acl", "Traceback\nModuleNotFoundError: No module named 'acl'", 1),
        4,
        "chip",
        "No module named 'acl'",
        "set_env.sh",
    ),
    (
        "no-hccl",
        _answer(LOADS.format("libhccl.so"), "OSError: libhccl.so: cannot open", 1),
        4,
        "libhccl.so",
        "cannot open",
        "set_env.sh",
    ),
    (
        "no-atb",
        _answer(LOADS.format("libatb.so"), "OSError: libatb.so: cannot open", 1),
        4,
        "libatb.so",
        "cannot open",
        "nnal/atb/set_env.sh",
    ),
    (
        "no-hal",
        _answer(LOADS.format("libascend_hal.so"), "OSError: libascend_hal.so: no", 1),
        4,
        "libascend_hal.so",
        "no",
        "driver/lib64",
    ),
    ("other-torch", _package("torch", "2.11.0"), 5, "torch", "2.11.0", "2.10.0 is the tested one"),
    ("no-vllm-ascend", _package("vllm-ascend", None), 5, "vllm-ascend", "not installed", "0.23.0"),
    ("no-megatron", _package("megatron-core", None), 5, "megatron-core", "not inst", "npu.Docker"),
    ("no-mindspeed", _package("mindspeed", None), 5, "mindspeed", "not installed", "npu.Docker"),
    (
        "no-vllm",
        _answer("python -c import importlib.util", "absent\n"),
        5,
        "engine.python",
        "vLLM in this interpreter: absent",
        "correct engine.python",
    ),
    ("te", _package("transformer-engine", "2.9"), 5, "transformer-engine", "2.9", "uninstall it"),
    ("triton", _package("triton", "3.6.0"), 5, "triton", "3.6.0", "pip uninstall triton"),
    (
        "hidden-devices",
        _answer("python -c import torch, torch_npu", "4\n"),
        5,
        "torch.npu",
        "4 devices",
        "ASCEND_RT_VISIBLE_DEVICES",
    ),
    (
        "visible",
        _set("environment", {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}),
        6,
        "settings",
        "shows 2 devices",
        "unset it",
    ),
    (
        "nz",
        _set("environment", {"VLLM_ASCEND_ENABLE_NZ": "1"}),
        6,
        "settings",
        "ignored silently",
        "set it to 0",
    ),
    (
        "proxy",
        _set("environment", {"http_proxy": "http://proxy:3128"}),
        6,
        "proxy",
        "http_proxy",
        "no_proxy=127.0.0.1",
    ),
    (
        "mixed-tls",
        _answer("hccn_tool -i 5 -tls -g", "dev_id:5, tls switch[1](0:disable, 1:enable)"),
        7,
        "TLS",
        "0, 1",
        "-tls -s enable 0",
    ),
    (
        "hccn-hangs",
        _answer("hccn_tool", "no answer within 30 s", 124),
        7,
        "links",
        "no answer within 30 s",
        "the driver hangs",
    ),
    ("port", lambda m: m.listen(60_010), 7, "ports", "60010 (ports.hccl_host)", "ss -ltnp"),
    ("hccl-port", lambda m: m.listen(16_666), 7, "ports", "16666 (HCCL's default)", "ss -ltnp"),
    (
        "hang",
        _answer("python -m retool_trainer.launch.doctor", "no answer within 180 s", 124),
        7,
        "all-reduce over hccl",
        "no answer within 180 s",
        "firewall",
    ),
    (
        "shm",
        lambda m: m.space_gib.update(shm=0.06),
        8,
        "/dev/shm",
        "0 GiB free, 23 needed",
        "--shm-size",
    ),
    ("files", _set("files", 1024), 8, "open files", "1024", "ulimit -n 65535"),
    (
        "memory",
        lambda m: m.write("proc/meminfo", f"MemAvailable: {40 * 2**20} kB\n"),
        8,
        "host memory",
        "40 GiB free",
        "end other jobs",
    ),
    ("disk", lambda m: m.space_gib.update(runs=20.0), 8, "disk", "20 GiB free", "checkpoints.keep"),
    (
        "shard",
        _beside(f"{MODEL}/model-00002-of-00003.safetensors", None),
        9,
        "weights",
        "missing model-00002-of-00003.safetensors",
        "fetch",
    ),
    ("tokenizer", _beside(f"{MODEL}/tokenizer.json", None), 9, "tokenizer", "not there", "copy it"),
    ("config", _beside(f"{MODEL}/config.json", "{"), 9, "model", "config.json", "fetch"),
    ("no-config", _beside(f"{MODEL}/config.json", "[1]"), 9, "model", "not the config", "fetch"),
    (
        "index",
        _beside(f"{MODEL}/model.safetensors.index.json", "[1]"),
        9,
        "weights",
        "cannot be read",
        "fetch",
    ),
    (
        "data",
        _beside("data/dapo-math-17k/dapo-math-17k.jsonl", None),
        9,
        "data dapo-math-17k",
        "is not there",
        "fetch",
    ),
    (
        "stale",
        lambda m: m.answers.update({"npu-smi info": m.answers["npu-smi info"] + PROCESS}),
        10,
        "processes",
        "python3 (4711) on NPU 3, 61022 MB",
        "we never do",
    ),
    (
        "full",
        lambda m: m.answers.update(
            {"npu-smi info": m.answers["npu-smi info"].replace(" 3413 /", "60000 /", 1)}
        ),
        10,
        "free memory",
        "5 GiB on the fullest",
        "free the devices",
    ),
]


@pytest.mark.parametrize(
    ("damage", "group", "subject", "measured", "advice"),
    [row[1:] for row in BROKEN],
    ids=[row[0] for row in BROKEN],
)
def test_a_broken_machine_is_told_what_is_wrong_and_what_to_do(
    damage: Callable[[RecordedMachine], None],
    group: int,
    subject: str,
    measured: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    damage(machine)
    failed = _failed(examine(config, machine, "/data/runs/one"))
    found = [finding for finding in failed if finding.subject == subject]
    assert found, [finding.subject for finding in failed]
    assert (found[0].group, measured in found[0].measured) == (group, True), found[0]
    assert advice in found[0].advice
    # An unknown architecture also hides CANN's folder, which carries its name.
    assert {finding.group for finding in failed} <= {group, *([4] if group == 1 else [])}, failed


def test_every_group_that_can_fail_has_a_broken_machine() -> None:
    assert {row[2] for row in BROKEN} == set(GROUPS)


def test_links_matter_with_several_nodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    _no_address(machine)
    machine.failing["hccn_tool -i 4 -link -g"] = Reply(code=0, text="link status: DOWN\n")
    assert _failed(examine(config, machine, "/data/runs/one")) == []
    two = config.model_copy(
        update={"nodes": 2, "engine": config.engine.model_copy(update={"sync": "broadcast"})}
    )
    failed = {finding.subject for finding in _failed(examine(two, machine, "/data/runs/one"))}
    assert failed == {"links", "addresses"}


def test_two_nodes_need_hccn_tool_which_comes_with_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    tool = "usr/local/Ascend/driver/tools/hccn_tool"
    answers = {k: v for k, v in machine.answers.items() if k.startswith("hccn_tool")}
    for command in answers:
        del machine.answers[command]
    assert _failed(examine(config, machine, "/data/runs/one")) == []
    two = config.model_copy(
        update={"nodes": 2, "engine": config.engine.model_copy(update={"sync": "broadcast"})}
    )
    (finding,) = _failed(examine(two, machine, "/data/runs/one"))
    assert finding.measured == "hccn_tool is not there"
    machine.write(tool, "")
    for command, answer in answers.items():
        machine.answers[command.replace("hccn_tool", str(machine.root / tool))] = answer
    assert _failed(examine(two, machine, "/data/runs/one")) == []


def test_a_tool_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, machine = _healthy("a3", tmp_path, monkeypatch)
    machine.failing["hccn_tool"] = Reply(code=124, text="no answer within 30 s")
    examine(config, machine, "/data/runs/one")
    assert sum(command.startswith("hccn_tool") for command in machine.commands) == 1


def test_the_checkpoint_that_rl_starts_from_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, machine = _healthy("a2", tmp_path, monkeypatch)
    config = load_config(ROOT / "configs/qwen3-4b-npu-a2.yaml", ["rl.start_from=models/sft"])
    (finding,) = _failed(examine(config, machine, "/data/runs/one"))
    assert (finding.group, finding.subject) == (9, "rl.start_from")
    (tmp_path / "models/sft").mkdir()
    (tmp_path / "models/sft/model.safetensors").write_bytes(b"x")
    assert _failed(examine(config, machine, "/data/runs/one")) == []


@pytest.mark.parametrize("theta", [{"rope_theta": "big"}, {"rope_parameters": [1]}])
def test_a_rope_theta_that_is_no_number_is_a_finding(
    theta: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    file = tmp_path / MODEL / "config.json"
    sizes = json.loads(file.read_text())
    del sizes["rope_theta"]
    file.write_text(json.dumps(sizes | theta))
    failed = _failed(examine(config, machine, "/data/runs/one"))
    assert [finding.subject for finding in failed] == ["rope theta"]


def test_a_local_ray_raises_the_soft_limit_of_open_files_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    monkeypatch.setattr(machine, "max_open_files", lambda: (1024, 1_048_576))
    assert _failed(examine(config, machine, "/data/runs/one")) == []
    two = config.model_copy(
        update={"nodes": 2, "engine": config.engine.model_copy(update={"sync": "broadcast"})}
    )
    failed = [finding.subject for finding in _failed(examine(two, machine, "/data/runs/one"))]
    assert failed == ["open files"]


def test_a_laptop_has_room_for_the_quickstart(tmp_path: Path) -> None:
    """8 GB of memory, half of it /dev/shm; docker/README.md gives the container 2 GiB of that."""
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    machine = RecordedMachine(tmp_path / "root", 0, 1)
    machine.packages["torch"] = "2.13.0"
    machine.space_gib["shm"] = 1.9
    machine.write("proc/meminfo", f"MemAvailable: {5 * 2**20} kB\n")
    assert _failed(examine(config, machine, "/data/runs/one")) == []


def test_a_proxy_that_is_off_for_every_host_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    machine.environment = {"http_proxy": "http://proxy:3128", "no_proxy": "*", "NO_PROXY": "*"}
    assert _failed(examine(config, machine, "/data/runs/one")) == []


def test_checkpoints_into_the_models_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, machine = _healthy("a2", tmp_path, monkeypatch)
    absolute = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(tmp_path / MODEL)})}
    )
    assert config.model.path == MODEL  # relative
    for same in (config, absolute):
        findings = examine(same, machine, str(tmp_path / MODEL / "out"))
        assert "run folder" in {finding.subject for finding in _failed(findings)}


def test_this_machine_is_a_machine_and_the_command_reports_it(tmp_path: Path) -> None:
    machine: Machine = LocalMachine()
    assert machine.run(["no-such-program"]) is None
    slow = machine.run(["python", "-c", "import time; time.sleep(60)"], timeout_s=0.5)
    assert slow is not None
    assert slow.code == 124
    foreign = machine.run(["python", "-c", r"import os; os.write(1, b'\xb4\xed')"])
    assert foreign is not None
    assert foreign.code == 0  # no encoding that we know
    result = subprocess.run(
        [
            sys.executable,
            str(ROOT / "apps" / "trainer"),
            "doctor",
            "--json",
            "--config",
            str(ROOT / "configs" / "quickstart.yaml"),
            "--run-dir",
            str(tmp_path),
        ],
        capture_output=True,
        timeout=200,
        check=False,
    )
    findings = json.loads(result.stdout)
    assert {finding["group"] for finding in findings} == set(GROUPS)
    assert result.returncode == int(any(finding["status"] == "FAIL" for finding in findings))


def test_the_all_reduce_of_two_ranks_is_real_over_gloo() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "retool_trainer.launch.doctor.all_reduce", "cpu"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "all-reduce ok, 2 ranks" in result.stdout, result.stderr
