"""One rank of the policy: log-probabilities, optimizer steps, weights, checkpoints."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from retool_trainer.config import OptimizerConfig, PolicyConfig
from retool_trainer.platform import Platform, get_platform

from ._hf_config import read_dims
from ._hf_files import HfTensors, write_hf
from ._megatron import import_megatron
from ._microbatches import Microbatch, Share, lay_out, share_rows, token_batch
from ._rows import Row, TokenLoss
from ._schedule import learning_rate_factor

# Of one collective: the slowest rank may be reading a large checkpoint.
_COLLECTIVE_TIMEOUT = timedelta(minutes=30)


class Policy:
    """A Megatron-core model on one rank of a group.

    Every rank of the group is constructed, and every method called, with the same arguments and in
    the same order. The constructor joins the ranks; `close` parts them.

    Args:
        hf_dir: The Hugging Face folder whose weights the policy starts from.
        policy: Layout, precision and memory.
        platform: cpu, cuda or npu, or a platform object.
        rank: This rank, from 0.
        world_size: Number of ranks; must be what the layout says.
        master_addr: Where rank 0 listens.
        master_port: A free port there.
        seed: Of the random generators.
        with_weights: False leaves the weights undefined until `load`; the folder then needs no
            more than config.json.

    Raises:
        CheckpointError: The folder cannot be loaded in this layout.
        ValueError: The world size is not the layout's.
    """

    def __init__(
        self,
        hf_dir: Path,
        *,
        policy: PolicyConfig,
        platform: str | Platform = "cpu",
        rank: int,
        world_size: int,
        master_addr: str,
        master_port: int,
        seed: int,
        with_weights: bool = True,
    ) -> None:
        if world_size != policy.world_size:
            raise ValueError(
                f"world_size is {world_size}, but data_parallel {policy.data_parallel} x "
                f"tensor_parallel {policy.tensor_parallel} x pipeline_parallel "
                f"{policy.pipeline_parallel} is {policy.world_size}"
            )
        self._hf_dir = Path(hf_dir)
        self._dims = read_dims(self._hf_dir)
        self._config = policy
        self._platform = get_platform(platform) if isinstance(platform, str) else platform
        self._device = self._platform.device()
        self._optimizer: Any = None
        self._optimizer_config = OptimizerConfig()
        self._total_steps = 0
        self._step = 0
        torch.set_num_threads(
            policy.num_threads or max(1, len(os.sched_getaffinity(0)) // world_size)
        )
        self._platform.import_vendor()
        self._platform.use_device()
        import_megatron()
        self._platform.adapt_megatron(policy)
        dist.init_process_group(
            self._platform.collective_backend,
            init_method=f"tcp://{master_addr}:{master_port}",
            rank=rank,
            world_size=world_size,
            timeout=_COLLECTIVE_TIMEOUT,
        )
        try:
            self._build(seed, with_weights)
        except BaseException:
            self.close()
            raise

    def _build(self, seed: int, with_weights: bool) -> None:
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        from ._model import build_model, check_layout
        from ._weights import load_weights

        check_layout(self._dims, self._config)
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=self._config.tensor_parallel,
            pipeline_model_parallel_size=self._config.pipeline_parallel,
            distributed_timeout_minutes=int(_COLLECTIVE_TIMEOUT.total_seconds() // 60),
        )
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        model_parallel_cuda_manual_seed(seed)
        model = build_model(self._dims, self._config, self._platform)
        if with_weights:
            load_weights(model, self._dims, self._config, HfTensors(self._hf_dir))

        def finalize(models: Any, num_tokens: Any = None, **kwargs: Any) -> None:
            # The rows' weights have normalised the loss; Megatron would divide by num_tokens.
            del num_tokens
            finalize_model_grads(models, None, **kwargs)

        model.config.finalize_model_grads_func = finalize
        self._finalize = finalize
        self._model = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                use_distributed_optimizer=self._config.distributed_optimizer,
                overlap_grad_reduce=False,
            ),
            model,
        )

    @property
    def model(self) -> Any:
        """This rank's part of the model."""
        return self._model

    # -- training ------------------------------------------------------------------------

    def set_optimizer(self, config: OptimizerConfig, total_steps: int) -> None:
        """Begin a stage: a fresh optimizer and its learning-rate schedule.

        Args:
            config: Of the stage.
            total_steps: Optimizer steps over which the schedule runs.

        Raises:
            PolicyError: The optimizer does not work with this layout.
        """
        from ._optimizer import build_optimizer

        self._optimizer = build_optimizer(config, self._config, self._dims, self._model)
        self._optimizer_config = config
        self._total_steps = total_steps
        self._step = 0

    def step(
        self, rows: Sequence[Row], loss: TokenLoss, temperature: float = 1.0
    ) -> dict[str, float]:
        """Take one optimizer step on a batch.

        Args:
            rows: The whole batch; each rank works on its share. Rows longer than a microbatch are
                dropped and counted; their weights are not given to others.
            loss: Per token; see `TokenLoss`.
            temperature: Logits are divided by it.

        Returns:
            The same on every rank: `loss` (the weighted sum), `grad_norm` (before clipping),
            `learning_rate` (AdamW's), `tokens` (of the rows trained on), `sampled_tokens`,
            `rows_dropped`, and each of the loss's statistics as its mean over sampled tokens.

        Raises:
            PolicyError: No optimizer was set, or the gradient is not finite.
        """
        from retool_trainer.errors import PolicyError

        from ._optimizer import optimizer_step, set_learning_rates

        if self._optimizer is None:
            raise PolicyError("step() before set_optimizer()")
        share = self._share(rows)
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()

        def reduce(batch: Microbatch, logprobs_M: Tensor, entropy_M: Tensor) -> Any:
            tokens = token_batch(batch, logprobs_M, entropy_M)
            loss_BT, stats_BT = loss(tokens)
            total = (loss_BT * tokens.weights_BT).sum()
            sums = {"loss": float(total.detach()), "sampled_tokens": float(tokens.mask_BT.sum())}
            for name, values_BT in stats_BT.items():
                sums[f"stat/{name}"] = float((values_BT.detach() * tokens.mask_BT).sum())
            return total, sums

        results = self._run(rows, share, temperature, reduce, forward_only=False)
        factor = learning_rate_factor(self._optimizer_config, self._step, self._total_steps)
        set_learning_rates(self._optimizer, factor)
        grad_norm = optimizer_step(self._optimizer, self._optimizer_config.clip_grad_norm)
        self._step += 1
        sums = self._sum_over_ranks(results)
        sampled = max(sums.pop("sampled_tokens", 0.0), 1.0)
        limit = self._config.tokens_per_microbatch
        return {
            "loss": sums.pop("loss", 0.0),
            "grad_norm": grad_norm,
            "learning_rate": self._optimizer_config.learning_rate * factor,
            "tokens": float(sum(len(row) for row in rows if len(row) <= limit)),
            "sampled_tokens": sampled,
            "rows_dropped": float(share.dropped),
            **{name.removeprefix("stat/"): value / sampled for name, value in sums.items()},
        }

    def logprobs(
        self, rows: Sequence[Row], temperature: float = 1.0, *, masked_only: bool = False
    ) -> list[np.ndarray] | None:
        """Log-probability of every token under the policy, without gradient.

        Args:
            rows: The whole batch.
            temperature: Logits are divided by it.
            masked_only: Compute only what the rows' masks select, and leave 0.0 elsewhere.

        Returns:
            On rank 0 one float32 array per row, aligned with its ids, 0.0 for the first token; None
            on the other ranks. A row that a step would drop for its length is all NaN.
        """
        share = self._share(rows)

        def keep(batch: Microbatch, logprobs_M: Tensor, entropy_M: Tensor) -> Any:
            del entropy_M
            return logprobs_M.sum(), batch.to_grid(logprobs_M).cpu().numpy()

        with torch.no_grad():
            grids = self._run(
                rows, share, temperature, keep, forward_only=True, masked_only=masked_only
            )
        found: list[tuple[int, np.ndarray]] = []
        for indices, grid_BT in zip(share.microbatches, grids, strict=False):
            for index, values_T in zip(indices, grid_BT, strict=True):
                found.append((index, values_T[: len(rows[index])]))
        gathered = self._gather(found)
        if dist.get_rank() != 0:
            return None
        result = [np.full(len(row), np.nan, dtype=np.float32) for row in rows]
        for index, values_T in gathered:
            result[index] = values_T
        return result

    def _share(self, rows: Sequence[Row]) -> Share:
        from megatron.core import parallel_state

        return share_rows(
            [len(row) for row in rows],
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            data_parallel=self._config.data_parallel,
            rank=parallel_state.get_data_parallel_rank(),
        )

    def _run(
        self,
        rows: Sequence[Row],
        share: Share,
        temperature: float,
        reduce: Any,
        *,
        forward_only: bool,
        masked_only: bool = True,
    ) -> list[Any]:
        """Forward (and backward) over this rank's microbatches.

        Returns:
            What `reduce` made of each microbatch; empty except on the last pipeline stage.
        """
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if not share.microbatches:
            if not forward_only:
                self._finalize([self._model])
            return []
        microbatches = iter(share.microbatches)

        def forward(_: Any, model: Any) -> Any:
            chosen = [rows[index] for index in next(microbatches)]
            batch = lay_out(chosen, masked_only=masked_only, device=self._device)
            output = model(batch, temperature=temperature)

            def finish(predictions: Any) -> Any:
                total, kept = reduce(batch, *predictions)
                return total, torch.tensor(0, dtype=torch.int), kept

            return output, finish

        return get_forward_backward_func()(
            forward_step_func=forward,
            # `forward` has its own.
            data_iterator=iter(()),
            model=[self._model],
            num_microbatches=len(share.microbatches),
            # The stages tell each other the real shape of every microbatch.
            seq_length=self._config.tokens_per_microbatch,
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _reports(self) -> bool:
        """One rank per data-parallel share has the predictions that count."""
        from megatron.core import parallel_state

        return (
            parallel_state.is_pipeline_last_stage()
            and parallel_state.get_tensor_model_parallel_rank() == 0
        )

    def _sum_over_ranks(self, results: list[dict[str, float]]) -> dict[str, float]:
        mine = results if self._reports() else []
        everyone = [mine]
        if dist.get_world_size() > 1:
            everyone = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(everyone, mine)
        sums: dict[str, float] = {}
        for rank_results in everyone:
            for result in rank_results:
                for name, value in result.items():
                    sums[name] = sums.get(name, 0.0) + value
        return sums

    def _gather(self, found: list[Any]) -> list[Any]:
        mine = found if self._reports() else []
        if dist.get_world_size() == 1:
            return mine
        everyone: list[Any] | None = (
            [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        )
        dist.gather_object(mine, everyone)
        return [item for part in everyone or [] for item in part]

    # -- weights -------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield Hugging Face names and full tensors on rank 0; all ranks must iterate to the end.

        A tied embedding comes once. A tensor may share memory with the model: copy what you keep.
        """
        from ._weights import gather_weights

        return gather_weights(self._model.module, self._dims, self._config)

    def export_hf(self, folder: Path) -> None:
        """Write a folder that transformers loads, with the tokenizer of the starting folder.

        Rank 0 writes; the folder appears under its name only when it is complete.
        """
        if dist.get_rank() == 0:
            write_hf(Path(folder), self.weights(), config=self._dims.raw, copy_from=self._hf_dir)
        else:
            for _ in self.weights():
                pass
        dist.barrier()

    def save(self, folder: Path) -> None:
        """Write model, optimizer, schedule and random state; atomic, readable by other layouts."""
        from ._checkpoint import save_checkpoint

        progress = {
            "step": self._step,
            "total_steps": self._total_steps,
            "optimizer": self._optimizer_config.model_dump(),
        }
        save_checkpoint(Path(folder), self._dims, self._model, self._optimizer, progress)

    def load(self, folder: Path) -> None:
        """Continue from a checkpoint of this model, saved by any layout.

        Call `set_optimizer` as at the start of the stage first; without it only the weights are
        read, and the checkpoint may also be Megatron-LM's (its folder with the tracker file).

        Raises:
            CheckpointError: No complete checkpoint, or another model's.
        """
        from ._checkpoint import load_checkpoint

        progress = load_checkpoint(Path(folder), self._dims, self._model, self._optimizer)
        self._step = progress.get("step", 0)

    def close(self) -> None:
        """Leave the group; the policy cannot be used afterwards."""
        from megatron.core import parallel_state

        if parallel_state.model_parallel_is_initialized():
            parallel_state.destroy_model_parallel()
        if dist.is_initialized():
            dist.destroy_process_group()
