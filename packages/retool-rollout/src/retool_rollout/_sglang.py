"""SGLang's `/generate`, directly or through slime's router."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ._engine import (
    ContextOverflowError,
    EngineConfigError,
    EngineError,
    FinishReason,
    Generation,
    Sampling,
)
from ._http import HttpEngine

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
}


class SglangEngine(HttpEngine):
    """One or more SGLang servers, or slime's router."""

    def __init__(
        self, urls: str | Sequence[str], *, weight_version: int | None = None, **options: Any
    ) -> None:
        """Configure.

        Args:
            urls: Base URLs.
            weight_version: Label of the sampled tokens while the server does not tell its own.
            options: Those of `HttpEngine`.
        """
        super().__init__(urls, **options)
        self.weight_version = weight_version

    async def pause(self) -> None:
        """End every request in flight with what it has, and take no more until `resume()`."""
        await self.control("/pause_generation", body={"mode": "abort"})

    async def resume(self) -> None:
        """Sample again on every replica."""
        await self.control("/continue_generation", body={})

    async def abort_all(self) -> None:
        """End every request in flight with what it has, and go on serving."""
        await self.control("/abort_request", body={"abort_all": True})

    def _request(
        self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str
    ) -> tuple[str, Mapping[str, Any], Mapping[str, str]]:
        parameters: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        }
        if sampling.stop:
            parameters["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            parameters["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.seed is not None:
            parameters["sampling_seed"] = sampling.seed
        body = {
            "input_ids": list(prompt_ids),
            "sampling_params": parameters,
            "return_logprob": True,
        }
        return "/generate", body, {"X-Session-ID": session_id}

    def _read(self, answer: Mapping[str, Any]) -> Generation:
        meta = answer["meta_info"]
        finish = meta["finish_reason"]
        kind = str(finish if isinstance(finish, str) else finish["type"])
        if kind not in _FINISH:
            raise ValueError(f"finish_reason {finish!r}")
        pairs = meta.get("output_token_logprobs")
        if pairs is None:
            # Tokens without logprobs: handed on as they are, so that the loop aborts.
            ids = tuple(int(token_id) for token_id in answer.get("output_ids") or ())
            return Generation(ids=ids, logprobs=(), finish=_FINISH[kind])
        version = meta.get("weight_version")
        label = int(version) if str(version).isdigit() else self.weight_version
        return Generation(
            ids=tuple(int(pair[1]) for pair in pairs),
            logprobs=tuple(math.nan if pair[0] is None else float(pair[0]) for pair in pairs),
            finish=_FINISH[kind],
            weight_version=label,
        )

    def _refusal(self, url: str, status: int, text: str) -> EngineError:
        lowered = text.lower()
        if status in (401, 403):
            return EngineConfigError(f"{url} refused the API key ({status}): {text[:300]}")
        if status in (404, 405):
            return EngineConfigError(f"{url} has no /generate ({status}); is it an SGLang server?")
        if "context length" in lowered or "longer than the model" in lowered:
            return ContextOverflowError(f"{url} refused the prompt as too long: {text[:300]}")
        return EngineError(f"{url} refused the request ({status}): {text[:500]}")
