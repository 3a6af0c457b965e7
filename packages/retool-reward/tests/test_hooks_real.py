"""The hooks inside the real TRL, verl and verifiers, each called by the framework's own code.

The packages go into a throw-away environment without their dependencies; torch, transformers, ray
and datasets are borrowed from the environment that runs the tests.
"""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

TRL = ["trl==1.16.0", "accelerate==1.15.0"]
VERL = [
    *("verl==0.9.1", "tensordict==0.10.0", "pyvers==0.2.3", "cloudpickle==3.1.3"),
    *("orjson==3.13.0", "omegaconf==2.4.0", "antlr4-python3-runtime==4.9.3"),
    *("codetiming==1.4.0", "hydra-core==1.3.8"),
]
# The last release line whose rubric functions have the classic signature.
VERIFIERS = [
    *("verifiers==0.1.14", "openai==2.54.0", "anthropic==2.14.0", "httpx2==2.16.2"),
    *("jiter==0.19.0", "sniffio==1.3.1", "docstring-parser==0.18.0", "tenacity==9.2.1"),
    "python-dotenv==1.2.4",
]
_INSTALL_TIME_S = 180
_RUN_TIME_S = 280

TRL_SCRIPT = """
import asyncio, threading
from types import SimpleNamespace
from accelerate import PartialState
from trl import GRPOTrainer
from retool_reward.hooks.trl import RetoolReward, accuracy_reward

PartialState()
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
trainer = SimpleNamespace(
    accelerator=SimpleNamespace(device="cpu", is_main_process=True),
    args=SimpleNamespace(report_to=[]),
    state=SimpleNamespace(global_step=1),
    reward_funcs=[accuracy_reward, RetoolReward()],
    reward_processing_classes=[None, None],
    reward_func_names=["accuracy", "retool"],
    environments=None,
    async_loop=loop,
    _log_completion_extra=None,
    _log_metric=None,
)
call = {"name": "code_interpreter", "arguments": "print(1)", "ok": True}
inputs = [
    {"prompt": "p", "answer": "1/2", "calls": [call]},
    {"prompt": "p", "answer": "1/2", "calls": [call]},
    {"prompt": "p", "answer": "", "calls": []},
]
completions = [r"\\\\boxed{0.5}", [{"role": "tool", "content": r"\\\\boxed{0.5}"}], r"\\\\boxed{1}"]
rewards = GRPOTrainer._calculate_rewards(trainer, inputs, ["p"] * 3, completions, [[0]] * 3)
assert rewards[0].tolist() == [1.0, rewards[0][1].item()], rewards
assert abs(rewards[0][1].item() - 1.05) < 1e-6, rewards
assert abs(rewards[1][1].item() - 0.02) < 1e-6, rewards
assert rewards[1][0].item() == 0.0, rewards
assert rewards[2].isnan().all(), rewards
print("trl ok")
"""

VERL_SCRIPT = """
import asyncio
import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn
import retool_reward.hooks.verl as hook

config = OmegaConf.create({"reward": {"custom_reward_function": {
    "path": hook.__file__, "name": "compute_score", "reward_kwargs": {"preset": "retool"}}}})

class Tokenizer:
    def decode(self, ids, skip_special_tokens):
        return r"<interpreter>\\\\boxed{9}</interpreter> Answer: \\\\boxed{\\\\frac{6}{2}}"

async def main():
    manager = NaiveRewardManager(config, Tokenizer(), get_custom_reward_fn(config))
    assert manager.is_async_reward_score
    ones = torch.ones(1, 4, dtype=torch.long)
    call = {"name": "code_interpreter", "arguments": "print(1)", "ok": True}
    data = DataProto.from_dict(
        tensors={"prompts": ones, "responses": ones, "attention_mask": ones.repeat(1, 2)},
        non_tensors={
            "data_source": np.array(["math"], dtype=object),
            "reward_model": np.array([{"ground_truth": "3"}], dtype=object),
            "extra_info": np.array([{"calls": [call, call]}], dtype=object),
            "__num_turns__": np.array([6]),
        },
    )
    found = await manager.run_single(data)
    assert found["reward_score"] == 1.05, found
    assert found["reward_extra_info"]["acc"] is True, found
    assert found["reward_extra_info"]["pred"].endswith("{2}"), found

asyncio.run(main())
print("verl ok")
"""

VERIFIERS_SCRIPT = """
import asyncio
import verifiers as vf
from retool_reward.hooks.verifiers import correct_answer, retool_reward

rubric = vf.Rubric(funcs=[correct_answer, retool_reward], weights=[0.0, 1.0])
call = {"name": "code_interpreter", "arguments": "print(1)", "ok": True}
state = {
    "prompt": [{"role": "user", "content": r"Use \\\\boxed{2}."}],
    "completion": [
        {"role": "assistant", "content": "Let me compute."},
        {"role": "tool", "content": r"\\\\boxed{2}"},
        {"role": "assistant", "content": r"\\\\boxed{1{,}000}"},
    ],
    "answer": "1000", "task": "math", "info": {}, "calls": [call],
    "timing": {"scoring_ms": 0.0, "total_ms": 0.0, "generation_ms": 0.0, "start_time": 0.0},
}
asyncio.run(rubric.score_rollout(state))
assert abs(state["reward"] - 1.05) < 1e-9, state
assert state["metrics"]["correct_answer"] == 1.0, state
print("verifiers ok")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that also sees the packages of this one."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed, so no environment can be made for the frameworks")
    folder = tmp_path_factory.mktemp("hooks") / "venv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True, timeout=60)
    interpreter = folder / "bin" / "python"
    target = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    source = importlib.util.find_spec("retool_reward")
    assert source is not None
    assert source.origin is not None
    borrowed = [sysconfig.get_path("purelib"), str(Path(source.origin).parents[1])]
    Path(target, "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return interpreter


def run_in(python: Path, requirements: list[str], script: str, needs: list[str]) -> str:
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the environment of the tests has no {', '.join(missing)} to lend")
    install = subprocess.run(
        ["uv", "pip", "install", "-q", "--no-deps", "--python", python, *requirements],
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIME_S,
        check=False,
    )
    if install.returncode:
        pytest.skip(f"cannot install {requirements[0]}: {install.stderr.strip()[-300:]}")
    done = subprocess.run(
        [python, "-W", "ignore", "-c", script.replace("\\\\", "\\")],
        capture_output=True,
        text=True,
        timeout=_RUN_TIME_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(500)
def test_trl_calls_the_reward_functions_and_drops_what_has_no_verdict(python: Path) -> None:
    assert "trl ok" in run_in(python, TRL, TRL_SCRIPT, ["torch", "transformers", "datasets"])


@pytest.mark.timeout(500)
def test_verl_loads_the_file_and_awaits_compute_score(python: Path) -> None:
    needs = ["torch", "ray", "transformers", "datasets"]
    assert "verl ok" in run_in(python, VERL, VERL_SCRIPT, needs)


@pytest.mark.timeout(500)
def test_verifiers_scores_a_rollout_with_a_rubric(python: Path) -> None:
    needs = ["datasets", "pydantic", "jinja2", "httpx"]
    assert "verifiers ok" in run_in(python, VERIFIERS, VERIFIERS_SCRIPT, needs)
