"""What of the host a program may read: standard library, the tier's packages, shared libraries."""

import os
import sys
import sysconfig
from collections.abc import Iterable
from typing import NamedTuple

TIERS: dict[str, tuple[str, ...]] = {
    "stdlib": (),
    "math": ("numpy", "sympy"),
    "science": ("numpy", "sympy", "scipy", "pandas", "networkx"),
}
# Parts that are used often and take most of a second to import.
ALSO_LOADED = {"science": ("scipy.integrate", "scipy.optimize")}
GUEST_STDLIB = f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}"
GUEST_PACKAGES = "/usr/lib/site-packages"


class MissingPackageError(Exception):
    """A tier needs a package that this interpreter does not have."""


class View(NamedTuple):
    """Paths a program may read, as (path here, path inside a root of our own)."""

    stdlib: str
    packages: tuple[str, ...]
    """Entries of site-packages directories: folders and single files."""
    package_roots: tuple[str, ...]
    system: tuple[str, ...]
    """Shared libraries and time zones; same path on both sides."""
    preload: tuple[str, ...]

    def binds(self) -> list[tuple[str, str]]:
        """Every read-only bind of a root of our own."""
        pairs = [(self.stdlib, GUEST_STDLIB)]
        pairs += [(path, f"{GUEST_PACKAGES}/{os.path.basename(path)}") for path in self.packages]
        pairs += [(path, path) for path in self.system]
        return pairs


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _distributions(roots: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Normalised distribution name to (root, dist-info folder)."""
    found: dict[str, tuple[str, str]] = {}
    for root in roots:
        for entry in os.listdir(root):
            if entry.endswith(".dist-info"):
                found.setdefault(_normal(entry.split("-")[0]), (root, entry))
    return found


def _requirements(root: str, info: str) -> set[str]:
    names: set[str] = set()
    try:
        with open(f"{root}/{info}/METADATA", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line == "\n":
                    break  # the description follows
                if line.startswith("Requires-Dist:") and "extra ==" not in line:
                    text = line[14:].strip()
                    end = next(
                        (i for i, c in enumerate(text) if not (c.isalnum() or c in "._-")),
                        len(text),
                    )
                    names.add(_normal(text[:end]))
    except FileNotFoundError:
        pass
    return names


def _entries(root: str, info: str) -> set[str]:
    """Top-level folders and files of one distribution."""
    names: set[str] = set()
    with open(f"{root}/{info}/RECORD", encoding="utf-8", errors="replace") as file:
        for line in file:
            name = line.split(",", 1)[0].strip('"').split("/", 1)[0]
            if name not in ("..", "", "__pycache__") and not name.endswith(".pth"):
                names.add(name)
    return {name for name in names if os.path.exists(f"{root}/{name}")}


def _packages(names: Iterable[str], roots: tuple[str, ...]) -> tuple[str, ...]:
    known = _distributions(roots)
    todo, done, paths = [_normal(name) for name in names], set[str](), dict[str, str]()
    required = set(todo)
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        if name not in known:
            if name in required:
                raise MissingPackageError(name)
            continue  # a requirement behind a marker
        root, info = known[name]
        todo += _requirements(root, info)
        for entry in _entries(root, info):
            paths.setdefault(entry, f"{root}/{entry}")
    return tuple(paths.values())


def _system_paths() -> tuple[str, ...]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    candidates = [
        f"/lib/{multiarch}",
        f"/usr/lib/{multiarch}",
        "/lib64",
        "/usr/lib64",
        "/usr/share/zoneinfo",
    ]
    prefix = os.path.dirname(os.path.dirname(sysconfig.get_path("stdlib")))
    if os.path.isdir(f"{prefix}/conda-meta"):
        candidates.append(f"{prefix}/lib")  # conda's extensions look for their libraries there
    return tuple(path for path in candidates if os.path.isdir(path))


def make_view(tier: str, extra: Iterable[str], roots: Iterable[str]) -> View:
    """Work out the view of a tier.

    Args:
        tier: A key of TIERS.
        extra: Further distributions to expose and preload.
        roots: The site-packages directories of the caller.

    Raises:
        MissingPackageError: A package of the tier is not installed. Networkx is optional.
    """
    package_roots = tuple(roots)
    names = [*TIERS[tier], *extra]
    optional = {"networkx"} - set(extra)
    known = _distributions(package_roots)
    names = [name for name in names if name not in optional or _normal(name) in known]
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    preload = tuple(name for name in names if name != "networkx") + ALSO_LOADED.get(tier, ())
    return View(stdlib, _packages(names, package_roots), package_roots, _system_paths(), preload)
