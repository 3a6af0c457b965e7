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
        # SGLang's router keeps a session on one replica by this header.
        return "/generate", body, {"X-SMG-Routing-Key": session_id}

    def _read(self, answer: Mapping[str, Any], weight_version: int | None) -> Generation:
        meta = answer["meta_info"]
        finish = meta["finish_reason"]
        kind = str(finish if isinstance(finish, str) else finish["type"])
        if kind not in _FINISH:
            raise ValueError(f"finish_reason {finish!r}")
        pairs = meta.get("output_token_logprobs") or ()
        with_logprob = tuple(int(pair[1]) for pair in pairs)
        every = tuple(int(token_id) for token_id in answer.get("output_ids") or ())
        version = meta.get("weight_version")
        label = int(version) if str(version).isdigit() else weight_version
        return Generation(
            # Tokens without a logprob are handed on as they are, so that the loop aborts.
            ids=every if len(every) > len(with_logprob) else with_logprob,
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
