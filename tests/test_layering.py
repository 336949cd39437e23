"""Imports point one way (CONTRIBUTING.md), and light parts never reach torch."""

import ast
from pathlib import Path

import pytest

import kvdiag

ROOT = Path(kvdiag.__file__).parent
HEAVY = ("torch", "transformers", "kvpress", "gguf", "wonderwords", "datasets")

# Lowest first. A module may import its own layer and those below.
LAYERS = (
    ("errors", "resources", "network", "commit", "__init__"),
    ("records",),
    ("methods", "workloads", "diagnostics", "ledger", "prompts", "recipes"),
    ("publish", "analysis", "query", "engine", "importers", "validation", "scale"),
    ("conformance",),
    ("cli", "__main__"),
)
LAYER = {name: i for i, names in enumerate(LAYERS) for name in names}
# What `kvdiag query` and `kvdiag --help` may load. `build` imports these two inside its function.
LIGHT = (
    "errors",
    "network",
    "resources",
    "records",
    "query",
    "ledger",
    "analysis",
    "cli",
    "recipes",
    "publish",
    "importers",
    "validation",
)
BUILD_ONLY = ("kvdiag.cli.progress",)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def package(module: str) -> str:
    """The part of kvdiag a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def at_module_level(tree: ast.Module):
    """Nodes that run on import: not those inside functions, nor under `if TYPE_CHECKING`."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)


def imported(module: str, everywhere: bool) -> set[str]:
    """Names of the modules that a module imports: on import, or anywhere in it."""
    path = MODULES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else at_module_level(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative import"
            origin = str(node.module)
            # `from kvdiag.ledger import card` imports a module, `from kvdiag.ledger.card import x` a name.
            inner = {f"{origin}.{alias.name}" for alias in node.names} & MODULES.keys()
            found |= inner or {origin}
    return found


def test_every_package_has_a_layer():
    assert {package(m) for m in MODULES} <= LAYER.keys()


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_one_above_it(module):
    layer = LAYER[package(module)]
    above = {
        name
        for name in imported(module, everywhere=True)
        if name.partition(".")[0] == "kvdiag" and LAYER[package(name)] > layer
    }
    assert not above


def test_records_rest_on_nothing_but_resources():
    for module in MODULES:
        if package(module) == "records":
            own = {n for n in imported(module, everywhere=True) if n.startswith("kvdiag")}
            assert {package(n) for n in own} <= {"records", "resources"}, module


def test_packages_do_not_import_in_circles():
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        own = package(module)
        targets = {package(n) for n in imported(module, everywhere=False) if n.startswith("kvdiag")}
        edges.setdefault(own, set()).update(targets - {own, "__init__"})

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        for target in edges.get(name, ()):
            walk(target, (*path, name))

    for name in edges:
        walk(name, ())


@pytest.mark.parametrize("module", [m for m in MODULES if package(m) in LIGHT and m not in BUILD_ONLY])
def test_light_modules_never_reach_a_heavy_one(module):
    """Follows what importing a module imports in turn."""
    seen: set[str] = set()
    todo = [(module, (module,))]
    while todo:
        name, path = todo.pop()
        assert name.partition(".")[0] not in HEAVY, " -> ".join(path)
        if name in MODULES and name not in seen:
            seen.add(name)
            todo += [(n, (*path, n)) for n in imported(name, everywhere=False)]


def test_the_check_sees_what_it_looks_for():
    assert "torch" in imported("kvdiag.engine.models", everywhere=False)
    assert "kvdiag.cli.progress" in imported("kvdiag.cli.build", everywhere=True)
    assert "kvdiag.cli.progress" not in imported("kvdiag.cli.build", everywhere=False)
    assert "kvdiag.ledger.card" in imported("kvdiag.ledger.finish", everywhere=False)
