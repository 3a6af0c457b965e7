"""Prepare: the first weights, and every data set as records that the later stages read."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from retool_data import Problem, Provenance, ToolCall, Trajectory, Turn
from retool_sandbox import SandboxError
from retool_trainer.config import ArithmeticConfig, RunConfig
from retool_trainer.dialects import make_run_dialect
from retool_trainer.errors import RunRefusedError
from retool_trainer.observe import trajectories_path
from retool_trainer.quickstart import (
    ArithmeticProblem,
    Demonstration,
    build_tokenizer,
    clean_demonstration,
    copy_exercise,
    heldout_problems,
    mixed_demonstration,
    train_problems,
)
from retool_trainer.run_folder import RunFolder, read_json, replaced_folder, write_json
from retool_trainer.tools import open_tools

RecordT = TypeVar("RecordT", bound=BaseModel)

_MARKER = "prepared.json"
_NUM_SESSIONS = 2


class PrepareError(RunRefusedError):
    """A data set or a model cannot be used; the message says which and why."""


def model_folder(config: RunConfig, folder: RunFolder) -> Path:
    """The Hugging Face folder of the first weights."""
    return Path(config.model.path) if config.model.path else folder.random_model


def prepare(config: RunConfig, folder: RunFolder) -> None:
    """Write `RUN/data/*.jsonl` and a random `RUN/model`; a second call only checks.

    Raises:
        PrepareError: A model or a file is missing or not understood, or a stage names no known set.
    """
    marker = folder.data / _MARKER
    if not marker.exists():
        _make(config, folder, marker)
    for name, kind in _sets_used(config):
        _check_set(data_file(folder, name), kind)
    _check_models(config, folder)
    if "rl" in config.stages and config.rl and config.rl.replay:
        _check_replay(Path(config.rl.replay), config.rl.steps)


def _check_replay(run_dir: Path, steps: int) -> None:
    for step in range(1, steps + 1):
        if not trajectories_path(run_dir, "rl", step).exists():
            raise PrepareError(
                f"rl.replay: {run_dir} has no trajectories of RL step {step}; "
                f"lower rl.steps from {steps} to what it has"
            )


def _sets_used(config: RunConfig) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every data set that a stage will read, and what it has to hold."""
    if "sft" in config.stages and config.sft:
        yield from ((phase.data, Trajectory) for phase in config.sft.phases)
    if "rl" in config.stages and config.rl:
        yield config.rl.problems, Problem
    yield from ((chosen.data, Problem) for chosen in config.evaluation.sets)


def _check_set(file: Path, kind: type[BaseModel]) -> None:
    """The first record tells for all: they were written by one conversion."""
    with file.open(encoding="utf-8") as lines:
        first = next(lines, None)
    if first is None:
        raise PrepareError(f"data set {file.stem!r} is empty")
    try:
        kind.model_validate_json(first)
    except ValueError as error:
        wanted, other = (
            ("problems", "demonstrations") if kind is Problem else ("demonstrations", "problems")
        )
        raise PrepareError(
            f"data set {file.stem!r} is used for {wanted}, but it holds {other}"
        ) from error


def _check_models(config: RunConfig, folder: RunFolder) -> None:
    """The weights to start from are there, with a tokenizer that the dialect can use."""
    start = model_folder(config, folder)
    if config.model.path and not (start / "config.json").exists():
        raise PrepareError(
            f"model.path {config.model.path!r} has no config.json; "
            "`uv run apps/trainer fetch --config FILE` gets what a config names"
        )
    if "rl" in config.stages and config.rl and config.rl.start_from:
        start = Path(config.rl.start_from)
        if not (start / "config.json").exists():
            raise PrepareError(f"rl.start_from {config.rl.start_from!r} has no config.json")
    try:
        make_run_dialect(config, start)
    except (OSError, ValueError, KeyError) as error:
        raise PrepareError(f"dialect {config.dialect!r} on {start}: {error}") from error


def _make(config: RunConfig, folder: RunFolder, marker: Path) -> None:
    folder.data.mkdir(parents=True, exist_ok=True)
    arithmetic = (
        _Arithmetic(config.data.arithmetic, config.seed) if config.data.arithmetic else None
    )
    if arithmetic:
        try:
            asyncio.run(arithmetic.write(config, folder))
        except ExceptionGroup as errors:
            lost = errors.subgroup(SandboxError)
            if lost is None:
                raise
            raise PrepareError(f"the sandbox does not work: {lost.exceptions[0]}") from errors
    for name, source in config.data.sets.items():
        _convert_set(name, source, folder)
    if config.model.shape:
        _make_random_model(config, folder, arithmetic)
    write_json(marker, {"sets": sorted(path.stem for path in folder.data.glob("*.jsonl"))})


def data_file(folder: RunFolder, name: str) -> Path:
    """The prepared records of a set.

    Raises:
        PrepareError: No set has this name.
    """
    file = folder.data / f"{name}.jsonl"
    if not file.exists():
        known = ", ".join(read_json(folder.data / _MARKER)["sets"])
        raise PrepareError(f"there is no data set {name!r}; the run has {known}")
    return file


def read_records(file: Path, kind: type[RecordT]) -> list[RecordT]:
    """Read prepared records."""
    with file.open(encoding="utf-8") as lines:
        return [kind.model_validate_json(line) for line in lines]


def _write_records(file: Path, records: Iterable[BaseModel]) -> None:
    temporary = file.with_name(f".{file.name}.tmp{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as out:
        out.writelines(record.model_dump_json() + "\n" for record in records)
    temporary.replace(file)


def _convert_set(name: str, source: str, folder: RunFolder) -> None:
    from retool_data import load

    try:
        _write_records(folder.data / f"{name}.jsonl", load(source))
    except (OSError, ValueError) as error:
        raise PrepareError(f"data set {name!r} ({source}): {error}") from error


def _make_random_model(
    config: RunConfig, folder: RunFolder, arithmetic: _Arithmetic | None
) -> None:
    from retool_trainer.policy import make_random_hf

    assert config.model.shape is not None
    if arithmetic is None:
        raise PrepareError(
            "model.shape makes a model for data.arithmetic only (its tokenizer comes from there); "
            "give model.path for other data"
        )
    tokenizer = build_tokenizer(arithmetic.texts())
    with replaced_folder(folder.random_model) as temporary:
        make_random_hf(config.model.shape, tokenizer.get_vocab_size(), temporary, seed=config.seed)
        tokenizer.save(str(temporary / "tokenizer.json"))
        write_json(
            temporary / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
            },
        )


class _Arithmetic:
    """The quickstart's sets: problems to solve and demonstrations to learn from."""

    def __init__(self, config: ArithmeticConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self.heldout = heldout_problems(config.num_heldout_problems, seed=config.heldout_seed)
        self.train = train_problems(config.num_train_problems, seed=seed, exclude=self.heldout)

    def texts(self) -> Iterator[str]:
        """What the tokenizer is trained on: each kind of text that the model reads or writes."""
        for problem in self.train:
            yield problem.question
            yield f'{{"name": "code_interpreter", "arguments": {{"code": "{problem.code}"}}}}'
            yield f"Answer: \\boxed{{{problem.answer}}}"
            yield from ("user\n", "assistant\n")

    def demonstrations(self) -> Mapping[str, list[Demonstration]]:
        """The three sets of demonstrations by name."""
        rng, config = random.Random(self._seed), self._config
        return {
            "copy": [copy_exercise(rng) for _ in range(config.num_copy_rows)],
            "clean": [
                clean_demonstration(rng, rng.choice(self.train))
                for _ in range(config.num_clean_rows)
            ],
            "mixed": [
                mixed_demonstration(rng, rng.choice(self.train))
                for _ in range(config.num_mixed_rows)
            ],
        }

    async def write(self, config: RunConfig, folder: RunFolder) -> None:
        """Run the demonstrations' programs in the sandbox and write all sets."""
        for name, problems in (("train", self.train), ("heldout", self.heldout)):
            records = (_problem(name, index, item) for index, item in enumerate(problems))
            _write_records(folder.data / f"{name}.jsonl", records)
        sets = self.demonstrations()
        programs = sorted({code for rows in sets.values() for row in rows for code in row.programs})
        outputs = await _outputs(config, programs)
        for name, rows in sets.items():
            records = (_trajectory(name, index, row, outputs) for index, row in enumerate(rows))
            _write_records(folder.data / f"{name}.jsonl", records)


async def _outputs(config: RunConfig, programs: Sequence[str]) -> dict[str, str]:
    """What the tool really says to each program.

    The programs are one-liners without variables, so they can share a session, whose turns cost a
    tenth of a fresh run's time.
    """
    async with open_tools(config.sandbox) as tools:

        async def some(part: Sequence[str]) -> dict[str, str]:
            async with tools.session() as session:
                return {
                    program: (await session.execute("code_interpreter", {"code": program})).text
                    for program in part
                }

        parts = [programs[index::_NUM_SESSIONS] for index in range(_NUM_SESSIONS)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(some(part)) for part in parts]
    return {program: text for task in tasks for program, text in task.result().items()}


def _problem(name: str, index: int, problem: ArithmeticProblem) -> Problem:
    return Problem(
        problem_id=f"{name}-{index:05d}",
        statement=problem.question,
        gold=str(problem.answer),
        gold_type="int",
        provenance=Provenance(source="arithmetic", row=index + 1, shape="arithmetic"),
    )


def _trajectory(
    name: str, index: int, row: Demonstration, outputs: Mapping[str, str]
) -> Trajectory:
    turns = [
        Turn(
            calls=(ToolCall(name="code_interpreter", arguments={"code": program}),),  # pyright: ignore[reportArgumentType]
            results=(outputs[program],),
        )
        for program in row.programs
    ]
    answer = row.answer if row.answer is not None else outputs[row.programs[-1]].strip()
    turns.append(Turn(text=f"Answer: \\boxed{{{answer}}}" if row.boxed else answer))
    problem = Problem(
        problem_id=f"{name}-{index:05d}",
        statement=row.question,
        provenance=Provenance(source="arithmetic", row=index + 1, shape="arithmetic"),
    )
    return Trajectory.from_turns(problem, turns)
