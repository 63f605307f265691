"""HTML where text is escaped unless it was built here: what a server or a command line said cannot become markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pdbench.report.wording import clean

_VOID_TAGS = ("meta", "br", "hr")
MAX_TEXT_CHARS = 4000
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_PLAIN = ("title", "option", "text")  # elements that hold text alone, SVG's too
MAX_ATTRIBUTE_CHARS = 1_000_000  # foreign words are cut where they are taken in; a path of many points is not
TALL_ROWS = 25


class Markup(str):
    """A string that is markup already."""

    __slots__ = ()


Child = object  # Markup is kept, None is passed over, a sequence is joined, anything else is text


def tag(element: str, /, *children: Child, **attributes: object) -> Markup:
    """An element. `class_` is `class`, `_` in a name is `-`; True is a bare attribute, None and False leave it out."""
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        parts.append(
            f" {spelled}"
            if value is True
            else f' {spelled}="{html.escape(clean(value, MAX_ATTRIBUTE_CHARS), quote=True)}"'
        )
    opening = f"<{element}{''.join(parts)}>"
    content = joined(children) if element in _PLAIN else _with_whole_flags(children)
    return Markup(opening if element in _VOID_TAGS else f"{opening}{content}</{element}>")


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(_written(child) for child in children))


def _with_whole_flags(children: Iterable[Child]) -> str:
    """`children` joined; a command line flag in their text is no place for a new line, after its first hyphen least."""
    return "".join(
        _written(child)
        if child is None or isinstance(child, Markup)
        else _with_whole_flags(child)
        if isinstance(child, list | tuple)
        else _FLAG.sub(r'<span class="flag">\g<0></span>', _written(child))
        for child in children
    )


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return joined(child)
    text = str(child)
    shown = clean(text, MAX_TEXT_CHARS)
    # `clean` takes the spaces at both ends away; between elements they part words.
    return html.escape(
        (" " if text[:1] == " " else "") + shown + (" " if text[-1:] == " " and shown else ""), quote=True
    )


def table(
    heads: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str, row_classes: Sequence[str] = ()
) -> Markup:
    """A table in a frame that scrolls by itself and takes keyboard focus. The first cell of a row is its header."""
    head = tag("tr", [cell if _is_cell(cell) else tag("th", cell, scope="col") for cell in heads])
    body = []
    for index, (first, *rest) in enumerate(rows):
        cells = [tag("th", first, scope="row"), *[cell if _is_cell(cell) else tag("td", cell) for cell in rest]]
        body.append(tag("tr", cells, class_=row_classes[index] if index < len(row_classes) else None))
    whole = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", body))
    kind = "scroll tall" if len(body) > TALL_ROWS else "scroll"
    return tag("div", whole, class_=kind, tabindex="0", role="region", aria_label=caption)


def _is_cell(child: Child) -> bool:
    return isinstance(child, Markup) and child.startswith(("<td", "<th"))


def script_json(value: Any) -> Markup:
    """JSON that cannot end its <script> element and holds no NaN."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)
