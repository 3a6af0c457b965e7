"""Chat, and the command line around it."""

import asyncio
import json
import signal
import subprocess
import sys
import types

import pytest

from retool_rollout import Limits, Reply, Sampling, ScriptedEngine, make_dialect
from retool_rollout._chat import chat
from retool_rollout._cli import main

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}


@pytest.mark.parametrize("name", ["hermes", "retool", "seed"])
async def test_a_conversation_goes_on_token_for_token(tiny, make_tools, name):
    dialect = make_dialect(name, tiny)
    answers = [dialect.turn_ids("", [CALL]), dialect.turn_ids(r"Answer: \boxed{42}", [])]
    asked = []

    def script(prompt_ids, sampling, session_id):
        asked.append(list(prompt_ids))
        return answers[(len(asked) - 1) % 2]

    async def questions():
        yield "What is 6 * 7?"
        yield "And again, <|im_end|>?"

    shown = []
    done = await chat(
        questions(),
        engine=ScriptedEngine(script),
        tools=make_tools(answer=lambda *_: Reply(text="42")),
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=500),
        show=lambda who, text: shown.append((who, text)),
    )
    assert [trajectory.answer for trajectory in done] == ["42", "42"]
    assert asked[2][: len(done[0].ids)] == list(done[0].ids)
    follow = tiny.decode(asked[2][len(done[0].ids) :])
    assert follow.startswith("\n<|im_start|>user")
    assert follow.rstrip().endswith("And again, <|im_end|>?<|im_end|>\n<|im_start|>assistant")
    assert (
        asked[2].count(tiny.control_id("<|im_end|>"))
        == list(done[0].ids).count(tiny.control_id("<|im_end|>")) + 1
    )
    assert ("tool", "[ok] 42") in shown
    assert shown[-1][0] == "end"


async def test_a_question_after_a_cut_turn_stands_behind_its_end(tiny, make_tools):
    dialect = make_dialect("hermes", tiny, tool_specs=())
    asked = []

    def script(prompt_ids, sampling, session_id):
        asked.append(tiny.decode(prompt_ids))
        return dialect.turn_ids("x" * 50, [])

    async def questions():
        yield "One?"
        yield "Two?"

    await chat(
        questions(),
        engine=ScriptedEngine(script),
        tools=make_tools(),
        dialect=dialect,
        limits=Limits(turn_tokens=3),
        sampling=Sampling(max_tokens=500),
        show=lambda *_: None,
    )
    assert asked[1].removeprefix(asked[0]).startswith("xxx<|im_end|>\n<|im_start|>user\nTwo?")


async def test_a_stateful_chat_keeps_one_session_and_shows_what_it_answers(tiny, make_tools):
    dialect = make_dialect("hermes", tiny)
    answers = [dialect.turn_ids("", [CALL]), dialect.turn_ids("Done.", [])]
    tools, asked, shown = make_tools(), [], []

    def script(*_):
        asked.append(tools.open_sessions)
        return answers[(len(asked) - 1) % 2]

    async def questions():
        yield "One?"
        yield "Two?"

    await chat(
        questions(),
        engine=ScriptedEngine(script),
        tools=tools,
        dialect=dialect,
        limits=Limits(),
        sampling=Sampling(max_tokens=500),
        show=lambda *line: shown.append(line),
        stateful=True,
    )
    assert (asked, tools.open_sessions) == ([1] * 4, 0)
    assert shown.count(("tool", "[ok] 42")) == 2


def test_ctrl_c_at_the_prompt_ends_the_chat(tiny_file):
    command = [sys.executable, "-m", "retool_rollout._cli", "chat", "--tools", "none"]
    command += ["--endpoint", "http://127.0.0.1:9", "--tokenizer", str(tiny_file.parent)]
    # A shell that runs the tests in the background has its children ignore the signal.
    usual = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    signal.signal(signal.SIGINT, usual)
    try:
        assert process.stdout.read(5) == b"you> "
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b"retool-rollout: stopped\n"
    finally:
        process.kill()
        process.communicate()


async def test_the_chat_command_answers_on_a_pipe(tiny, tiny_file, fake_server):
    dialect = make_dialect("hermes", tiny)
    fake_server.turns = [dialect.turn_ids(r"It is \boxed{42}.", [])]
    command = [sys.executable, "-m", "retool_rollout._cli", "chat", "--endpoint", fake_server.url]
    command += ["--tokenizer", str(tiny_file.parent), "--tools", "none", "--engine", "sglang"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(b"6 * 7?\n\n")
    assert process.returncode == 0
    assert "policy> It is \\boxed{42}.\n" in output.decode()
    assert "end> completed: answered" in output.decode()


def test_the_eval_command_prints_a_table_and_tells_what_is_missing(tmp_path, tiny_file, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"problem": "6 * 7?", "answer": 42}) + "\n")
    command = ["eval", "--endpoint", "http://127.0.0.1:9", "--tokenizer", str(tiny_file.parent)]
    command += ["--data", str(data), "--output", str(tmp_path / "out"), "--tools", "none"]
    assert main([*command, "--n", "0", "--grader", "exact"]) == 2
    assert "--n must be >= 1" in capsys.readouterr().err
    assert main([*command, "--first", "0", "--grader", "exact"]) == 2
    assert "--first must be >= 1" in capsys.readouterr().err


def test_a_machine_without_isolation_gets_one_line(tmp_path, tiny_file, monkeypatch, capsys):
    class WeakError(Exception):
        pass

    class Sandbox:
        async def __aenter__(self):
            raise WeakError("no isolation to be had")

        async def __aexit__(self, *_):
            raise AssertionError("it was never entered")

    fake = types.ModuleType("retool_sandbox")
    fake.Sandbox, fake.SandboxError = Sandbox, WeakError
    monkeypatch.setitem(sys.modules, "retool_sandbox", fake)
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"problem": "6 * 7?", "answer": 42}) + "\n")
    command = ["eval", "--endpoint", "http://127.0.0.1:9", "--tokenizer", str(tiny_file.parent)]
    command += ["--data", str(data), "--output", str(tmp_path / "out"), "--grader", "exact"]
    assert main(command) == 2
    assert capsys.readouterr().err == "retool-rollout: no isolation to be had (or --tools none)\n"


def test_without_an_extra_the_command_names_it(tmp_path, tiny_file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "retool_reward", None)
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"problem": "6 * 7?", "answer": 42}) + "\n")
    command = ["eval", "--endpoint", "http://127.0.0.1:9", "--tokenizer", str(tiny_file.parent)]
    command += ["--data", str(data), "--output", str(tmp_path / "out")]
    assert main(command) == 2
    assert "pip install 'retool-rollout[reward]'" in capsys.readouterr().err


def test_importing_the_package_brings_no_framework_and_no_network_client():
    code = (
        "import sys, retool_rollout, retool_rollout.hooks.vime, retool_rollout.hooks.slime\n"
        "heavy = {'torch', 'ray', 'vllm', 'aiohttp', 'rich', 'jinja2', 'transformers', "
        "'retool_sandbox', 'retool_reward', 'retool_data'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
