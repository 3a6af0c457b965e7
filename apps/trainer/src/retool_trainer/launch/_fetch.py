"""Get what a configuration names from the Hugging Face hub: pinned, resumable, verified."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retool_trainer.config import FetchItem

_PIN = ".retool-fetch.json"
_CHUNK_BYTES = 8 * 2**20
_TIMEOUT_S = 30.0


class FetchError(Exception):
    """A repository could not be fetched; the message says what to do."""


class NoNetworkError(FetchError):
    """The hub cannot be reached from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What the hub says about a file: a content hash and a size."""

    size: int
    sha256: str | None
    """Of files that the hub keeps as large objects."""
    git_blob: str | None
    """Of the others: sha1 of the object that git stores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What is in a folder: written when all of it is there and right."""

    repo: str
    kind: str
    requested: str
    """The revision that the configuration asked for."""
    commit: str
    """What it was when it was fetched; a second fetch stays with it."""
    include: tuple[str, ...]
    files: Mapping[str, FileRecord]


def fetch_item(item: FetchItem, say: Callable[[str], None]) -> Pin:
    """Bring one repository into its folder, or find that it is there already.

    A folder that was fetched before keeps its commit, also if the branch has moved since. Downloads
    go on where they stopped. The endpoint is $HF_ENDPOINT where that is set.

    Raises:
        NoNetworkError: No hub, and the folder is not complete.
        FetchError: The repository, revision or a file is missing, closed, or damaged.
    """
    folder = Path(item.folder)
    pin = _read_pin(folder, item)
    if pin is not None:
        damaged = _damaged(folder, pin.files)
        if not damaged:
            say(_verified(pin, folder))
            return pin
        say(f"      {item.repo}: {', '.join(damaged)} missing or damaged; fetching again")
        for name in damaged:
            (folder / name).unlink(missing_ok=True)
    wanted = item.revision if pin is None else pin.commit
    commit, files = _look_up(item, wanted)
    total = sum(record.size for record in files.values())
    say(f"      {item.repo} at {commit[:12]}: {len(files)} files, {total / 2**30:.2f} GiB")
    _download(item, commit)
    damaged = _damaged(folder, files)
    if damaged:
        raise FetchError(
            f"{item.repo}: {', '.join(damaged)} differ from the hub's hashes after the download; "
            "delete them and fetch again, or try another HF_ENDPOINT"
        )
    pin = Pin(
        repo=item.repo,
        kind=item.kind,
        requested=item.revision,
        commit=commit,
        include=tuple(item.include),
        files=files,
    )
    _write_pin(folder, pin)
    say(_verified(pin, folder))
    return pin


def _verified(pin: Pin, folder: Path) -> str:
    return f"ok    {pin.repo} at {pin.commit[:12]}: {len(pin.files)} files in {folder}, verified"


def download_command(item: FetchItem) -> str:
    """The line of the hub's own tool that does the same on a machine with a network."""
    words = ["hf", "download", item.repo]
    if item.kind == "dataset":
        words += ["--repo-type", "dataset"]
    words += ["--revision", item.revision, "--local-dir", item.folder]
    for pattern in item.include:
        words += ["--include", pattern]
    return shlex.join(words)


def _look_up(item: FetchItem, revision: str) -> tuple[str, dict[str, FileRecord]]:
    """The commit that a revision is, and its files."""
    from fnmatch import fnmatch

    from huggingface_hub import HfApi

    with _explained(item):
        info: Any = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).repo_info(
            item.repo,
            repo_type=item.kind,
            revision=revision,
            files_metadata=True,
            timeout=_TIMEOUT_S,
        )
    files: dict[str, FileRecord] = {}
    for sibling in info.siblings or []:
        name = str(sibling.rfilename)
        if item.include and not any(fnmatch(name, pattern) for pattern in item.include):
            continue
        lfs = sibling.lfs
        files[name] = FileRecord(
            size=int(sibling.size or 0),
            sha256=None if lfs is None else str(lfs.sha256),
            git_blob=None if lfs is not None else sibling.blob_id,
        )
    if not files:
        raise FetchError(
            f"{item.repo} has no file that matches {item.include or '*'}; correct fetch.include"
        )
    return str(info.sha), files


def _download(item: FetchItem, commit: str) -> None:
    from huggingface_hub import snapshot_download

    with _explained(item):
        snapshot_download(
            item.repo,
            repo_type=item.kind,
            revision=commit,
            local_dir=item.folder,
            allow_patterns=item.include or None,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )


class _explained:  # noqa: N801 - used as a statement
    """Translate the hub client's exceptions."""

    def __init__(self, item: FetchItem) -> None:
        self._item = item

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        import httpx
        from huggingface_hub import errors

        item = self._item
        if isinstance(error, errors.HFValidationError):
            raise FetchError(f"fetch.repo {item.repo!r}: {error}") from error
        if isinstance(error, errors.GatedRepoError):
            raise FetchError(
                f"{item.repo} is gated: accept its terms on its page, then `hf auth login`"
            ) from error
        if isinstance(error, errors.RevisionNotFoundError):
            raise FetchError(
                f"{item.repo} has no revision {item.revision!r}; correct fetch.revision"
            ) from error
        if isinstance(error, errors.RepositoryNotFoundError):
            raise FetchError(
                f"there is no {item.kind} {item.repo}, or it is private; correct fetch.repo, or "
                "`hf auth login`"
            ) from error
        if isinstance(
            error,
            (
                httpx.TransportError,
                errors.LocalEntryNotFoundError,
                errors.OfflineModeIsEnabled,
                errors.HfHubHTTPError,
            ),
        ):
            first = (str(error).strip() or repr(error)).splitlines()[0]
            raise NoNetworkError(f"{item.repo}: the hub does not answer ({first})") from error


def _damaged(folder: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """Names of files that are missing, or whose size or hash is another one."""
    return [name for name, record in files.items() if not _right(folder / name, record)]


def _right(file: Path, record: FileRecord) -> bool:
    try:
        if file.stat().st_size != record.size:
            return False
    except OSError:
        return False
    if record.sha256 is not None:
        digest = hashlib.sha256()
        expected = record.sha256
    elif record.git_blob is not None:
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(f"blob {record.size}\0".encode())
        expected = record.git_blob
    else:
        return True  # the hub gave no hash; the size is all there is
    for chunk in _chunks(file):
        digest.update(chunk)
    return digest.hexdigest() == expected


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _read_pin(folder: Path, item: FetchItem) -> Pin | None:
    try:
        tree = json.loads((folder / _PIN).read_text(encoding="utf-8"))
        files = {name: FileRecord(**record) for name, record in tree.pop("files").items()}
        pin = Pin(files=files, include=tuple(tree.pop("include")), **tree)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None  # absent, or not ours: fetch as if for the first time
    has = (pin.repo, pin.kind, pin.requested, list(pin.include))
    return pin if has == (item.repo, item.kind, item.revision, item.include) else None


def _write_pin(folder: Path, pin: Pin) -> None:
    temporary = folder / f"{_PIN}.tmp"
    temporary.write_text(json.dumps(asdict(pin), indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / _PIN)
