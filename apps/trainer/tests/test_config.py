"""The configuration: what is accepted, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import ConfigError, load_config

MINIMAL = """
name: small
stages: [sft]
model: {shape: {}}
sft: {phases: [{data: clean, steps: 3}]}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(MINIMAL, encoding="utf-8")
    return file


def test_the_quickstart_config_is_valid() -> None:
    assert load_config(quickstart_config()).name == "quickstart"


def test_overrides_are_read_as_yaml_and_reach_into_lists(config_file: Path) -> None:
    config = load_config(
        config_file,
        ["policy.data_parallel=2", "sft.phases.0.steps=7", "sft.optimizer.betas=[0.8, 0.9]"],
    )
    assert config.policy.data_parallel == 2
    assert config.sft is not None
    assert config.sft.phases[0].steps == 7
    assert config.sft.optimizer.betas == (0.8, 0.9)


def test_an_engine_is_chosen_by_name_alone_or_with_keys(config_file: Path) -> None:
    assert load_config(config_file, ["engine=vllm"]).engine.kind == "vllm"
    config = load_config(config_file, ["engine=vllm", "engine.python=/x/python"])
    assert (config.engine.kind, config.engine.python) == ("vllm", "/x/python")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("polcy.data_parallel=2", "unknown key 'polcy'; did you mean 'policy'?"),
        (
            "policy.data_paralel=2",
            "unknown key 'policy.data_paralel'; did you mean 'policy.data_parallel'?",
        ),
        (
            "sft.optimizer.learning_rat=1",
            "unknown key 'sft.optimizer.learning_rat'; did you mean 'sft.optimizer.learning_rate'?",
        ),
        (
            "sft.phases.0.step=1",
            "unknown key 'sft.phases.0.step'; did you mean 'sft.phases.0.steps'?",
        ),
        ("sft.batch_size=0", "sft.batch_size: Input should be greater than 0, got 0"),
        ("seed", "override 'seed' is not of the form key=value, e.g. rl.steps=3"),
        ("stages=[rl]", "stages names 'rl', but there is no section 'rl'"),
        ("stages=[]", "stages: List should have at least 1 item"),
        ("evaluation.sets=[{name: AIME 2024, data: x}]", "evaluation.sets.0.name: String should"),
        ("evaluation.sets=[{name: a, data: x}, {name: a, data: y}]", "has one name twice: a, a"),
        ("sandbox.urls=[host:8080]", "sandbox.urls.0: String should match pattern '^https?://"),
        (
            "rl={problems: x, reward: {overlong: {buffer_tokens: 9000}}}",
            "rl.reward.overlong.buffer_tokens 9000 exceeds limits.response_tokens 8192",
        ),
    ],
)
def test_a_wrong_override_is_answered_in_one_line(
    config_file: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config_file, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the config .*nothing\.yaml.*No such file"):
        load_config(tmp_path / "nothing.yaml")


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"name: caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_config(file)


def test_broken_yaml_is_one_line_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("model: {shape: {", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"not valid YAML.*line 1") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)
