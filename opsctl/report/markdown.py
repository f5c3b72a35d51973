"""A report as Markdown, for a wiki or a pull request."""

from __future__ import annotations

import re

from opsctl.report.document import Block, Callout, Chart, Document, Inline, Items, Mark, Prose, Section, Table

_TONE_WORDS = {"bad": "**{}**", "warn": "*{}*"}
_SPECIAL = re.compile(r"[\\`*\[\]|~#!$]|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MENTION = re.compile(r"(?<![\w.])@(?=\w)")
_LIST_MARK = re.compile(r"^(\s*)(?:([-+])(?=\s)|(\d+)([.)])(?=\s))")


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no tag, link, emphasis, cell border, list or mention comes of it.

    Line breaks become spaces, and other control characters the replacement character.
    """
    flat = "".join(_visible(letter) for letter in text)
    for plain, entity in _ENTITIES.items():
        flat = flat.replace(plain, entity)
    flat = _SPECIAL.sub(lambda match: "\\" + match[0], flat)
    flat = _MENTION.sub("&#64;", flat)
    return _LIST_MARK.sub(lambda m: f"{m[1]}\\{m[2]}" if m[2] else f"{m[1]}{m[3]}\\{m[4]}", flat)


def _visible(letter: str) -> str:
    if letter in "\n\r\t\v\f\x85\u2028\u2029":
        return " "
    return letter if letter.isprintable() else "\ufffd"


def code(text: str) -> str:
    """Return text as inline code, whatever backticks and pipes it holds."""
    flat = "".join(_visible(letter) for letter in text).strip()
    if not flat:
        return ""
    if "|" in flat or "`" in flat:
        # A pipe ends a table's cell even inside backticks, so such text is escaped instead.
        return escape(flat)
    return f"`{flat}`"


def render(document: Document) -> str:
    """Return the report as Markdown (GitHub's flavour: tables)."""
    lines = [f"# {escape(document.title)}", "", escape(document.subtitle), "", f"**{escape(document.headline)}**", ""]
    if document.headline_note:
        lines += [escape(document.headline_note), ""]
    lines += ["| | | |", "|---|---|---|"]
    lines += [
        f"| {escape(tile.label)} | {_inline(Mark(tile.value, tile.tone))} | {escape(tile.note)} |"
        for tile in document.tiles
    ]
    lines.append("")
    for section in document.sections:
        lines += _section(section)
    if document.footer:
        lines += ["---", "", escape(document.footer), ""]
    return "\n".join(lines)


def _section(section: Section) -> list[str]:
    lines = [f"## {escape(section.title)}", ""]
    for block in section.blocks:
        lines += _block(block)
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Prose(text=text):
            return [escape(text), ""]
        case Callout(text=text, tone=tone):
            return [f"> {_inline(Mark(text, 'bad' if tone == 'bad' else 'plain'))}", ""]
        case Items(items=items):
            return [*(f"- {_inline(item)}" for item in items), ""]
        case Table():
            return _table(block)
        case Chart():
            # Every chart stands beside a table with the same numbers.
            return []


def _table(block: Table) -> list[str]:
    lines = [f"{escape(block.caption)}:", ""] if block.caption else []
    rule = ["---:" if index in block.numeric else "---" for index in range(len(block.head))]
    lines += ["| " + " | ".join(escape(name) for name in block.head) + " |", "|" + "|".join(rule) + "|"]
    lines += ["| " + " | ".join(_inline(cell) for cell in row) + " |" for row in block.rows]
    lines.append("")
    if block.note:
        lines += [f"*{escape(block.note)}*", ""]
    return lines


def _inline(item: Inline) -> str:
    if isinstance(item, str):
        return escape(item)
    if item.tone == "code":
        return code(item.text)
    text = escape(item.text)
    return _TONE_WORDS.get(item.tone, "{}").replace("{}", text) if text else ""
