"""A small renderer over bytes, so that the tests need no tokenizer file."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

HEADER, END = 256, 257


class ByteRenderer:
    """Each UTF-8 byte is an id; 256 opens a message and 257 ends it."""

    name = "hermes"

    def text_ids(self, text: str) -> list[int]:
        return list(text.encode())

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        ids: list[int] = self.text_ids(repr(list(tools))) if tools else []
        for message in messages:
            ids += [HEADER, *self.text_ids(f"{message['role']}\n{message['content']}"), END]
        return [*ids, HEADER]

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        body = text + "".join(f"\n<call>{c['name']} {c['arguments']}" for c in calls)
        return [*self.text_ids(body), END]

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for reply in replies:
            ids += [HEADER, *self.text_ids(f"tool\n{reply}"), END]
        return [*ids, HEADER]


@pytest.fixture
def renderer() -> ByteRenderer:
    return ByteRenderer()
