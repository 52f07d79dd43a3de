"""Make the exercises out of the solutions: `python -m course.unsolved 3` gives you a fresh exercise 3.

What follows a `# TODO` comment, to the end of its block, is the solution; the exercise raises the sentence instead. So
an exercise and its solution cannot drift apart.
"""

import ast
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
_TODO = re.compile(r"( +)# (TODO \d+\.\d+: .*)")


def unsolved(solution: str) -> str:
    """The text of the exercise that this is the solution of."""
    lines: list[str] = []
    inside: str | None = None  # the indentation of the block that is left out
    todo, hints = "", True
    for line in [*solution.splitlines(), "end"]:
        if inside is not None:
            if hints and line.startswith(f"{inside}# "):
                lines.append(line)
                continue
            if hints:
                lines += _raise(todo, inside)
                hints = False
            if not line or line.startswith(inside):
                continue
            lines += [""] * (1 if line.startswith(" ") else 2)
            inside = None
        match = _TODO.fullmatch(line)
        if match:
            inside, todo, hints = match[1], match[2], True
        else:
            lines.append(line)
    text = "\n".join(lines[:-1]).rstrip() + "\n"
    return _with_noqa(text)


def _raise(todo: str, indent: str) -> list[str]:
    quoted = f"'{todo}'" if '"' in todo else f'"{todo}"'
    line = f"{indent}raise NotImplementedError({quoted})"
    if len(line) <= 120:
        return [line]
    return [f"{indent}raise NotImplementedError(", f"{indent}    {quoted}", f"{indent})"]


def _with_noqa(text: str) -> str:
    """Tell linters that what is imported and not used yet is for the TODOs."""
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and any((n.asname or n.name) not in used for n in node.names):
            lines[node.lineno - 1] += "  # noqa: F401 - for your TODOs"
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the exercises with these numbers anew; "all" for all of them."""
    numbers = range(1, 11) if arguments == ["all"] else [int(a) for a in arguments if a.isdecimal()]
    if not numbers:
        print("say which exercise to write anew: python -m course.unsolved 3")
        return 2
    for number in numbers:
        (solution,) = (HERE / "solutions").glob(f"ex{number:02d}_*.py")
        (HERE / "exercises" / solution.name).write_text(
            unsolved(solution.read_text(encoding="utf-8")), encoding="utf-8"
        )
        print(f"course/exercises/{solution.name} is as it was on the first day")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
