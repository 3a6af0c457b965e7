"""What can be wrong with a trajectory: its turns, calls, outputs and answer."""

import ast
import builtins
import re
import warnings
from collections.abc import Iterator
from typing import Any

from ._findings import Finding, finding
from ._gold import GoldKind
from ._lint_problem import CONTROL_TOKEN
from ._normalise import same_gold
from ._records import Kind, Segment, ToolCall, Trajectory
from ._replay import BAD
from ._shapes import last_boxed

_OUTPUT_MARKUP = re.compile(r"</?interpreter>|```output\b|</?tool_response>")
_CALL_MARKUP = re.compile(r"<code>|<tool_call>|```python\s*\n.*?```\s*</code>", re.DOTALL)
_HTML = re.compile(r"&(?:lt|gt|amp|quot|#39|#34);")
_UNICODE_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")
_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}


def lint_trajectory(trajectory: Trajectory) -> Iterator[Finding]:
    """Check one trajectory; its problem is checked by `lint_problem`."""
    try:
        turns = trajectory.turns()
    except ValueError as error:
        yield _found(trajectory, "turns_broken", "", str(error))
        turns = []
    try:
        described = {spec.get("function", spec).get("name") for spec in trajectory.tool_specs}
    except (ValueError, AttributeError) as error:  # a record that another program wrote
        yield _found(trajectory, "tools_missing", "tools", f"tools are no list of specs: {error}")
        described = set[Any]()
    earlier_names: set[str] = set()
    calls = results = 0
    for number, segment in enumerate(trajectory.segments, 1):
        if segment.call is not None:
            calls += 1
            if segment.call.name not in described:
                message = (
                    f"{segment.call.name!r} is not among the tools {sorted(map(str, described))}"
                )
                yield _found(trajectory, "tools_missing", f"call {calls}", message)
            yield from _lint_call(trajectory, segment.call, f"call {calls}", earlier_names)
        elif segment.result is not None:
            results += 1
            yield from _lint_result(trajectory, segment, f"result {results}")
        else:
            yield from _lint_text(trajectory, segment.text, f"segment {number}")
    for number, turn in enumerate(turns[:-1], 1):
        if match := re.search(r"<think>", turn.text):
            yield _found(trajectory, "thinking_in_history", f"turn {number}", match=match)
    yield from _lint_end(trajectory)


def _found(
    trajectory: Trajectory,
    code: str,
    where: str,
    message: str = "",
    match: re.Match[str] | None = None,
    evidence: str = "",
) -> Finding:
    return finding(
        code,
        trajectory.provenance,
        trajectory.problem.problem_id,
        message,
        where=where,
        span=match.span() if match else (-1, -1),
        evidence=evidence or (repr(match[0])[1:-1] if match else ""),
    )


def _lint_text(trajectory: Trajectory, text: str, where: str) -> Iterator[Finding]:
    if match := _OUTPUT_MARKUP.search(text):
        yield _found(trajectory, "interpreter_in_text", where, match=match)
    if match := _CALL_MARKUP.search(text):
        yield _found(trajectory, "call_in_text", where, match=match)
    if match := re.search(r"<\|[a-z_]+\|>", text):
        yield _found(trajectory, "control_token_in_content", where, match=match)
    if match := re.search(r"\x08oxed|\x0crac", text):
        yield _found(trajectory, "latex_unescaped", where, match=match)
    if match := _HTML.search(text):
        yield _found(trajectory, "html_escaped", where, match=match)


def _lint_result(trajectory: Trajectory, segment: Segment, where: str) -> Iterator[Finding]:
    assert segment.result is not None
    if match := CONTROL_TOKEN.search(segment.result.text):
        yield _found(trajectory, "control_token_in_content", where, match=match)
    code = BAD.get(segment.result.status)
    if code is not None and segment.result.shown == "recorded":
        replayed = segment.result.replayed or ""
        evidence = f"recorded {segment.result.recorded!r:.120}, replayed {replayed!r:.120}"
        yield _found(trajectory, code, where, evidence=evidence)


def _lint_call(
    trajectory: Trajectory, call: ToolCall, where: str, earlier: set[str]
) -> Iterator[Finding]:
    try:
        arguments = call.as_dict()
    except ValueError as error:
        yield _found(
            trajectory, "arguments_invalid", where, str(error), evidence=call.arguments[:80]
        )
        return
    nulls = [key for key, value in arguments.items() if value is None]
    if nulls:
        yield _found(trajectory, "arguments_null_padded", where, evidence=", ".join(nulls))
    if "\n" in call.arguments:
        yield _found(trajectory, "arguments_pretty", where, evidence=call.arguments[:40])
    if match := _UNICODE_ESCAPE.search(call.arguments):
        yield _found(trajectory, "unicode_escaped", where, match=match)
    code = arguments.get("code")
    if not isinstance(code, str):
        return
    if match := _FENCE.search(code):
        yield _found(trajectory, "fence_in_code", where, match=match)
        return
    if match := _HTML.search(code):
        yield _found(trajectory, "html_escaped", where, match=match)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in somebody's code is not ours
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError) as error:
        yield _found(trajectory, "code_syntax", where, str(error))
        return
    defined, used = _names(tree)
    needed = sorted((used - defined - _BUILTINS) & earlier)
    if needed:
        yield _found(trajectory, "needs_earlier_state", where, evidence=", ".join(needed))
    earlier |= defined


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Names that a program defines anywhere, and names that it reads."""
    defined: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return defined, used


def _lint_end(trajectory: Trajectory) -> Iterator[Finding]:
    if not trajectory.segments:
        yield _found(trajectory, "ends_without_answer", "end")
        return
    last = trajectory.segments[-1]
    if last.kind is Kind.CALL:
        yield _found(trajectory, "call_without_result", "end")
        return
    if last.kind is Kind.RESULT:
        yield _found(trajectory, "ends_without_answer", "end")
        return
    words: list[str] = []
    for segment in reversed(trajectory.segments):
        if segment.kind not in (Kind.TEXT, Kind.ANSWER):
            break
        words.insert(0, segment.text)
    text = "\n".join(words)
    answer = last_boxed(text)
    if answer is None:
        code = "box_unbalanced" if re.search(r"\\boxed\s*\{", text) else "answer_without_box"
        yield _found(trajectory, code, "end", evidence=text[-80:])
        return
    problem = trajectory.problem
    # Only integers: whether two expressions are equal is the grader's business, not a lint's.
    whole = re.fullmatch(r"[-+]?[\d,]+", answer)
    if problem.gold_kind is GoldKind.INTEGER and whole and not same_gold(answer, problem.gold):
        message = f"the answer is {answer!r}, the gold {problem.gold!r}"
        yield _found(trajectory, "answer_differs_from_gold", "end", message)
