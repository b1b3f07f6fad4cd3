#!/usr/bin/env python3
# once
"""The shape of mcp_bash.py: its rooms, its tables, and that the documents say the same.

Nothing here starts a server; the file is read, parsed and imported.
"""
from __future__ import annotations

import ast
import builtins
import importlib.util
import os
import re
import sys
import unittest
from collections.abc import Iterator
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import support

FUNCTION_LINES = 80
# Cheap to import, or imported by one of the others anyway. Everything else is imported by the function that uses it.
LEAN_IMPORTS = set(
    "__future__ binascii queue collections errno fcntl json os re resource select signal stat sys threading time"
    " typing".split()
)
# Methods that are not in any official schema, with the reason for having them.
OWN_METHODS = {
    "initialized": "older clients leave the prefix off notifications/initialized",
    "shutdown": "clients that come from the language server protocol end a session with it",
    "exit": "follows shutdown",
}
MAKES_MUTABLE = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"}
MUTATES = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "discard", "clear"}

BANNER = re.compile(r"# (\d+)\. (.+?) — (.+)")
CONTENTS = re.compile(r" *(\d+)  +(\S.*?)  +(\S.*)")


class Room(NamedTuple):
    """A numbered part of the file."""

    number: int
    name: str
    purpose: str
    line: int


def read_source() -> str:
    """Return the text of mcp_bash.py."""
    with open(support.SERVER, encoding="utf-8") as stream:
        return stream.read()


def find_rooms(source: str) -> list[Room]:
    """Return the rooms by their three-line banners."""
    lines = source.split("\n")
    rooms = []
    for index in range(1, len(lines) - 1):
        found = BANNER.fullmatch(lines[index])
        if found and lines[index - 1].startswith("# =====") and lines[index + 1].startswith("# ====="):
            rooms.append(Room(int(found.group(1)), found.group(2), found.group(3), index + 1))
    return rooms


def find_contents(tree: ast.Module) -> list[Room]:
    """Return the rooms as the module docstring lists them."""
    text = ast.get_docstring(tree, clean=False) or ""
    found = [(number, CONTENTS.fullmatch(line)) for number, line in enumerate(text.split("\n"), 1)]
    return [Room(int(each.group(1)), each.group(2), each.group(3), number) for number, each in found if each]


def functions(tree: ast.AST) -> Iterator[Any]:
    """Return every function, methods and nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Return the statements that usually run at import, also inside if, try, with and for; not fallbacks in except."""
    queue = list(tree.body)
    while queue:
        node = queue.pop(0)
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for field in ("body", "orelse", "finalbody"):
                queue.extend(getattr(node, field, []))


def is_type_checking(node: ast.stmt) -> bool:
    """Tell whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def bound_names(node: ast.AST) -> set[str]:
    """Return the names that a statement or expression itself binds, without looking into nested functions."""
    names: set[str] = set()
    queue = [node]
    while queue:
        each = queue.pop()
        if isinstance(each, ast.Name) and isinstance(each.ctx, (ast.Store, ast.Del)):
            names.add(each.id)
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(each.name)
            continue
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in each.names)
        elif isinstance(each, ast.ExceptHandler) and each.name:
            names.add(each.name)
        if not isinstance(each, ast.Lambda):
            queue.extend(ast.iter_child_nodes(each))
    return names


def argument_names(node: Any) -> set[str]:
    """Return the parameters of a function or lambda."""
    args = node.args
    every = args.posonlyargs + args.args + args.kwonlyargs + [each for each in (args.vararg, args.kwarg) if each]
    return {each.arg for each in every}


class References(ast.NodeVisitor):
    """Collects the names that are looked up in the module, with the line of each."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self._scopes: list[set[str]] = []  # names bound in the functions around the place

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and not any(node.id in scope for scope in self._scopes):
            self.found.append((node.id, node.lineno))

    def _function(self, node: Any) -> None:
        for outside in node.decorator_list + node.args.defaults + [each for each in node.args.kw_defaults if each]:
            self.visit(outside)
        annotations = [each.annotation for each in ast.walk(node.args) if isinstance(each, ast.arg)] + [node.returns]
        for annotation in annotations:
            if annotation is not None:
                self.visit(annotation)
        declared = {name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names}
        local = argument_names(node).union(*[bound_names(statement) for statement in node.body]) - declared
        self._inside(local, node.body)

    def _inside(self, local: set[str], nodes: list[Any]) -> None:
        self._scopes.append(local)
        for node in nodes:
            self.visit(node)
        self._scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for default in node.args.defaults + [each for each in node.args.kw_defaults if each]:
            self.visit(default)
        self._inside(argument_names(node), [node.body])

    def _comprehension(self, node: Any) -> None:
        local = set().union(*[bound_names(each.target) for each in node.generators])
        self._inside(local, list(ast.iter_child_nodes(node)))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


class ShapeCase(unittest.TestCase):
    """Tests on the parsed file."""

    @classmethod
    def setUpClass(cls) -> None:
        if not os.path.exists(support.SERVER):
            raise AssertionError("mcp_bash.py does not exist; it belongs into the top directory of the checkout.")
        cls.source = read_source()
        cls.lines = cls.source.split("\n")
        cls.tree = ast.parse(cls.source)
        cls.rooms = find_rooms(cls.source)

    def room_of(self, line: int) -> int:
        """Return the number of the room a line lies in; 0 is above the first banner."""
        return max((room.number for room in self.rooms if room.line <= line), default=0)

    def assert_none(self, found: list[str], rule: str) -> None:
        """Fail with the rule and every place that breaks it."""
        if found:
            self.fail("%s\n%s" % (rule, "\n".join(found)))


class TheRoomsTest(ShapeCase):
    def test_the_docstring_lists_the_rooms_in_order(self):
        listed = [(room.number, room.name.lower()) for room in find_contents(self.tree) if room.number]
        banners = [(room.number, room.name.lower()) for room in self.rooms if room.number]

        self.assertGreater(len(listed), 5, "the module docstring has no list of rooms (number, name, purpose)")
        self.assertEqual(listed, banners, "the module docstring and the banners name different rooms")

    def test_the_docstring_and_the_banners_give_the_same_purpose(self):
        listed = {room.number: room.purpose.rstrip(".") for room in find_contents(self.tree)}
        found = [
            "room %d: docstring %r, banner %r" % (room.number, listed.get(room.number), room.purpose)
            for room in self.rooms
            if listed.get(room.number) != room.purpose.rstrip(".")
        ]

        self.assert_none(found, "the module docstring and the banner of a room say the same.")

    def test_the_numbers_rise(self):
        numbers = [room.number for room in self.rooms]

        self.assertEqual(sorted(set(numbers)), numbers)

    def test_a_room_uses_only_names_from_rooms_above_it(self):
        home: dict[str, int] = {}
        for node in self.tree.body:
            for name in bound_names(node):
                home.setdefault(name, self.room_of(node.lineno))
        self.assertGreater(len(home), 50)
        references = References()
        references.visit(self.tree)
        found = sorted(
            "line %d, room %d, uses %s of room %d" % (line, self.room_of(line), name, home[name])
            for name, line in references.found
            if home.get(name, 0) > self.room_of(line)
        )

        self.assert_none(found, "a room may use only names from rooms above it and its own. Move one of the two.")

    def test_every_name_is_defined_somewhere(self):
        names = set().union(*[bound_names(node) for node in self.tree.body]) | set(dir(builtins)) | {"__file__"}
        references = References()
        references.visit(self.tree)

        self.assert_none(
            ["line %d: %s" % (line, name) for name, line in references.found if name not in names],
            "names that nothing defines (or that this test does not understand)",
        )


class TheCodeTest(ShapeCase):
    def test_no_function_is_longer_than_a_long_screen(self):
        found = [
            "line %d: %s has %d lines" % (node.lineno, node.name, node.end_lineno - node.lineno + 1)
            for node in functions(self.tree)
            if node.end_lineno - node.lineno + 1 > FUNCTION_LINES
        ]

        self.assert_none(found, "no function has more than %d lines. Look for the noun in it." % FUNCTION_LINES)

    def test_every_public_function_and_class_says_what_it_is(self):
        found = [
            "line %d: %s" % (node.lineno, node.name)
            for node in self.tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ]

        self.assert_none(found, "public functions and classes need a docstring; one line is enough.")

    def test_only_lean_modules_are_imported_at_the_top(self):
        found = []
        for node in top_level(self.tree):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or "."]
            else:
                continue
            found += ["line %d: %s" % (node.lineno, name) for name in modules if name.split(".")[0] not in LEAN_IMPORTS]

        self.assert_none(found, "every import at the top costs each start; import it where it is used.")

    def test_typing_is_imported_for_checkers_only(self):
        guarded = {
            id(each) for node in self.tree.body if is_type_checking(node) for each in ast.walk(node)
        }
        found = [
            "line %d" % node.lineno
            for node in top_level(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module == "typing" and id(node) not in guarded
        ]

        self.assert_none(found, "typing belongs under `if TYPE_CHECKING:`.")

    def test_mutable_globals_are_tables_in_capitals(self):
        found = []
        for node in top_level(self.tree):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not is_mutable(node.value):
                continue
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += ["line %d: %s" % (node.lineno, name) for name in names if name.upper() != name]

        self.assert_none(found, "module globals are constants and tables; state belongs to an object.")

    def test_tables_are_filled_at_import_and_never_after(self):
        tables = {name for node in self.tree.body for name in bound_names(node) if name.upper() == name}
        decorators = {name for node in self.tree.body for name in decorator_names(node)}
        found = []
        for node in self.tree.body:
            if getattr(node, "name", "") in decorators or not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            found += ["line %d: %s is changed" % pair for pair in changes_of(node, tables)]
            found += ["line %d: global" % each.lineno for each in ast.walk(node) if isinstance(each, ast.Global)]

        self.assert_none(found, "only registration decorators may fill a table, at import.")

    def test_exceptions_are_not_swallowed_without_a_reason(self):
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(each, ast.Pass) for each in node.body):
                lines = self.lines[node.lineno - 1 : node.body[-1].end_lineno]
                if not any("#" in line for line in lines):
                    found.append("line %d" % node.lineno)

        self.assert_none(found, "a swallowed exception carries the reason on the same line.")


def is_mutable(value: ast.expr | None) -> bool:
    """Tell whether an expression makes a list, dict, set or the like."""
    if isinstance(value, ast.Call):
        name = value.func.id if isinstance(value.func, ast.Name) else getattr(value.func, "attr", "")
        return name in MAKES_MUTABLE
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp))


def decorator_names(node: ast.stmt) -> Iterator[str]:
    """Return the names of the decorators of a function or class."""
    for decorator in getattr(node, "decorator_list", []):
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(function, ast.Name):
            yield function.id


def changes_of(tree: ast.AST, tables: set[str]) -> Iterator[tuple[int, str]]:
    """Return where a table is changed: an item set or deleted, or a method called that changes it."""
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            name = getattr(node.value, "id", "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATES:
            name = getattr(node.func.value, "id", "")
        if name in tables:
            yield node.lineno, name


class TheTablesTest(ShapeCase):
    """The tables of the imported file, against the handlers, the README and the official schemas."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        spec = importlib.util.spec_from_file_location("mcp_bash", support.SERVER)
        cls.module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.module)

    def table(self, name: str) -> Any:
        """Return a table of the file, or fail with a sentence."""
        if not hasattr(self.module, name):
            self.fail("mcp_bash.py has no table %s" % name)
        return getattr(self.module, name)

    def test_every_method_has_a_handler_and_every_handler_a_method(self):
        self.assertEqual(sorted(self.table("METHODS")), sorted(self.table("HANDLERS")))

    def test_a_handler_is_named_after_its_method(self):
        found = []
        for method, handler in self.table("HANDLERS").items():
            snake = re.sub("([A-Z])", r"_\1", method.replace("/", "_")).lower()
            stem = snake.replace("notifications_", "")
            if handler.__name__.rstrip("_") not in (method.replace("/", "_"), snake, stem, stem + "_notification"):
                found.append("%s is handled by %s" % (method, handler.__name__))

        self.assert_none(found, "a handler is called like its method, with / as _.")

    def test_the_versions_are_the_official_ones(self):
        self.assertEqual(support.VERSIONS, tuple(self.table("VERSIONS")))

    def test_the_methods_exist_in_the_versions_of_the_official_schemas(self):
        if not os.path.isdir(support.SCHEMAS):
            raise support.not_here(support.schemas_missing())
        official = {version: support.schema_methods(version) for version in support.VERSIONS}
        for name, row in self.table("METHODS").items():
            there = [version for version in support.VERSIONS if name in official[version]]
            claimed = [version for version in support.VERSIONS if row.since <= version <= row.until]
            with self.subTest(name):
                self.assertEqual(there or name in OWN_METHODS, claimed if there else True)

    def test_the_readme_has_the_settings_as_the_program_prints_them(self):
        readme = os.path.join(support.ROOT, "README.md")
        if not os.path.exists(readme):
            self.fail("README.md does not exist.")
        with open(readme, encoding="utf-8") as stream:
            found = re.search("<!-- settings -->\n(.*?)<!-- /settings -->", stream.read(), re.DOTALL)
        if not found:
            self.fail("README.md has no section between <!-- settings --> and <!-- /settings -->.")
        done = support.run_cli(["settings", "--markdown"])

        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(
            done.stdout.strip(),
            found.group(1).strip(),
            "README.md and the table differ; paste the output of `mcp_bash.py settings --markdown`.",
        )

    def test_embedded_copies_are_the_files_beside(self):
        embedded = self.table("EMBEDDED")
        for name in sorted(embedded):
            with self.subTest(name):
                path = os.path.join(support.ROOT, name)
                self.assertTrue(os.path.exists(path), "%s is embedded, but there is no such file" % name)
                with open(path, encoding="utf-8") as stream:
                    self.assertEqual(stream.read(), embedded[name], "run python3 tests/embed.py")

    def test_what_travels_with_the_file_is_embedded(self):
        found = []
        for directory in ("sdk", "providers"):
            for path in support.listing(os.path.join(support.ROOT, directory)):
                name = directory + "/" + path
                is_source = os.path.isfile(os.path.join(support.ROOT, name)) and "__pycache__" not in name
                if is_source and not name.endswith(".md") and name not in self.table("EMBEDDED"):
                    found.append(name)

        self.assert_none(found, "mcp_bash.py works alone only when it embeds these; run python3 tests/embed.py.")


SAMPLE = '''
# =====
# 1. ONE — first.
# =====
A = {}
def up(x: Later = None):
    later = 1
    return [later for later in range(3)] + [below(x) for x in []]
# =====
# 2. TWO — second.
# =====
class Later: pass
def below(x): A["x"] = lambda y: y + x
'''


class TheseChecksTest(unittest.TestCase):
    """Positive controls: the checks see what they look for."""

    def test_references_downward_are_seen_and_local_names_are_not(self):
        references = References()
        references.visit(ast.parse(SAMPLE))
        names = {name for name, _ in references.found} - set(dir(builtins))

        self.assertEqual({"A", "Later", "below"}, names)

    def test_banners_are_found(self):
        self.assertEqual([(1, "ONE", "first."), (2, "TWO", "second.")], [room[:3] for room in find_rooms(SAMPLE)])

    def test_changes_of_tables_are_seen(self):
        self.assertEqual([(13, "A")], list(changes_of(ast.parse(SAMPLE), {"A"})))


if __name__ == "__main__":
    unittest.main()
