"""With the genuine Qwen3 tokenizer: ids as a rollout builds them, and nothing trained but turns."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_data import (
    Problem,
    SpanKind,
    ToolCall,
    Trajectory,
    Turn,
    load_trajectories,
    tokenize,
)

IM_END = 151645
NASTY = st.lists(
    st.sampled_from([*"ab \n\t<|>/é√", "<|im_end|>", "<tool_call>", "</think>"]), max_size=12
).map("".join)


def rollout_ids(renderer: Any, trajectory: Trajectory) -> tuple[list[int], list[int]]:
    """Append as a rollout does: sampled ids, then observation ids; never a second encoding."""
    ids = renderer.prompt_ids(trajectory.problem.messages, trajectory.tool_specs)
    mask = [0] * len(ids)
    for turn in trajectory.turns():
        sampled = renderer.turn_ids(
            turn.text, [{"name": c.name, "arguments": c.as_dict()} for c in turn.calls]
        )
        ids, mask = ids + sampled, mask + [1] * len(sampled)
        if turn.results:
            seen = renderer.observation_ids(list(turn.results))
            ids, mask = ids + seen, mask + [0] * len(seen)
    return ids, mask


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(NASTY, NASTY, NASTY), max_size=3), NASTY, NASTY)
def test_no_id_differs_from_a_rollout_and_content_makes_no_control_id(
    qwen: Any, steps: list[tuple[str, str, str]], asked: str, last: str
) -> None:
    turns = [
        Turn(
            text=text,
            calls=(ToolCall(name="code_interpreter", arguments={"code": code}),),
            results=(out,),
        )
        for text, code, out in steps
    ]
    trajectory = Trajectory.from_turns(
        Problem(problem_id="p", statement=asked), [*turns, Turn(text=last or "x")]
    )
    sample = tokenize(trajectory, qwen)
    assert (list(sample.ids), list(sample.mask)) == rollout_ids(qwen, trajectory)
    # Two messages of the prompt and two of each step end; nothing in any content does.
    assert sample.ids.count(IM_END) == 1 + 2 * len(steps) + 1
    for span in sample.spans:
        trained = set(sample.mask[span.start : span.end])
        assert trained == ({1} if span.kind is SpanKind.TURN else {0})


def test_the_real_rows_train_no_interpreter_text_and_no_prompt(
    qwen: Any, shared_data: Path
) -> None:
    files = ["retool_sft_verl_form", "retool_like_flower418", "tora_examples"]
    rows = [row for f in files for row in load_trajectories(shared_data / f"{f}.jsonl")]
    assert len(rows) == 36
    outputs = 0
    for row in rows:
        sample = tokenize(row, qwen)
        assert (list(sample.ids), list(sample.mask)) == rollout_ids(qwen, row)
        trained = [i for i, bit in zip(sample.ids, sample.mask, strict=True) if bit]
        text = qwen.whole.decode(trained, skip_special_tokens=False)
        assert "<tool_response>" not in text
        assert "<|im_start|>" not in text
        assert text.count("<|im_end|>") == len(row.turns())
        outputs += sum(len(turn.results) for turn in row.turns())
    assert outputs == 9 + 2 + 25


@pytest.mark.parametrize(
    ("text", "ids"), [("</code>\n", [522, 1851, 397]), ("</code>", [522, 1851, 29])]
)
def test_the_tokenizer_is_the_genuine_one(qwen: Any, text: str, ids: list[int]) -> None:
    # The pair that makes a trainer's mask differ from a rollout that stops at `</code>`.
    assert qwen.whole.encode(text, add_special_tokens=False).ids == ids
