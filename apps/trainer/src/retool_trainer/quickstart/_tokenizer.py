"""A byte-level BPE tokenizer of 224 entries, trained on the quickstart's own text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 224
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
PAD_TOKEN = "<|endoftext|>"


def build_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train on `texts` (the same texts give the same tokenizer).

    Digits are single tokens, so that numbers are copied digit by digit. A vocabulary larger than
    the text uses would leave rows that sampling at temperature 1 draws by accident, hence 224.
    """
    # A character outside ASCII can only come from a tool; the model sees a question mark.
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = _byte_level_alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level_alphabet() -> list[str]:
    """Printable ASCII and the newline, as the byte-level code spells them."""
    spelled = {" ": "Ġ", "\n": "Ċ"}
    return [spelled.get(char, char) for char in map(chr, [10, *range(32, 127)])]
