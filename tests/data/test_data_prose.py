"""Prose out of wiki markup and docstrings, and path patterns."""

import bz2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwh_core.data.docstrings import docstring_prose, module_text
from hwh_core.data.errors import DataError
from hwh_core.data.patterns import path_matches
from hwh_core.data.wikitext import plain_prose, read_pages


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("'''Bold''' and ''italic'' [[Link|text]] of [[Plain]].", "Bold and italic text of Plain."),
        ("A{{citation needed|date=May}} fact<ref name=x>{{cite|a={{b}}}}</ref> here<ref name=x />.", "A fact here."),
        ("[[File:A.jpg|thumb|A [[nested]] caption]]Text [[Category:X]]", "Text"),
        ("It is {{convert|3|km|mi}} away.", "It is 3 km away."),
        ("The word {{lang|el|λόγος}} means reason.", "The word λόγος means reason."),
        ("1914{{ndash}}1918 &amp; &lt;later&gt;&nbsp;on", "1914–1918 & <later> on"),
        ("See [http://example.org the page] or [http://example.org].", "See the page or."),
        ("{| class=wikitable\n|-\n| a || b\n{|\n| c\n|}\n|}\nAfter.", "After."),
        ("<!-- hidden -->Shown<br/>again", "Shown\nagain"),
        ("* one\n* two", "one\ntwo"),
        ("Rome ({{IPAc-en|r}}; {{lang-it|Roma}}) is old.", "Rome (Roma) is old."),
        ("Unbalanced [[link and {{template", "Unbalanced link and template"),
        ("#REDIRECT is a word", "REDIRECT is a word"),
    ],
)
def test_wiki_markup(markup, prose):
    assert plain_prose(markup) == prose


def test_headings_stay_and_closing_sections_go():
    text = plain_prose(
        "Intro.\n== Life ==\n=== Youth ===\nBorn.\n== Empty ==\n{{Table}}\n== Works ==\nWrote.\n"
        "== References ==\n{{reflist}}\n=== Notes on notes ===\nGone.\n== Legacy ==\nRemembered."
    )
    assert text == "Intro.\n\nLife\n\nYouth\n\nBorn.\n\nEmpty\n\nWorks\n\nWrote.\n\nLegacy\n\nRemembered."


@given(st.text(alphabet="ab [](){}|'=<>/!-#*\n&;", max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_markup_gives_text_without_templates(markup):
    prose = plain_prose(markup)
    assert "{{" not in prose.replace("{{{", "") or "&" in markup
    assert prose == prose.strip()
    assert "\n\n\n" not in prose


def test_deep_nesting_takes_linear_time():
    assert plain_prose("{{a|" * 20_000 + "}}" * 20_000 + "End.") == "End."


EXPORT = """<mediawiki><siteinfo><namespaces><namespace key="0"/></namespaces></siteinfo>
<page><title>First</title><ns>0</ns><revision><text>Text &amp;amp; more.</text></revision></page>
<page><title>Gone</title><ns>0</ns><redirect title="First"/><revision><text>#REDIRECT [[First]]</text></revision></page>
<page><title>Talk:First</title><ns>1</ns><revision><text>Chat.</text></revision></page>
<page><title>Old</title><ns>0</ns><revision><text>#redirect [[First]]</text></revision></page>
</mediawiki>"""


@pytest.mark.parametrize("pack", [lambda data: data, bz2.compress])
def test_pages_of_an_export(pack):
    assert list(read_pages(pack(EXPORT.encode()), "export")) == [("First", "Text &amp; more.")]


def test_entities_and_damage_are_refused():
    bomb = '<!DOCTYPE m [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><mediawiki>&b;</mediawiki>'
    with pytest.raises(DataError, match="document type"):
        list(read_pages(bomb.encode(), "member x"))
    for data in (EXPORT[:-30].encode(), bz2.compress(EXPORT.encode())[:-8]):
        with pytest.raises(DataError, match=r"member x is (no complete MediaWiki export|damaged or cut short)"):
            list(read_pages(data, "member x"))


DOCSTRING = """Return the sum of `a` and ``b``.

    Uses :func:`numpy.sum`, see `the guide <http://x.org>`_ and [1]_. It is *very* fast::

        code here

    .. note:: Works on **all** arrays.

    .. math:: a + b

    Parameters
    ----------
    a : int
        The first number.

    Examples
    --------
    >>> add(1, 2)
    3

    Notes
    -----
    Plain text.

    ===== =====
    col   col
    ===== =====

    References
    ----------
    .. [1] A book.
    """


def test_docstring_keeps_prose_only():
    assert docstring_prose(DOCSTRING) == (
        "Return the sum of a and b.\n\nUses numpy.sum, see the guide and. It is very fast:\n\n"
        "Works on all arrays.\n\nParameters\na : int\n    The first number.\n\nNotes\nPlain text.\n\ncol col"
    )


def test_module_text_names_what_it_documents_and_repeats_nothing():
    prose = "This function does something that takes more than eighty characters to describe in full detail."
    source = f'"""{prose} Module."""\nclass A:\n    def f(self):\n        """{prose}"""\n    g = 1\n'
    source += f'def h():\n    """{prose}"""\ndef short():\n    """Too short."""\n'
    assert module_text(source, "m.py") == f"{prose} Module.\n\nA.f\n\n{prose}"
    with pytest.raises(DataError, match=r"m\.py is not Python source"):
        module_text("def broken(:", "m.py")


@pytest.mark.parametrize(
    ("path", "pattern", "fits"),
    [
        ("a/b.md", "*/*.md", True),
        ("b.md", "*/*.md", False),
        ("a/b/c.md", "*/*.md", False),
        ("a/b/c.py", "a/**/*.py", True),
        ("a/c.py", "a/**/*.py", True),
        ("b/a/c.py", "a/**/*.py", False),
        ("a/b/c", "a/**", True),
        ("a[1].txt", "a[1].txt", True),
        ("a1.txt", "a?.txt", True),
        ("a\n.txt", "a?.txt", True),
    ],
)
def test_patterns(path, pattern, fits):
    assert path_matches(path, pattern) is fits
