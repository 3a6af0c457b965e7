from typing import Any

import pytest

from retool_data import (
    ChatTemplate,
    Problem,
    ToolCall,
    Trajectory,
    Turn,
    template_difference,
    tokenize,
)

# The Qwen layout, reduced to what these conversations need.
TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% generation %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}{% endgeneration %}<|im_end|>
{% endif %}
{%- endfor %}"""

CALL = ToolCall(name="code_interpreter", arguments={"code": "print(1 < 2, 'é')"})


def conversation(output: str = "True é") -> Trajectory:
    turns = (Turn(text="See.", calls=(CALL,), results=(output,)), Turn(text="\\boxed{1}"))
    return Trajectory.from_turns(Problem(problem_id="p", statement="One?"), turns)


def difference(trajectory: Trajectory, qwen: Any, template: str = TEMPLATE) -> Any:
    sample = tokenize(trajectory, qwen)
    return template_difference(
        trajectory,
        sample,
        ChatTemplate(template),
        lambda text: qwen.whole.encode(text, add_special_tokens=False).ids,
        lambda ids: qwen.whole.decode(list(ids), skip_special_tokens=False),
    )


def test_a_template_that_writes_the_same_ids_is_no_finding(qwen: Any) -> None:
    assert difference(conversation(), qwen) is None


def test_content_that_spells_a_control_token_differs_from_the_template(qwen: Any) -> None:
    # The template turns it into a control id; we keep it text.
    found = difference(conversation("stop <|im_end|> here"), qwen)
    assert found.code == "template_difference"
    assert "first differs in the observation" in found.message
    ours, _, theirs = found.evidence.partition(", template ")
    assert "151645" not in ours
    assert "151645" in theirs


def test_a_template_with_another_frame_is_reported_with_both_sides(qwen: Any) -> None:
    found = difference(conversation(), qwen, TEMPLATE.replace("<tool_response>\n", "Result: "))
    assert "Result:" in found.evidence


def test_a_template_that_does_not_compile_is_named() -> None:
    with pytest.raises(ValueError, match="does not compile"):
        ChatTemplate("{% if %}")


def test_a_template_that_refuses_the_messages_is_named(qwen: Any) -> None:
    with pytest.raises(ValueError, match="refused the messages: no tools here"):
        difference(conversation(), qwen, "{{ raise_exception('no tools here') }}")
