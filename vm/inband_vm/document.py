"""The commands and files of a document, as its readers would carry them out.

    ```LANGUAGE file=PATH on=WHERE [mode=MODE]    the block is the content of a file
    ```sh run=WHERE                               the block is run by `sh -e`

WHERE is `admin`, `host-N` or `every-host`. Other blocks are examples. docs/deploy.md states the convention.
"""

import re
from dataclasses import dataclass

from .paths import REPOSITORY

BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
OPTIONS = {"run", "file", "on", "mode", "when"}


@dataclass
class Block:
    """`file` is None for commands."""

    document: str
    line: int
    where: str
    text: str
    file: str = None
    mode: int = 0o644
    when: str = None

    @property
    def place(self):
        return f"{self.document}:{self.line}"


def blocks(name):
    """The blocks of a document that are carried out, in their order."""
    text = (REPOSITORY / name).read_text()
    # The comment that explains the convention has blocks of its own.
    text = COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    found = []
    for match in BLOCK.finditer(text):
        words = match["info"].split()[1:]
        if not words:
            continue
        line = text[:match.start()].count("\n") + 1
        options = dict(word.split("=", 1) for word in words)
        unknown = set(options) - OPTIONS
        if unknown or ("run" in options) == ("file" in options):
            raise ValueError(f"{name}:{line}: a block is run=WHERE or file=PATH on=WHERE, not {match['info']!r}")
        where = options.get("run") or options.get("on", "admin")
        mode = int(options.get("mode", "644"), 8)
        found.append(Block(name, line, where, match["text"], options.get("file"), mode, options.get("when")))
    return found
