"""Arrow schemas of what we write: fixed, because inference pads, merges and refuses mixed rows."""

from importlib import import_module
from typing import Any, cast

# A string names an Arrow type, a list holds its item, a dict is a struct.
_PROVENANCE = {
    "source": "string",
    "row": "int64",
    "shape": "string",
    "extra": "string",
    "steps": ["string"],
}
_CALL = {"name": "string", "arguments": "string"}
_PROBLEM = {
    "problem_id": "string",
    "statement": "string",
    "prefix": "string",
    "suffix": "string",
    "system": "string",
    "history": [{"role": "string", "content": "string", "tool_calls": [_CALL]}],
    "gold": "string",
    "gold_type": "string",
    "duplicate_of": "string",
    "contaminated_by": ["string"],
    "provenance": _PROVENANCE,
}
_SEGMENT = {
    "kind": "string",
    "speaker": "string",
    "text": "string",
    "call": _CALL,
    "result": {"recorded": "string", "replayed": "string", "status": "string", "shown": "string"},
    "before": "string",
    "after": "string",
}
_SAMPLE = {
    "problem_id": "string",
    "ids": ["int32"],
    "mask": ["int8"],
    "spans": [
        {"start": "int32", "end": "int32", "kind": "string", "turn": "int32", "trained": "bool_"}
    ],
    "dialect": "string",
    "template_hash": "string",
    "tokenizer_hash": "string",
    "provenance": _PROVENANCE,
}
_PACK = {
    "ids": ["int32"],
    "mask": ["int8"],
    "position_ids": ["int32"],
    "cu_seqlens": ["int32"],
    "problem_ids": ["string"],
}
_CONTENT = {"role": "string", "content": "string"}
_TOOL_MESSAGE = {
    **_CONTENT,
    "tool_calls": [
        {"type": "string", "function": {"name": "string", "arguments": {"code": "string"}}}
    ],
}

LAYOUTS: dict[str, dict[str, Any]] = {
    "problem": _PROBLEM,
    "trajectory": {
        "problem": _PROBLEM,
        "segments": [_SEGMENT],
        "tools": "string",
        "dialect": "string",
    },
    "sample": _SAMPLE,
    "pack": _PACK,
    "chat": {"messages": [_CONTENT], "tools": "string", "retool_record": "string"},
    "tool_chat": {"messages": [_TOOL_MESSAGE], "tools": "string", "retool_record": "string"},
    "slime_rl_chat": {"prompt": [_CONTENT], "label": "string", "retool_record": "string"},
    "slime_rl": {"prompt": "string", "label": "string", "retool_record": "string"},
    "verl_rl": {
        "data_source": "string",
        "prompt": [_CONTENT],
        "ability": "string",
        "reward_model": {"ground_truth": "string", "style": "string"},
        "extra_info": {"index": "string"},
        "retool_record": "string",
    },
    "trl_rl": {"prompt": [_CONTENT], "answer": "string", "retool_record": "string"},
}


def layout_of(row: dict[str, Any]) -> str:
    """Name the layout of a row that this library wrote.

    Raises:
        ValueError: No fixed layout holds the row without loss.
    """
    if "segments" in row:
        return "trajectory"
    if "statement" in row:
        return "problem"
    if "position_ids" in row:
        return "pack"
    if "ids" in row:
        return "sample"
    if "reward_model" in row:
        return "verl_rl"
    if "messages" in row:
        return "tool_chat" if any("tool_calls" in m for m in row["messages"]) else "chat"
    if "label" in row:
        return "slime_rl" if isinstance(row["prompt"], str) else "slime_rl_chat"
    if "answer" in row:
        return "trl_rl"
    raise ValueError(f"no Parquet layout for the columns {', '.join(row)}; write .jsonl")


def schema(layout: str) -> Any:
    """Build the Arrow schema of a layout."""
    pa = import_module("pyarrow")
    return pa.schema([(name, _type(pa, kind)) for name, kind in LAYOUTS[layout].items()])


def _type(pa: Any, kind: Any) -> Any:
    if isinstance(kind, str):
        return getattr(pa, kind)()
    if isinstance(kind, list):
        return pa.list_(_type(pa, kind[0]))
    return pa.struct([(name, _type(pa, inner)) for name, inner in kind.items()])


def refuse_lost_keys(value: Any, kind: Any, where: str) -> None:
    """Compare a row with its layout; Arrow itself drops unknown keys without a word.

    Raises:
        ValueError: The row has a key or a type that the layout does not hold.
    """
    if value is None:
        return
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object, got {value!r:.60}")
        value, kind = cast("dict[str, Any]", value), cast("dict[str, Any]", kind)
        unknown = [key for key in value if key not in kind]
        if unknown:
            raise ValueError(
                f"Parquet would drop {where}.{unknown[0]}: this layout holds "
                f"{', '.join(kind)}; write .jsonl, or --to records"
            )
        for key, item in value.items():
            refuse_lost_keys(item, kind[key], f"{where}.{key}")
    elif isinstance(kind, list) and cast("list[Any]", kind)[0] not in ("int32", "int8"):
        for item in value:
            refuse_lost_keys(item, kind[0], where)
    elif kind == "string" and not isinstance(value, str):
        raise ValueError(f"Parquet holds {where} as text, got {value!r:.60}; write .jsonl")
