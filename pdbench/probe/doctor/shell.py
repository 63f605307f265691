"""What a shell makes of a text: its simple commands, with the variables that the text itself sets put in their places.

Nothing is run. What only the running shell knows, as $HOSTNAME and $(command), stays in a word as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_PIECES = re.compile(
    r"""(?P<joined>\\\\?(?:\n|\Z))  # of two backslashes the first is one too many, as in TOML's other quotation marks
    | (?P<comment>(?<![^\s;&|()])\#[^\n]*)
    | (?P<single>'[^']*')
    | "(?P<double>(?:\\.|[^"\\])*)"
    | \\(?P<escaped>.)
    | (?P<variable>\$\(\((?:[^()]|\([^()]*\))*\)\) | \$\((?:[^()]|\([^()]*\))*\) | \$\{[^}]*\} | \$\w+ | \$[@*\#?!$-]
        | `[^`]*`)
    | (?P<array>(?<![^\s;&|()])[A-Za-z_]\w*\+?=\()
    | (?P<placeholder><[A-Za-z][\w.-]*>|\{\{.*?\}\})
    | (?P<redirect>(?:(?<![^\s;&|()])\d+)?&?[<>]+[&|]?)
    | (?P<end>;;|&&|\|\||[;&|()])
    | (?P<line>\n)
    | (?P<blank>[ \t\r]+)
    | (?P<plain>[^\s'"\\$`;&|()<>]+|\$)""",
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(
    r"""\\(?P<escaped>["\\$`\n])
    | (?P<variable>\$\((?:[^()]|\([^()]*\))*\) | \$\{[^}]*\} | \$\w+ | \$[@*\#?!$-] | `[^`]*`)
    | (?P<plain>[^\\$`]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_LINE = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n)*([ \t]*)(\S?)")
_NAME = r"[A-Za-z_]\w*"
VARIABLE = re.compile(rf"({_NAME})(\+?)=", re.ASCII)
_DEFAULT = re.compile(rf"\$\{{({_NAME})(?::?[-=](.*))?\}}", re.DOTALL)
_WHOLE_ARRAY = re.compile(rf"\$\{{({_NAME})\[[@*]\]\}}")
_OPEN = re.compile(r"[$`]|\{\{.*\}\}|^<[^<>]+>$|%[a-zA-Z]\b")
_CONTROL = {"if", "elif", "for", "while", "until", "case", "select", "function"}
_IGNORED = {"{", "}", "!", "time"}


class Unread(Exception):
    """The text is more than commands, or says in another place what it starts."""


@dataclass(frozen=True, slots=True)
class Command:
    """`env`: all that was given or set before it, exported or not."""

    words: tuple[str, ...]
    env: Mapping[str, str]


def is_open(text: object) -> bool:
    """Whether only the running shell, pod or template knows what this stands for."""
    return isinstance(text, str) and _OPEN.search(text) is not None


def expanded(text: str, known: Mapping[str, str]) -> str:
    """$NAME, ${NAME} and ${NAME:-default} by what is known; anything else stays as it is."""
    return re.sub(r"\$\{[^}]*\}|\$[A-Za-z_]\w*", lambda found: _value(found[0], known), text)


def _value(written: str, known: Mapping[str, str]) -> str:
    if (braced := _DEFAULT.fullmatch(written)) is not None:
        name, default = braced[1], braced[2]
        return known.get(name) or (written if default is None else expanded(default.strip("\"'"), known))
    return known.get(written[1:], written)


def commands(text: str, given: Mapping[str, str]) -> list[Command]:
    """The simple commands of a text that starts with the variables `given`; a line that begins with an option, or is
    set in further than the command, goes on with it. Raises ValueError for a quotation without end, Unread."""
    return list(_Reader(text.replace("\r\n", "\n"), dict(given)).commands())


@dataclass
class _Reader:
    text: str
    known: dict[str, str]
    arrays: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    word: str | None = None  # what of a word has been read
    into: str | None = None  # the array whose words are being read
    gathered: list[str] = field(default_factory=list)
    skip: bool = False  # the next word is a redirection's file
    line_set_in: int = 0
    set_in: int = 0  # of the line on which the command began

    def commands(self) -> Iterator[Command]:
        place = 0
        while place < len(self.text):
            found = _PIECES.match(self.text, place)
            if found is None:
                raise ValueError("No closing quotation")
            place = found.end()
            kind = found.lastgroup or "double"
            if kind in ("end", "line", "blank", "redirect", "array", "comment"):
                if kind == "redirect" and "<<" in found[0]:
                    raise Unread("has a here-document")
                self._word_ends()
            if kind == "array":
                self.into = found[0].rstrip("+=(")
                self.gathered = list(self.arrays.get(self.into, ())) if "+" in found[0] else []
            elif kind == "redirect":
                self.skip = True
            elif self.into is not None and kind in ("end", "line"):
                if found[0] == ")":
                    self.arrays[self.into], self.into = self.gathered, None
            elif kind == "end" or (kind == "line" and not self._goes_on(place)):
                yield from self._ended()
            elif kind not in ("joined", "comment", "blank", "line"):
                self._add(found, kind, alone=self._alone(found))
        self._word_ends()
        yield from self._ended()

    def _alone(self, found: re.Match[str]) -> bool:
        return self.word is None and self.text[found.end() : found.end() + 1] in ("", *" \t\r\n;&|()")

    def _add(self, found: re.Match[str], kind: str, *, alone: bool) -> None:
        """A piece of a word; a variable that is a whole word may be several."""
        piece = found[kind]
        name = (_WHOLE_ARRAY.fullmatch(piece) or ["", ""])[1]
        if alone and name in self.arrays:
            several = self.arrays[name]
        elif alone and kind == "variable":
            several = _value(piece, self.known).split() if not is_open(_value(piece, self.known)) else [piece]
        else:
            self.word = (self.word or "") + self._piece(piece, kind)
            return
        for word in several:
            self.word = word
            self._word_ends()

    def _piece(self, piece: str, kind: str) -> str:
        if kind == "variable":
            return _value(piece, self.known)
        if kind == "double":
            inner = (found for found in _IN_DOUBLE.finditer(piece))
            return "".join(
                _value(one["variable"], self.known)
                if one["variable"]
                else (one["escaped"] or "").replace("\n", "") + (one["plain"] or "")
                for one in inner
            )
        return piece[1:-1] if kind == "single" else piece

    def _word_ends(self) -> None:
        if self.word is None:
            return
        if self.skip:
            self.skip = False
        elif self.into is not None:
            self.gathered.append(self.word)
        else:
            if not self.words:
                self.set_in = self.line_set_in
            self.words.append(self.word)
        self.word = None

    def _goes_on(self, place: int) -> bool:
        """Whether the line after this one belongs to the command."""
        following = _LINE.match(self.text, place)
        assert following is not None, "it matches nothing too"
        set_in, first = len(following[1]), following[2]
        on = bool(self.words) and (set_in > self.set_in or first in {*"-'\"{["} or first.isdigit())
        if not on:
            self.line_set_in = set_in
        return on

    def _ended(self) -> Iterator[Command]:
        words, self.words = self.words, []
        while words and words[0] in _IGNORED:
            del words[0]
        if words and words[0] in _CONTROL:
            raise Unread("has branches or loops")
        left = after_variables(words, self.known)
        if left:
            yield Command(tuple(left), dict(self.known))


_BEFORE = ("exec", "nohup", "export", "declare", "-x", "sudo", "command")  # what may stand before a command


def after_variables(words: list[str], given: dict[str, str]) -> list[str]:
    """The command without what stands before it: NAME=VALUE, also as `env` takes them, which goes into `given`."""
    left = list(words)
    by_env = False
    while left:
        if (found := VARIABLE.match(left[0])) is not None:
            value = left.pop(0)[found.end() :]
            given[found[1]] = given.get(found[1], "") + value if found[2] else value
        elif left[0].rsplit("/", 1)[-1] == "env":
            by_env = bool(left.pop(0))
        elif by_env and left[0] in ("-u", "--unset"):
            given.pop("".join(left[1:2]), None)
            del left[:2]
        elif left[0] in _BEFORE or (by_env and left[0] in ("-", "-i", "--ignore-environment", "--")):
            left.pop(0)
        else:
            break
    return left
