"""vLLM's token endpoint, `/inference/v1/generate`, versions 0.23 to 0.32."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from ._engine import (
    ContextOverflowError,
    EngineConfigError,
    EngineError,
    FinishReason,
    Generation,
    Sampling,
)
from ._http import HttpEngine

GENERATE = "/inference/v1/generate"
# vLLM sends this for minus infinity, which JSON cannot carry; it is no logprob to train on.
NO_LOGPROB = -9999.0

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "cancelled": FinishReason.ABORT,
}


class VllmEngine(HttpEngine):
    """One or more vLLM servers that hold the same model."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        model: str | None = None,
        **options: Any,
    ) -> None:
        """Configure.

        Args:
            urls: Base URLs, such as `http://127.0.0.1:8000`.
            model: The served name. None: whatever the server holds.
            options: Those of `HttpEngine`. A server tells the version of its weights from vLLM 0.3x
                on, when somebody has set it.
        """
        super().__init__(urls, **options)
        self.model = model

    async def pause(self, *, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Stop sampling on every replica (needs VLLM_SERVER_DEV_MODE=1).

        Args:
            mode: What becomes of requests in flight. "abort": they end with what they have, and the
                trajectories can be resumed. "wait": they finish first. "keep": they freeze and go
                on after `resume()`. A request that comes during the pause waits for `resume()`
                whatever the mode: to end all trajectories meanwhile, set their `interrupt`.
        """
        await self.control(f"/pause?mode={mode}")

    async def resume(self) -> None:
        """Sample again on every replica."""
        await self.control("/resume")

    async def is_paused(self) -> dict[str, bool]:
        """Ask each replica."""
        answers = await self.control("/is_paused", method="GET")
        return {url: bool(answer["is_paused"]) for url, answer in answers.items()}

    async def abort_all(self) -> None:
        """End every request in flight with what it has, and go on serving."""
        await self.control("/abort_requests", body={})

    async def set_weight_version(self, version: int) -> None:
        """Label the weights that every replica now holds; tokens carry the label from here on."""
        await self.control("/update_weight_version", body={"new_version": str(version)})
        self.weight_version = version

    async def served_weight_versions(self) -> dict[str, int | None]:
        """Read the label back from each replica: after a sync they must all say the same."""
        answers = await self.control("/weight_info", method="GET")
        return {url: _version(answer["weight_version"]) for url, answer in answers.items()}

    async def reset_prefix_cache(self) -> None:
        """Drop cached keys and values, which belong to the old weights after a sync."""
        await self.control("/reset_prefix_cache")

    async def served_models(self) -> dict[str, list[str]]:
        """The names under which each replica serves."""
        answers = await self.control("/v1/models", method="GET")
        return {
            url: [str(entry["id"]) for entry in answer["data"]] for url, answer in answers.items()
        }

    def _request(
        self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str
    ) -> tuple[str, Mapping[str, Any], Mapping[str, str]]:
        parameters: dict[str, Any] = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "logprobs": 1,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
        }
        if sampling.stop:
            parameters["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            parameters["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.seed is not None:
            parameters["seed"] = sampling.seed
        body: dict[str, Any] = {"token_ids": list(prompt_ids), "sampling_params": parameters}
        if self.model is not None:
            body["model"] = self.model
        # vLLM's router keeps a session on one replica by this header.
        return GENERATE, body, {"X-Session-ID": session_id}

    def _read(self, answer: Mapping[str, Any], weight_version: int | None) -> Generation:
        choice = answer["choices"][0]
        ids = tuple(int(token_id) for token_id in choice.get("token_ids") or ())
        logprobs = cast("dict[str, Any]", choice.get("logprobs") or {})
        content = cast("list[Any]", logprobs.get("content") or [])
        finish = choice["finish_reason"]
        if finish not in _FINISH:
            raise ValueError(f"finish_reason {finish!r}")
        return Generation(
            ids=ids,
            logprobs=tuple(_logprob(item) for item in content),
            finish=_FINISH[finish],
            weight_version=weight_version,
            weight_versions=_spans(choice.get("weight_versions"), len(ids), weight_version),
        )

    def _refusal(self, url: str, status: int, text: str) -> EngineError:
        lowered = text.lower()
        if status == 403 and "scale-out" in lowered:
            return EngineConfigError(
                f"{url} has its token endpoint off (403); start vLLM with --enable-scale-out"
            )
        if status in (401, 403):
            return EngineConfigError(f"{url} refused the API key ({status}): {text[:300]}")
        if status == 404 and "model" in lowered:
            return EngineConfigError(
                f"{url} serves no model named {self.model!r}; {url}/v1/models lists what it has"
            )
        if status in (404, 405):
            return EngineConfigError(
                f"{url} has no {GENERATE} ({status}); vLLM has it from 0.23 on"
            )
        if (
            "context length" in lowered
            or "max_model_len" in lowered
            or "longer than the maximum" in lowered
        ):
            return ContextOverflowError(f"{url} refused the prompt as too long: {text[:300]}")
        return EngineError(f"{url} refused the request ({status}): {text[:500]}")


def _logprob(item: Any) -> float:
    value: Any = cast("dict[str, Any]", item).get("logprob") if isinstance(item, dict) else None
    # A missing number stays missing: the loop sees NaN and aborts, it never trains on a zero.
    if not isinstance(value, int | float) or value <= NO_LOGPROB:
        return math.nan
    return float(value)


def _spans(spans: Any, num_tokens: int, unlabelled: int | None) -> tuple[int | None, ...] | None:
    if not spans:
        return None
    versions = [unlabelled] * num_tokens
    for span in cast("list[dict[str, Any]]", spans):
        version = _version(span["version"])
        if version is not None:
            start, end = int(span["start"]), min(int(span["end"]), num_tokens)
            versions[start:end] = [version] * (end - start)
    return tuple(versions)


def _version(label: Any) -> int | None:
    text = str(label)
    return int(text) if text.isascii() and text.isdigit() else None
