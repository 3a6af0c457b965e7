"""Tell, layer by layer, how an answer was read and why it was graded so."""

from ._equal import readable
from ._extract import extract
from ._grade import grade
from ._normalise import normalise, readings
from ._own_text import BREAK, own_text
from ._types import GradeConfig

_MAX_CHARS = 400


def explain(answer: str, gold: str) -> list[tuple[str, str]]:
    """Return pairs of a layer's name and what it made of the answer."""
    config = GradeConfig()
    own = own_text(answer)
    pred = extract(own, config)
    layers: list[tuple[str, str]] = []
    if pred is None and "\\boxed" not in answer:
        answer = f"\\boxed{{{answer}}}"
        own = own_text(answer)
        pred = extract(own, config)
        layers.append(("boxed", "no box and no `Answer:`, so the whole was put into a box"))
    layers.append(("own text", _short(own.replace(BREAK, " [cut] "))))
    layers.append(("extract", "no answer" if pred is None else _short(pred)))
    if pred is not None:
        layers.append(
            ("normalise", f"{_short(normalise(pred))}  |  gold {_short(normalise(gold))}")
        )
        for name, text, is_gold in (("answer", pred, False), ("gold", gold, True)):
            layers.extend(
                (f"read {name}", f"{_short(reading)}  {readable(reading)}")
                for reading in readings(normalise(text), is_gold=is_gold)
            )
    found = grade(answer, gold, config)
    layers.append(("decided by", found.path))
    layers.append(("reason", found.reason.value))
    layers.append(("correct", str(found.correct)))
    layers.append(("ms", f"{found.ms:.3f}"))
    return layers


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
