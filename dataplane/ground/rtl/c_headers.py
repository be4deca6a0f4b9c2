# SPDX-License-Identifier: Apache-2.0
"""Constants, fields and reasons for the RTL, read from the C headers, their only definition."""

import pathlib
import re

DATAPLANE = pathlib.Path(__file__).resolve().parents[2]


def _text(path):
    text = (DATAPLANE / path).read_text()
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def constants(*paths):
    """Enumerators with explicit values, and numeric #defines."""
    known = {}
    for path in paths:
        text = _text(path)
        found = re.findall(
            r"\b(IB_\w+)\s*=\s*([\w\s+\-*<>()]+?)\s*[,}]|#define\s+(IB_\w+)\s+(\d\w*)\s*$", text, re.MULTILINE
        )
        for enumerator, expression, macro, number in found:
            expression = re.sub(r"(?<=\d)U?LL\b", "", expression or number)
            known[enumerator or macro] = eval(expression, {"__builtins__": {}}, known)
    return known


def fields(path, struct):
    """Maps names to (offset, length) in bytes, for a struct whose fields are naturally aligned."""
    body = re.search(rf"struct {struct} \{{(.*?)\}};", _text(path), re.DOTALL)[1]
    at, found = 0, {}
    for bits, name in re.findall(r"ib_u(\d+)\s+(\w+);", body):
        length = int(bits) // 8
        assert at % length == 0, f"{name} is not aligned"
        found[name] = (at, length)
        at += length
    return found


def reasons(path, first=0):
    """Maps the names of the reasons in a header to their numbers."""
    return {name: first + i for i, name in enumerate(re.findall(r"\bX\((\w+)\)", _text(path)))}
