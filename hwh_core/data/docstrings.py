"""Prose out of the docstrings of Python modules: documentation text that wheels carry."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator

from .errors import DataError

# Sections that hold no prose in the numpydoc and Google styles.
_DROPPED_SECTIONS = {"examples", "example", "references", "see also", "doctest", "example usage"}
_UNDERLINE = re.compile(r"^\s*([=\-~^*+#\"'`.:_])\1{2,}\s*$")
_TABLE = re.compile(r"^\s*(\+[-=+]{3,}|={2,}(\s+={2,})+|\|.*\|)\s*$")
_ROLE = re.compile(r":[a-zA-Z][\w+:.-]*:`~?\.?([^`<]+?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?")
_LITERAL = re.compile(r"``([^`]+)``|`([^`]+)`_{0,2}")
_FOOTNOTE = re.compile(r"\s?\[(?:\d+|\#\w*|[A-Z][\w.+-]*\d{2,4}[a-z]?)\]_")
_EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^*\s][^*\n]*?)\*{1,2}(?![\w*])")
_DIRECTIVE = re.compile(r"^(\s*)\.\.(\s|$)")
_KEPT_DIRECTIVES = ("note", "warning", "tip", "important", "caution", "attention", "hint", "seealso", "admonition")


def module_text(source: str, where: str) -> str:
    """The prose of all docstrings of one module, in the order of the source, separated by empty lines.

    A docstring is cleaned as :func:`docstring_prose` says and preceded by the dotted name it documents. Raises
    :class:`DataError` naming ``where`` when the source is not valid Python of the running version; pin wheels whose
    syntax Python 3.11 knows, so that every Python gives the same text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise DataError(f"{where} is not Python source ({error}); leave it out of members") from None
    sections = []
    seen = set()
    for name, docstring in _docstrings(tree, ""):
        prose = docstring_prose(docstring)
        # Overloads and aliases repeat a docstring; once is enough. Very short ones are labels, not prose.
        if len(prose) >= 80 and prose not in seen:
            seen.add(prose)
            sections.append(f"{name}\n\n{prose}" if name else prose)
    return "\n\n".join(sections)


def _docstrings(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(node, (ast.Module, *kinds)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield prefix, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, kinds):
            yield from _docstrings(child, f"{prefix}.{child.name}" if prefix else child.name)
        elif isinstance(child, ast.If | ast.Try):
            yield from _docstrings(child, prefix)


def docstring_prose(docstring: str) -> str:
    """Reduce a docstring in reStructuredText to prose.

    Examples, references, tables, directives with code or formulas, and doctest sessions are dropped; roles, links,
    literals, footnote marks and emphasis are replaced by their text.
    """
    lines = inspect.cleandoc(docstring).splitlines()
    lines = _drop_sections(lines)
    lines = _drop_blocks(lines)
    text = "\n".join(lines)
    text = _ROLE.sub(r"\1", text)
    text = _LINK.sub(r"\1", text)
    text = _LITERAL.sub(lambda match: match[1] or match[2], text)
    text = _FOOTNOTE.sub("", text)
    text = _EMPHASIS.sub(r"\1", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    text = re.sub(r"(?<=\S) {2,}", " ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _drop_sections(lines: list[str]) -> list[str]:
    """Remove underlined or colon-ended sections without prose, and the underlines of the others."""
    kept: list[str] = []
    dropping = False
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        underlined = bool(line.strip()) and _UNDERLINE.match(following) is not None
        heading = line.strip().rstrip(":").lower()
        if underlined or (line.strip().endswith(":") and heading in _DROPPED_SECTIONS):
            dropping = heading in _DROPPED_SECTIONS
        if not dropping and not _UNDERLINE.match(line):
            kept.append(line)
    return kept


def _drop_blocks(lines: list[str]) -> list[str]:
    """Remove doctest sessions, literal blocks, tables and directives other than notes."""
    kept: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        indent = len(line) - len(line.lstrip())
        directive = _DIRECTIVE.match(line)
        if line.lstrip().startswith((">>>", "In [")):
            index = _next_blank(lines, index)
        elif line.lstrip().startswith("```"):
            index = _closing_fence(lines, index)
        elif directive and not line.strip()[2:].strip().startswith(_KEPT_DIRECTIVES):
            index = _end_of_indented(lines, index + 1, indent)
            kept.append("")
        elif directive:
            kept.append(re.sub(r"\.\.\s*\w+::\s*", "", line))
            index += 1
        elif _TABLE.match(line):
            index += 1
        elif line.rstrip().endswith("::"):
            kept.extend((line.rstrip()[:-1] if line.strip() != "::" else "", ""))
            index = _end_of_indented(lines, index + 1, indent)
        else:
            kept.append(line)
            index += 1
    return kept


def _next_blank(lines: list[str], index: int) -> int:
    while index < len(lines) and lines[index].strip():
        index += 1
    return index


def _closing_fence(lines: list[str], index: int) -> int:
    index += 1
    while index < len(lines) and not lines[index].lstrip().startswith("```"):
        index += 1
    return index + 1


def _end_of_indented(lines: list[str], index: int, indent: int) -> int:
    while index < len(lines):
        line = lines[index]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        index += 1
    return index
