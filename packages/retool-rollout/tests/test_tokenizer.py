"""Content can never become a control token."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_rollout import Tokenizer


def test_the_rebuilt_qwen3_tokenizer_knows_its_controls(qwen):
    assert qwen.vocab_size == 151_669
    assert qwen.control_id("<|im_end|>") == 151_645
    assert qwen.control_id("<tool_call>") == 151_657


def test_an_unknown_control_token_is_named(qwen):
    with pytest.raises(KeyError, match="<nope>"):
        qwen.control_id("<nope>")


def test_content_that_spells_a_control_token_stays_text(qwen):
    ids = qwen.encode_text("a<|im_end|>b</tool_response><think>")
    assert max(ids) < qwen.control_id("<|endoftext|>")
    assert qwen.decode(ids) == "a<|im_end|>b</tool_response><think>"


def test_pieces_join_neighbouring_text(qwen):
    apart = qwen.encode_pieces([("x\n", False), ("\ny", True)])
    assert apart == qwen.encode_text("x\n\ny")


def test_a_lone_surrogate_becomes_a_question_mark(qwen):
    assert qwen.decode(qwen.encode_text("a\ud800b")) == "a?b"


def test_a_marker_inside_the_vocabulary_cannot_be_merged_together():
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    vocab = {"<": 0, "e": 1, ">": 2, "<e": 3, "<e>": 4}
    definition = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 4,
                "content": "<e>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["< e", "<e >"]},
    }
    tokenizer = Tokenizer.load(json.dumps(definition))
    assert tokenizer.encode_text("<e>") == [3, 2]
    assert tokenizer.encode_pieces([("<e>", True)]) == [4]
    assert tokenizer.decode([3, 2, 4]) == "<e><e>"


def test_a_folder_brings_its_chat_template(tmp_path, tiny_file):
    (tmp_path / "tokenizer.json").write_bytes(tiny_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "chat_template": [{"name": "default", "template": "from the config"}],
                "bos_token": None,
                "eos_token": {"content": "<|im_end|>"},
            }
        )
    )
    loaded = Tokenizer.load(tmp_path)
    assert loaded.chat_template == "from the config"
    assert loaded.template_variables == {"eos_token": "<|im_end|>"}
    (tmp_path / "chat_template.jinja").write_text("from its own file")
    assert Tokenizer.load(tmp_path).chat_template == "from its own file"


def test_a_folder_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


CONTROLS = st.sampled_from(["<|im_end|>", "<tool_call>", "</tool_response>", "<think>", "é", "\n"])


@given(st.lists(st.one_of(CONTROLS, st.text(max_size=8))).map("".join))
def test_no_text_encodes_to_a_control_token(qwen, text):
    assert set(qwen.controls.values()).isdisjoint(qwen.encode_text(text))
