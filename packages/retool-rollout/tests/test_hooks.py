"""vime and slime: stand-ins that behave as the real classes do, over a real HTTP server."""

import asyncio
import sys
import types
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from retool_rollout import Reply, Tokenizer, make_dialect
from retool_rollout._framework import close_state, limits_of, read_prompt, sampling_of
from retool_rollout.hooks import generate_with_retool, slime, vime

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}


@dataclass
class OldSample:
    """A sample as slime had it first: plain lists, filled by the function."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    index: int | None = 0
    group_index: int | None = 0
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    weight_versions: list[str] = field(default_factory=list)
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)


class NewSample(OldSample):
    """A sample that refuses tokens, masks and logprobs of unequal length: slime's newer one."""

    def append_response_tokens(
        self, args=None, *, tokens=None, log_probs=None, trainable=True, meta_info=None, text=None
    ):
        if log_probs is not None and len(log_probs) != len(tokens):
            raise ValueError("log_probs length != tokens length")
        if tokens and trainable and log_probs is None:
            raise ValueError("trainable response tokens require rollout log probabilities.")
        if tokens and not trainable:
            if log_probs is not None:
                raise ValueError("non-trainable response tokens should not pass log probabilities.")
            log_probs = [0.0] * len(tokens)
        before = self.response_length
        self.tokens += tokens
        self.response_length += len(tokens)
        self.loss_mask = (self.loss_mask or [1] * before) + [int(trainable)] * len(tokens)
        if self.rollout_log_probs is None:
            if trainable and before:
                raise ValueError("existing response tokens have no log probabilities")
            self.rollout_log_probs = [0.0] * before
        self.rollout_log_probs += log_probs
        lengths = {self.response_length, len(self.loss_mask), len(self.rollout_log_probs)}
        if len(lengths) != 1:
            raise ValueError(f"lengths differ: {lengths}")


def check_whole(sample):
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
    assert len(sample.tokens) > sample.response_length


class OneTool:
    """The executor of these tests: one slot, taken inside `execute` and nowhere else."""

    specs = ()

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(1)

    async def execute(self, name, arguments):
        async with self.slots:
            await asyncio.sleep(0)
            return Reply(text="42")

    def session(self):
        raise AssertionError("the hooks are stateless")


@pytest.fixture(params=[OldSample, NewSample], ids=["old sample", "new sample"])
def sample_class(request):
    return request.param


@pytest.fixture
async def setup(tiny, tiny_file, fake_server, monkeypatch):
    """Arguments as the frameworks make them, against a scripted server."""
    module = types.ModuleType("retool_test_tools")
    module.make = lambda args: OneTool()
    monkeypatch.setitem(sys.modules, "retool_test_tools", module)
    dialect = make_dialect("seed", tiny)
    fake_server.turns = [
        dialect.turn_ids("Let me see.", [CALL]),
        dialect.turn_ids(r"Answer: \boxed{42}", []),
    ]
    host, port = fake_server.host, fake_server.port
    args = SimpleNamespace(
        partial_rollout=False,
        rollout_max_context_len=4096,
        hf_checkpoint=str(tiny_file.parent),
        vllm_router_ip=host,
        vllm_router_port=port,
        sglang_router_ip=host,
        sglang_router_port=port,
        retool_tools="retool_test_tools:make",
    )
    yield args, fake_server
    await close_state()


PARAMETERS = {
    "max_new_tokens": 2048,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "no_stop_trim": True,
}


@pytest.mark.parametrize("generate", [vime.generate, slime.generate, generate_with_retool.generate])
async def test_a_hook_fills_the_sample(setup, sample_class, generate, tiny):
    args, server = setup
    sample = sample_class(prompt="What is 6 * 7?", label="42")
    assert await generate(args, sample, PARAMETERS) is sample
    check_whole(sample)
    assert sample.status is sample_class.Status.COMPLETED
    assert sample.response.endswith("Answer: \\boxed{42}<|im_end|>")
    assert "<interpreter>\n42\n</interpreter>" in sample.response
    own = tiny.decode(
        [
            t
            for t, m in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True)
            if m
        ]
    )
    assert "<interpreter>" not in own
    assert sample.tool_call_count == 1
    assert sample.metadata["retool"]["answer"] == "42"
    assert sample.metadata["retool"]["outcomes"] == ["ok"]
    if generate is vime.generate:
        assert server.bodies[0]["model"] == args.hf_checkpoint


@pytest.mark.parametrize("generate", [vime.generate, slime.generate])
@pytest.mark.parametrize("logprobs", ["missing", "short", "null"])
async def test_tokens_without_usable_logprobs_abort_and_are_never_zeros(
    setup, sample_class, generate, logprobs
):
    args, server = setup
    server.logprobs = logprobs
    sample = sample_class(prompt="?")
    await generate(args, sample, PARAMETERS)
    assert sample.status is sample_class.Status.ABORTED
    assert not sample.rollout_log_probs
    assert sample.response_length == 0
    # The buffer gives it back, and the next attempt starts clean.
    server.logprobs = "good"
    await generate(args, sample, PARAMETERS)
    check_whole(sample)
    assert sample.status is sample_class.Status.COMPLETED


async def test_the_tool_limit_is_taken_once_so_that_one_slot_is_enough(setup, sample_class):
    args, _ = setup
    samples = [sample_class(prompt="?", index=i) for i in range(8)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(vime.generate(args, sample, PARAMETERS) for sample in samples))
    assert {sample.status for sample in samples} == {sample_class.Status.COMPLETED}


async def test_stale_state_of_an_earlier_attempt_is_cleared(setup, sample_class):
    args, _ = setup
    sample = sample_class(
        prompt="?",
        tokens=[1, 2, 3],
        response="old",
        response_length=2,
        loss_mask=[1, 1],
        rollout_log_probs=[-1.0, -1.0],
        status=sample_class.Status.ABORTED,
        weight_versions=["old"],
        reward=1.0,
    )
    sample.rollout_top_p_token_ids = [9]
    await vime.generate(args, sample, PARAMETERS)
    check_whole(sample)
    assert "old" not in sample.response
    assert sample.rollout_top_p_token_ids is None
    assert -1.0 not in sample.rollout_log_probs
    assert sample.reward is None


async def test_a_partial_rollout_goes_on_from_its_tokens(setup, sample_class):
    args, server = setup
    args.partial_rollout = True
    server.abort_after = 10
    sample = sample_class(prompt="?")
    await vime.generate(args, sample, PARAMETERS)
    assert sample.status is sample_class.Status.ABORTED
    kept = list(sample.tokens)
    assert sample.response_length == 10
    server.abort_after = None
    await vime.generate(args, sample, PARAMETERS)
    check_whole(sample)
    assert sample.tokens[: len(kept)] == kept
    assert sample.status is sample_class.Status.COMPLETED
    assert "retool_resume" not in sample.metadata


async def test_tokens_of_earlier_weights_are_not_trained_on_where_slime_is_told_so(
    setup, sample_class
):
    args, server = setup
    args.partial_rollout = args.mask_offpolicy_in_partial_rollout = True
    server.abort_after = 10
    sample = sample_class(prompt="?")
    await vime.generate(args, sample, PARAMETERS)
    assert sample.loss_mask == [1] * 10
    server.abort_after = None
    await vime.generate(args, sample, PARAMETERS)
    check_whole(sample)
    assert sample.loss_mask[:11] == [0] * 10 + [1]
    assert sample.rollout_log_probs[9:11] == [0.0, -0.5]


async def test_a_sample_never_outgrows_the_context(setup, sample_class):
    args, _ = setup
    for room in (1, 30, 150, 400):
        short = sample_class(prompt="?")
        args.rollout_max_context_len = None
        args.max_tokens_per_gpu = len((await _prompt(args, short)).tokens) + room
        args.context_parallel_size = 1
        await vime.generate(args, short, PARAMETERS)
        assert len(short.tokens) <= args.max_tokens_per_gpu
        assert short.status in (sample_class.Status.TRUNCATED, sample_class.Status.COMPLETED)


async def _prompt(args, sample):
    """A sample that failed at once holds the prompt alone."""
    probe = type(sample)(prompt=sample.prompt)
    limits = SimpleNamespace(**{**vars(args), "rollout_max_context_len": 1})
    await vime.generate(limits, probe, PARAMETERS)
    assert probe.status is type(sample).Status.FAILED
    return probe


async def test_a_prompt_is_text_messages_or_already_templated(setup, sample_class, tiny):
    args, server = setup
    messages = [{"role": "user", "content": "What?"}]
    templated = "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    for prompt in ("What?", messages, templated):
        await vime.generate(args, sample_class(prompt=prompt), PARAMETERS)
    text, listed, given = (tiny.decode(body["token_ids"]) for body in server.bodies[::2])
    assert text == listed
    assert text.count("<|im_start|>user") == 1
    assert given == templated
    assert server.bodies[4]["token_ids"].count(tiny.control_id("<|im_start|>")) == 2
    with pytest.raises(TypeError, match="messages"):
        read_prompt(7)


def test_a_prompt_of_another_template_is_seen_to_be_templated(bare_definition):
    controls = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    template = (
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>"
        "\n\n{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    )
    tokenizer = Tokenizer(bare_definition(controls), chat_template=template)
    dialect = make_dialect("retool", tokenizer)
    text = tokenizer.decode(dialect.prompt_ids([{"role": "user", "content": "Q"}], ()))
    assert read_prompt(text, dialect.opening) == ([], text)
    assert read_prompt("Q", dialect.opening) == ([{"role": "user", "content": "Q"}], None)


def test_arguments_that_are_missing_get_the_documented_defaults():
    nothing = SimpleNamespace()
    limits = limits_of(nothing, {}, 100)
    assert (limits.turns, limits.calls, limits.context_tokens) == (16, 16, 100 + 8192)
    assert limits_of(SimpleNamespace(rollout_max_response_len=50), {}, 100).context_tokens == 150
    gpu = SimpleNamespace(
        rollout_max_context_len=None, max_tokens_per_gpu=10, context_parallel_size=4
    )
    assert limits_of(gpu, {}, 5).context_tokens == 40
    both = SimpleNamespace(rollout_max_context_len=10, eval_max_context_len=20)
    assert limits_of(both, {}, 5).context_tokens == 10
    assert limits_of(both, {}, 5, evaluation=True).context_tokens == 20
    sampling = sampling_of(nothing, {"stop": "x", "top_k": 0})
    assert (sampling.stop, sampling.top_k, sampling.max_tokens) == (("x",), -1, 8192)


async def test_without_the_sandbox_extra_the_error_names_it(setup, monkeypatch):
    args, _ = setup
    args.retool_tools = None
    monkeypatch.setitem(sys.modules, "retool_sandbox", None)
    with pytest.raises(ImportError, match=r"retool-rollout\[sandbox\]"):
        await vime.generate(args, OldSample(prompt="?"), PARAMETERS)
    for name in ("retool_reward", "retool_reward.hooks", "retool_reward.hooks.vime"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"retool-rollout\[reward\]"):
        await generate_with_retool.reward_func(args, OldSample())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so Answer: \boxed{42}", ("answer", "42")),
        (r"Answer: \boxed{\frac{1}{\sqrt{2}}}", ("answer", r"\frac{1}{\sqrt{2}}")),
        (
            '<tool_call>{"name": "code_interpreter", "arguments": {"code": "a\nb"}}</tool_call>',
            ("code", "a\nb"),
        ),
        (
            '<tool_call>{\n"name": "code_interpreter",\n"arguments": {"code": "x"}\n}</tool_call>',
            ("code", "x"),
        ),
        ("<code>print(1)</code>", ("code", "print(1)")),
        ("```python\nprint(1)\n```", ("code", "print(1)")),
        ("nothing", (None, "")),
        ("<tool_call>broken</tool_call>", (None, "")),
    ],
)
def test_predictions_are_read_as_the_example_reads_them(text, expected):
    assert generate_with_retool.postprocess_predictions(text) == expected


def test_conversations_are_formatted_as_the_example_formats_them():
    tool = {"type": "function", "function": {"name": "f", "description": "a < b"}}
    text = generate_with_retool.format_conversation_with_tools("Q?", [tool])
    assert text.startswith(
        "<|im_start|>systemYou are a helpful assistant that can use Python tools"
    )
    assert (
        '<tools>{"function": {"description": "a \\u003c b", "name": "f"}, "type": "function"}\n'
        in text
    )
    assert text.endswith(
        "</tool_call>\n<|im_end|>\n<|im_start|>userQ?<|im_end|>\n<|im_start|>assistant"
    )
    assert generate_with_retool.format_conversation_with_tools("Q?", system_prompt="S") == (
        "<|im_start|>systemS\n<|im_end|>\n<|im_start|>userQ?<|im_end|>\n<|im_start|>assistant"
    )
