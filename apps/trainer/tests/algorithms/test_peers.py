"""The same numbers as verl and TRL, at pinned versions fetched without their dependencies.

Only the modules that hold the formulas are loaded, with stand-ins for what these import and do not
use: importing the whole frameworks takes half a minute.
"""

import ast
import collections
import dataclasses
import importlib
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retool_trainer.algorithms import (
    ADVANTAGES,
    correction_weights,
    make_token_loss,
    token_kl,
    token_weights,
)
from retool_trainer.config import CorrectionConfig, RlConfig

VERL, TRL = "verl==0.9.1", "trl==1.16.0"
LOW, HIGH = 0.2, 0.28
B, T, LIMIT = 6, 12, 16


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("no uv to fetch verl and TRL with")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder), VERL, TRL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"cannot fetch {VERL} and {TRL}: {done.stderr.strip().splitlines()[-1]}")
    return folder


@dataclasses.dataclass
class ActorConfig:
    clip_ratio: float = LOW
    clip_ratio_low: float = LOW
    clip_ratio_high: float = HIGH
    clip_ratio_c: float = 3.0
    global_batch_info: dict[str, Any] = dataclasses.field(default_factory=dict)

    def get(self, name: str, default: object) -> Any:
        return getattr(self, name, default)


def module(name: str, path: Path | None = None, **names: object) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    if path is not None:
        made.__path__ = [str(path)]
    return made


@pytest.fixture(scope="module")
def verl(packages: Path) -> Any:
    """verl's module of formulas, and its module of rollout corrections."""
    bare = ("verl", "verl.trainer", "verl.trainer.ppo", "verl.workers")
    stand_ins = [
        *(module(name, packages / name.replace(".", "/")) for name in bare),
        module("verl.utils", packages / "verl/utils", as_torch_index=None, group_mean_std=None),
        module("verl.utils.device", get_device_name=None, get_torch_device=None),
        module("verl.utils.import_utils", deprecated=lambda *_: lambda function: function),
        module("verl.protocol", DataProto=object),
        module("verl.trainer.config", AlgoConfig=type("AlgoConfig", (), {})),
        module("verl.trainer.config.algorithm", RolloutCorrectionConfig=object),
        module("verl.workers.config", ActorConfig=ActorConfig),
        module("verl.workers.config.actor", PolicyLossConfig=object),
        module("omegaconf", DictConfig=dict),
        module("tensordict", TensorDict=dict),
        module("transformers", PreTrainedTokenizer=object),
    ]
    with pytest.MonkeyPatch.context() as patch:
        before = set(sys.modules)
        for made in stand_ins:
            patch.setitem(sys.modules, made.__name__, made)
        formulas = importlib.import_module("verl.trainer.ppo.core_algos")
        corrections = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
        yield types.SimpleNamespace(formulas=formulas, corrections=corrections)
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "verl":
                del sys.modules[name]


@pytest.fixture(scope="module")
def trl_loss(packages: Path) -> Any:
    """`GRPOTrainer._compute_loss` of TRL, cut out of its file."""
    tree = ast.parse((packages / "trl" / "trainer" / "grpo_trainer.py").read_text())
    [found] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "_compute_loss"
    ]
    names = {"torch": torch, "nanmin": torch.min, "nanmax": torch.max}
    exec(compile(ast.Module([found], []), "grpo_trainer.py", "exec"), names)
    return names["_compute_loss"]


@dataclasses.dataclass(kw_only=True)
class Batch:
    logprobs_BT: Tensor
    entropy_BT: Tensor
    mask_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    reference_logprobs_BT: Tensor | None
    engine_logprobs_BT: Tensor | None


@pytest.fixture
def batch() -> Batch:
    """Rows of different lengths with tool tokens inside, ratios on both sides of every bound."""
    random = torch.Generator().manual_seed(7)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(B, T, generator=random, dtype=torch.float64)

    mask = torch.rand(B, T, generator=random) < 0.7
    for row in range(B):
        mask[row, T - row :] = False
    old = -noise(1.0).abs() - 0.05
    advantages = torch.tensor([1.2, -0.7, 0.4, -1.9, 0.0, 2.0], dtype=torch.float64)
    return Batch(
        logprobs_BT=(old + noise(0.6)).requires_grad_(),
        entropy_BT=noise(1.0).abs(),
        mask_BT=mask,
        old_logprobs_BT=old,
        advantages_BT=advantages[:, None].expand(B, T),
        reference_logprobs_BT=old + noise(0.3),
        engine_logprobs_BT=old + noise(0.5),
    )


def ours(batch: Batch, aggregation: str, **config: object) -> tuple[Tensor, Tensor]:
    """Our total loss and its gradient."""
    rl = RlConfig.model_validate(
        {"problems": "train", "clip_low": LOW, "clip_high": HIGH, **config}
    )
    loss_BT, _ = make_token_loss(rl)(batch)
    weights = np.stack(token_weights(batch.mask_BT.numpy(), aggregation, constant_tokens=LIMIT))
    return with_gradient((torch.from_numpy(weights) * loss_BT).sum(), batch)


def with_gradient(loss: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, batch.logprobs_BT)[0]


def assert_same(mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mine[1], theirs[1], rtol=1e-5, atol=1e-7)


AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "constant_length": "seq-mean-token-sum-norm",
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    ("name", "theirs", "config"),
    [
        ("clip", "vanilla", {"dual_clip": 3.0}),
        ("gspo", "gspo", {}),
        ("cispo", "cispo", {}),
    ],
)
def test_losses_and_gradients_equal_verls(
    verl: Any, batch: Batch, name: str, theirs: str, config: dict, aggregation: str
) -> None:
    settings = ActorConfig()
    if aggregation == "constant_length":
        settings.global_batch_info = {"loss_scale_factor": LIMIT}
    weights = correction_weights(
        batch.old_logprobs_BT,
        batch.engine_logprobs_BT,
        CorrectionConfig(kind="tis", cap=1.5),
    )
    loss, _ = getattr(verl.formulas, f"compute_policy_loss_{theirs}")(
        batch.old_logprobs_BT,
        batch.logprobs_BT,
        batch.advantages_BT,
        batch.mask_BT.double(),
        AGGREGATIONS[aggregation],
        settings,
        weights,
    )
    config = {**config, "loss": name, "correction": {"kind": "tis", "cap": 1.5}}
    assert_same(ours(batch, aggregation, **config), with_gradient(loss, batch))


@pytest.mark.parametrize(("kind", "threshold"), [("tis", 2.0), ("mis", "0.5_2.0")])
def test_corrections_equal_verls(verl: Any, batch: Batch, kind: str, threshold: Any) -> None:
    mask = batch.mask_BT.double()
    theirs, _ = verl.corrections.compute_rollout_correction_weights(
        batch.old_logprobs_BT - batch.engine_logprobs_BT, mask, "token", threshold
    )
    config = CorrectionConfig(kind=kind, cap=2.0)
    mine = correction_weights(batch.old_logprobs_BT, batch.engine_logprobs_BT, config) * mask
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("mine", "theirs"), [("k1", "k1"), ("k2", "k2"), ("low_var", "k3")])
def test_kl_estimators_equal_verls(verl: Any, batch: Batch, mine: str, theirs: str) -> None:
    pair = batch.logprobs_BT.detach(), batch.reference_logprobs_BT
    torch.testing.assert_close(
        token_kl(*pair, mine), verl.formulas.kl_penalty_forward(*pair, theirs)
    )


@pytest.mark.parametrize(
    ("name", "theirs", "extra"),
    [
        ("grpo", "grpo", {"norm_adv_by_std_in_grpo": True}),
        ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}),
        ("reinforce_pp", "reinforce_plus_plus", {}),
        ("reinforce_pp_baseline", "reinforce_plus_plus_baseline", {}),
    ],
)
def test_advantages_equal_verls(verl: Any, name: str, theirs: str, extra: dict) -> None:
    rewards_PG = [[1.05, 0.0, 0.02, 1.0], [0.0, 0.0, 0.1], [1.2, 1.0, 1.05, 0.02, 0.0]]
    flat = torch.tensor([[r] for row in rewards_PG for r in row], dtype=torch.float64)
    index = np.array([p for p, row in enumerate(rewards_PG) for _ in row])
    compute = getattr(verl.formulas, f"compute_{theirs}_outcome_advantage")
    # One token per response: verl whitens over tokens, so that long responses count more there.
    got, _ = compute(
        token_level_rewards=flat,
        response_mask=torch.ones_like(flat),
        index=index,
        config=types.SimpleNamespace(gamma=1.0),
        **extra,
    )
    mine = [value for row in ADVANTAGES[name](rewards_PG) for value in row]
    assert mine == pytest.approx(got[:, 0].tolist(), rel=1e-5, abs=1e-6)


class TrlTrainer(types.SimpleNamespace):
    """What `_compute_loss` asks of its trainer."""

    def __init__(self, batch: Batch, **changes: object) -> None:
        super().__init__()
        self.model = types.SimpleNamespace(training=False)
        self.accelerator = types.SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
        )
        self.args = types.SimpleNamespace(delta=None, use_bias_correction_kl=False)
        self.aux_loss_enabled = self._entropy_bonus_enabled = self.use_vllm = False
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.importance_sampling_level, self.loss_type, self.beta = "token", "grpo", 0.0
        self.epsilon_low, self.epsilon_high, self.max_completion_length = LOW, HIGH, LIMIT
        self.vllm_importance_sampling_correction = True
        self._metrics = {"eval": collections.defaultdict(list)}
        self._get_per_token_logps_and_entropies = lambda *_, **__: (
            batch.logprobs_BT,
            batch.entropy_BT,
            None,
        )
        self.__dict__.update(changes)


@pytest.mark.parametrize(
    ("trl", "aggregation", "config"),
    [
        ({"loss_type": "grpo"}, "sequence_mean", {}),
        ({"loss_type": "dapo"}, "token_mean", {}),
        ({"loss_type": "dr_grpo"}, "constant_length", {}),
        ({"loss_type": "grpo", "beta": 0.1}, "sequence_mean", {"kl": {"coefficient": 0.1}}),
        (
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            "sequence_mean",
            {"loss": "gspo"},
        ),
        # TRL bounds CISPO's weight from above only, and gives the bound itself.
        (
            {"loss_type": "cispo", "epsilon_high": 1 + HIGH},
            "token_mean",
            {"loss": "cispo", "clip_low": 1.0},
        ),
    ],
)
def test_losses_and_gradients_equal_trls(
    trl_loss: Any, batch: Batch, trl: dict, aggregation: str, config: dict
) -> None:
    batch.mask_BT[:, 0] = True  # TRL counts a row without tokens as a sequence
    inputs = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask": torch.ones(B, 1, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": batch.mask_BT.double(),
        "advantages": batch.advantages_BT[:, 0],
        "old_per_token_logps": batch.old_logprobs_BT,
        "ref_per_token_logps": batch.reference_logprobs_BT,
        "num_items_in_batch": batch.mask_BT.sum(),
    }
    loss = trl_loss(TrlTrainer(batch, **trl), None, inputs)
    batch.engine_logprobs_BT = None
    assert_same(ours(batch, aggregation, **config), with_gradient(loss, batch))
