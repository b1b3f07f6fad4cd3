#!/usr/bin/env python3
"""Renew the copies of sdk/ inside mcp_bash.py, so that the file works where it is alone.

    python3 tests/embed.py            write them
    python3 tests/embed.py --check    say whether they are up to date
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.join(ROOT, "mcp_bash.py")
BEGIN, END = "# embedded files: begin\n", "# embedded files: end\n"
DIRECTORIES = ("sdk", "providers")


def sources() -> dict[str, str]:
    """Return every file that travels with mcp_bash.py: its path below the checkout and its text."""
    found = {}
    for directory in DIRECTORIES:
        place = os.path.join(ROOT, directory)
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if name.endswith((".sh", ".py")):
                with open(os.path.join(place, name), encoding="utf-8") as file:
                    found[directory + "/" + name] = file.read()
    return found


def block(files: dict[str, str]) -> str:
    """Return the lines that define EMBEDDED."""
    lines = ["EMBEDDED: dict[str, str] = {\n"]
    for name, text in files.items():
        if "'''" in text or text.endswith("\\"):
            raise SystemExit("%s: holds ''' or ends with a backslash and cannot be embedded as it is" % name)
        lines.append("    \"%s\": r'''%s''',\n" % (name, text))
    return "".join(lines) + "}\n"


def main() -> int:
    """Write the copies, or compare them."""
    with open(TARGET, encoding="utf-8") as file:
        text = file.read()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    renewed = text[:start] + block(sources()) + text[end:]
    if renewed == text:
        return 0
    if "--check" in sys.argv[1:]:
        print("mcp_bash.py: the embedded copies differ from sdk/; run python3 tests/embed.py.")
        return 1
    with open(TARGET, "w", encoding="utf-8") as file:
        file.write(renewed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
