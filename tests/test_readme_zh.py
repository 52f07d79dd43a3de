"""The Chinese README shows the same commands, code and output as the English one; only words differ."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
INDENTED = re.compile(r"(?:^    .*\n(?:\n(?=    ))*)+", re.M)


def readme(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def indented(text: str) -> list[str]:
    return INDENTED.findall(FENCED.sub("", text))


def bare(block: str) -> list[str]:
    """The block as it is if it shows output; otherwise commands without comments, or names without descriptions."""
    if block.lstrip().startswith("$ "):
        return block.splitlines()
    return [line.partition("#")[0].strip() if "#" in line else line.split()[0] for line in block.splitlines()]


def test_fenced_blocks_are_the_same() -> None:
    blocks = FENCED.findall(readme("README.md"))
    assert len(blocks) >= 2
    assert FENCED.findall(readme("README.zh.md")) == blocks


def test_commands_and_their_output_are_the_same() -> None:
    english, chinese = (list(map(bare, indented(readme(name)))) for name in ("README.md", "README.zh.md"))
    assert len(english) >= 4
    assert chinese == english


def test_code_in_the_text_is_the_same() -> None:
    """`names` in running text: in both, each as often, or a heading, a row or a sentence was left out."""

    def code(name: str) -> list[str]:
        return sorted(" ".join(found.split()) for found in re.findall(r"`[^`]+`", FENCED.sub("", readme(name))))

    assert code("README.zh.md") == code("README.md")


def test_links_and_headings_are_the_same() -> None:
    link = re.compile(r"\]\(([^)]*)\)")
    english, chinese = (link.findall(readme(name)) for name in ("README.md", "README.zh.md"))
    assert "README.zh.md" in english
    assert "README.md" in chinese
    assert sorted({*chinese, "README.zh.md"}) == sorted({*english, "README.md"})
    english, chinese = (
        re.findall(r"^#+", FENCED.sub("", readme(name)), re.M) for name in ("README.md", "README.zh.md")
    )
    assert chinese == english
