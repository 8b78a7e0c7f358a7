"""Articles out of a MediaWiki XML export, with the wiki markup reduced to plain prose."""

from __future__ import annotations

import bz2
import gzip
import html
import re
from collections.abc import Callable, Iterator
from xml.parsers import expat

from .errors import DataError

# Link prefixes whose whole link is dropped: pictures, categories and links to other languages or projects.
_DROPPED_LINKS = re.compile(
    r"^\s*:?(?:file|image|media|category|portal|wikt|wiktionary|commons|s|q|d|[a-z]{2,3}):", re.I
)
_DROPPED_TAGS = (
    "ref", "math", "chem", "gallery", "timeline", "imagemap", "score", "source", "syntaxhighlight", "pre", "graph",
    "mapframe", "hiero", "table", "references", "templatestyles", "maplink", "ce", "inputbox",
)  # fmt: skip
_DROPPED_SECTIONS = {
    "references", "notes", "footnotes", "external links", "further reading", "see also", "bibliography", "sources",
    "citations", "notes and references", "references and notes", "works cited", "gallery", "literature", "links",
    "general references", "cited sources", "notes and citations", "additional reading", "external link",
}  # fmt: skip
# Templates that stand for text of the sentence around them: the number of the argument that carries it.
_TEXT_TEMPLATES = {
    "lang": 2, "transl": -1, "transliteration": -1, "nowrap": 1, "nobr": 1, "small": 1, "smaller": 1, "big": 1,
    "em": 1, "strong": 1, "abbr": 1, "tooltip": 1, "quote": 1, "cquote": 1, "blockquote": 1, "rquote": 2, "sic": 1,
    "math": 1, "mvar": 1, "var": 1, "sub": 1, "sup": 1, "smallcaps": 1, "sc": 1, "ipac-en": 0,
    "script": 2, "unicode": 1, "nihongo": 1, "visible anchor": 1, "vanchor": 1, "lang-en": 1, "circa": 1, "c.": 1,
    "frac": 0, "val": 1, "chem": 0, "ill": 1, "interlanguage link": 1, "usd": 1, "ussubst": 1, "ship": 2, "uss": 1,
    "hms": 1, "gaps": 1, "formatnum": 1, "bce": 1, "ce": 1, "angle bracket": 1, "not a typo": 1, "text": 1,
}  # fmt: skip
_PUNCTUATION_TEMPLATES = {
    "ndash": "–", "mdash": "—", "spaced ndash": " – ", "snd": " – ", "spnd": " – ", "dash": " – ", "nbsp": " ",
    "'": "'", "'s": "'s", '"': '"', "=": "=", "!": "|", "okina": "ʻ",
}  # fmt: skip
_UNIT_TEMPLATES = {"convert", "cvt"}


def read_pages(data: bytes, where: str) -> Iterator[tuple[str, str]]:
    """Yield ``(title, wikitext)`` of the articles (namespace 0, no redirects) of a MediaWiki export.

    ``data`` may be compressed with bz2 or gzip. Document types and entity declarations are refused, so nothing
    outside the file is read and nothing is expanded. Raises :class:`DataError` naming ``where``.
    """
    try:
        if data[:3] == b"BZh":
            data = bz2.decompress(data)
        elif data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{where} is damaged or cut short ({error}); fetch it anew") from None
    try:
        yield from _PageParser(where).parse(data)
    except expat.ExpatError as error:
        raise DataError(f"{where} is no complete MediaWiki export ({error}); fetch it anew") from None


class _PageParser:
    """Collects one page at a time from expat's events."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._path: list[str] = []
        self._text: list[str] = []
        self._page: dict[str, str] = {}
        self._done: list[tuple[str, str]] = []

    def parse(self, data: bytes) -> Iterator[tuple[str, str]]:
        parser = expat.ParserCreate("UTF-8")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        step = 1 << 20
        for begin in range(0, len(data), step):
            parser.Parse(data[begin : begin + step], False)
            yield from self._done
            self._done.clear()
        parser.Parse(b"", True)
        yield from self._done

    def _refuse(self, *_: object) -> None:
        raise DataError(f"{self._where} declares a document type or entities, which an export never does; not used")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        self._text.clear()
        if name == "page":
            self._page = {}
        elif name == "redirect":
            self._page["redirect"] = attributes.get("title", "")

    def _end(self, name: str) -> None:
        if name in ("title", "ns", "text"):
            self._page[name] = "".join(self._text)
        self._text.clear()
        self._path.pop()
        text = self._page.get("text", "")
        article = name == "page" and self._page.get("ns", "0") == "0" and "redirect" not in self._page
        if article and not re.match(r"\s*#redirect", text, re.I):
            self._done.append((self._page.get("title", ""), text))


def plain_prose(wikitext: str) -> str:
    """Reduce wikitext to prose: paragraphs and list items as lines, headings as lines of their own.

    Templates, tables, references, pictures, categories, formulas and the closing sections (references, external
    links and the like) are dropped; links, emphasis and entities are replaced by their text.
    """
    text = re.sub(r"<!--.*?(?:-->|\Z)", "", wikitext, flags=re.S)
    text = re.sub(r"<nowiki\s*/>", "", text)
    for tag in _DROPPED_TAGS:
        text = re.sub(rf"<{tag}\b[^<>]*/\s*>", "", text, flags=re.I)
        text = re.sub(rf"<{tag}\b[^<>]*>.*?</{tag}\s*>", "", text, flags=re.I | re.S)
    text = _replace_nested(text, "{{", "}}", _template_text)
    text = _replace_nested(text, "{|", "|}", lambda body: "")
    text = _replace_nested(text, "[[", "]]", _link_text)
    text = re.sub(r"\[(?:https?:|ftp:|mailto:)?//[^\s\]]+\s*([^\]\n]*)\]", r"\1", text, flags=re.I)
    text = re.sub(r"</?(?:br|p|div|center|blockquote|li|ul|ol|tr|dl|dd|dt)\b[^<>]*>", "\n", text, flags=re.I)
    text = re.sub(r"</?[a-zA-Z][^<>\n]*>", "", text)
    text = re.sub(r"'{2,5}", "", text)
    text = re.sub(r"__[A-Z]{3,}__", "", text)
    # Twice: exports hold "&amp;nbsp;" for an entity that an editor typed.
    text = html.unescape(html.unescape(text)).replace("\u00a0", " ").replace("\u200e", "")
    return _lines(text)


def _replace_nested(text: str, opening: str, closing: str, replace: Callable[[str], str]) -> str:
    """Replace every balanced ``opening ... closing``, innermost first, by ``replace(body)``.

    One pass with a stack, so that deep nesting costs linear time. Unbalanced openings are removed, their text kept.
    """
    pieces: list[list[str]] = [[]]
    position = 0
    pattern = re.compile(f"{re.escape(opening)}|{re.escape(closing)}")
    for match in pattern.finditer(text):
        pieces[-1].append(text[position : match.start()])
        position = match.end()
        if match[0] == opening:
            pieces.append([])
        elif len(pieces) > 1:
            body = "".join(pieces.pop())
            pieces[-1].append(replace(body))
    pieces[-1].append(text[position:])
    return "".join("".join(level) for level in pieces)


def _template_text(body: str) -> str:
    arguments = body.split("|")
    name = arguments[0].strip().lower().replace("_", " ")
    if name in _PUNCTUATION_TEMPLATES:
        return _PUNCTUATION_TEMPLATES[name]
    values = [value.strip() for value in arguments[1:] if not re.match(r"\s*[A-Za-z_]\w*\s*=", value)]
    values = [re.sub(r"^\s*\d+\s*=\s*", "", value) for value in values]
    if name in _UNIT_TEMPLATES and len(values) >= 2:
        return f"{values[0]} {values[1]}"
    if name.startswith("lang-") and values:
        return values[0]
    number = _TEXT_TEMPLATES.get(name, 0)
    if number and values and len(values) >= number:
        return values[number - 1 if number > 0 else -1]
    return ""


def _link_text(body: str) -> str:
    target, _, label = body.partition("|")
    if _DROPPED_LINKS.match(target) and not body.startswith(":"):
        return ""
    if label:
        return label.rsplit("|", 1)[-1]
    return target.split("#")[0].lstrip(":") or target.lstrip("#")


def _lines(text: str) -> str:
    kept: list[str] = []
    dropped_level = 0
    for line in text.split("\n"):
        heading = re.match(r"^\s*(={2,6})\s*(.*?)\s*\1\s*$", line)
        if heading:
            level = len(heading[1])
            if dropped_level and level > dropped_level:
                continue
            dropped_level = level if heading[2].strip().lower() in _DROPPED_SECTIONS else 0
            if not dropped_level:
                kept.extend(("", f"# {heading[2]}", ""))
            continue
        if dropped_level or line.lstrip().startswith(("|", "!", "{|", "|}")):
            continue
        line = re.sub(r"^[*#:;\s]+", "", line)
        line = _tidy(line)
        # What is left of a dropped template or picture: a few marks without a word.
        if line and not re.search(r"\w", line):
            line = ""
        kept.append(line)
    return _without_empty_headings(kept)


def _tidy(line: str) -> str:
    line = re.sub(r"\(\s*(?:[;,:]\s*)+", "(", line)
    line = re.sub(r"(?:\s*[;,])+\s*\)", ")", line)
    line = re.sub(r"\s*\(\s*\)", "", line)
    line = re.sub(r"\s+([,.;:!?)])", r"\1", line)
    line = re.sub(r"\(\s+", "(", line)
    line = re.sub(r",(?:\s*,)+", ",", line)
    return re.sub(r"[ \t]+", " ", line).strip()


def _without_empty_headings(lines: list[str]) -> str:
    """Join lines; headings (marked with ``# ``) stand plain, and those with nothing below them are dropped."""
    kept: list[str] = []
    pending: list[str] = []
    for line in lines:
        if line.startswith("# "):
            # A heading directly below another one may be its subsection: keep the last two.
            pending = [*pending, line[2:]][-2:]
        elif line:
            kept.extend(part for heading in pending for part in ("", heading, ""))
            pending = []
            kept.append(line)
        else:
            kept.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
