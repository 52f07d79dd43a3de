"""What the reader can move, as data, and the form that is made of it.

Each control is one line here: its name is the name in the form, in the address (`#ranks=6`) and in `model.js`, which
makes schedule, costs and memory of the values.
"""

from dataclasses import dataclass
from html import escape
from typing import Final

from headrace.report.play.orders import MOST_MICRO_BATCHES, MOST_RANKS


@dataclass(frozen=True)
class Slider:
    """A number between two others.

    Attributes:
        name: in the form and in the address.
        label: what people read.
        least, most, step, start: numbers.
        unit: behind the number.
        hint: one sentence below, or nothing.
    """

    name: str
    label: str
    least: float
    most: float
    step: float
    start: float
    unit: str = ""
    hint: str = ""

    def as_html(self) -> str:
        """The slider with its label and its number."""
        bounds = f'min="{self.least:g}" max="{self.most:g}" step="{self.step:g}" value="{self.start:g}"'
        return (
            f'<div class="control" data-of="{self.name}"><label for="{self.name}">{escape(self.label)}</label>'
            f'<span class="value" data-of="{self.name}" data-unit="{self.unit}" aria-hidden="true"></span>'
            f'<input type="range" id="{self.name}" name="{self.name}" {bounds}{_described(self.name, self.hint)}>'
            f"{_hint(self.name, self.hint)}</div>"
        )


@dataclass(frozen=True)
class Select:
    """One of several words, as (value, what people read); the first is the start."""

    name: str
    label: str
    values: tuple[tuple[str, str], ...]
    hint: str = ""

    def as_html(self) -> str:
        """The list with its label."""
        options = "".join(f'<option value="{value}">{escape(words)}</option>' for value, words in self.values)
        return (
            f'<div class="control" data-of="{self.name}"><label for="{self.name}">{escape(self.label)}</label>'
            f'<select id="{self.name}" name="{self.name}"{_described(self.name, self.hint)}>{options}</select>'
            f"{_hint(self.name, self.hint)}</div>"
        )


@dataclass(frozen=True)
class Text:
    """Something to write, on one line or several."""

    name: str
    label: str
    hint: str
    lines: int = 1

    def as_html(self) -> str:
        """The field with its label."""
        named = f'id="{self.name}" name="{self.name}" spellcheck="false" autocomplete="off"'
        named += _described(self.name, self.hint)
        field = f"<textarea {named} rows={self.lines}></textarea>" if self.lines > 1 else f'<input type="text" {named}>'
        return (
            f'<div class="control" data-of="{self.name}"><label for="{self.name}">{escape(self.label)}</label>'
            f"{field}{_hint(self.name, self.hint)}</div>"
        )


Control = Slider | Select | Text

OWN_ROWS: Final = ("custom", "your own rows")
"""The choice among the schedules that is none of the catalogue."""

SCHEDULE: Final[tuple[Control, ...]] = (
    Slider("ranks", "Ranks", 1, MOST_RANKS, 1, 4),
    Slider("micro_batches", "Micro-batches", 1, MOST_MICRO_BATCHES, 1, 8),
    Slider("choice", "Stages per rank", 1, 4, 1, 2),
    Select(
        "recompute",
        "Recompute forwards",
        (("never", "never"), ("always", "always"), ("except_last", "all but the last micro-batch")),
    ),
    Text("rows", "Rows, one line per rank", "Cells such as 0F0 (stage, kind, micro-batch) with commas between.", 6),
)
SECONDS: Final[tuple[Control, ...]] = (
    Slider("forward", "Forward, F", 0, 4, 0.25, 1, "s"),
    Slider("backward_input", "Backward for the input, I", 0, 4, 0.25, 1, "s"),
    Slider("backward_weight", "Backward for the weights, W", 0, 4, 0.25, 1, "s", "A whole backward, B, takes I + W."),
    Slider("recompute_cost", "Recompute, R", 0, 4, 0.25, 1, "s"),
    Slider(
        "update", "Update, U", 0, 4, 0.25, 0, "s", "At the end of the step, or wherever the schedule has its own U."
    ),
    Slider("latency", "Latency of a hop between ranks", 0, 2, 0.05, 0, "s"),
    Slider("message", "Message between stages", 0, 4, 0.1, 0, "GiB", "Of one micro-batch, in each direction."),
    Slider("bandwidth", "Bandwidth of a link", 1, 50, 1, 10, "GiB/s"),
    Select("link", "A link carries", (("freely", "messages side by side"), ("one", "one message at a time"))),
    Slider("pair", "An overlapped pair takes", 50, 100, 5, 100, "%", "Of what its forward and backward take alone."),
)
UNEVEN: Final[tuple[Control, ...]] = (
    Select(
        "heavy",
        "Which stage is heavier",
        (
            ("last", "the last one, as with a large head"),
            ("first", "the first one"),
            ("middle", "one in the middle"),
            ("rising", "each more than the one before"),
            ("own", "my own factors"),
        ),
    ),
    Slider("factor", "Heavier by a factor of", 0.5, 3, 0.1, 1),
    Text("factors", "Factors, one per stage", "Numbers with commas between, such as 1, 1, 1.5, 1."),
)
MEMORY: Final[tuple[Control, ...]] = (
    Slider("cap", "Memory of a rank", 0, 64, 1, 24, "GiB", "At 0, nobody asks whether it fits."),
    Slider("parameters", "Parameters, gradients, optimizer state", 0, 40, 1, 8, "GiB"),
    Slider("activations", "Activations of a micro-batch", 0, 8, 0.25, 2, "GiB", "From its forward to its backward."),
    Slider("for_weight", "Of them kept from I to W", 0, 100, 5, 50, "%"),
    Slider("stage_input", "Of them kept if recomputed", 0, 100, 5, 10, "%", "The stage's input, until R."),
)


def form(names: list[str]) -> str:
    """The form of all controls.

    Args:
        names: the schedules of the catalogue.
    """
    every = tuple((name, name) for name in names)
    schedules = Select("schedule", "Schedule", (*every, OWN_ROWS))
    beside = Select("beside", "Compare with", (("", "nothing"), *every))
    about = '<p class="note" id="about"></p>'
    return (
        '<form id="controls" aria-label="Controls">'
        f"<fieldset><legend>The schedule</legend>{schedules.as_html()}{about}{_all((*SCHEDULE, beside))}</fieldset>"
        f"{_folded('Seconds', 'Of one micro-batch on one rank’s share of the model.', SECONDS)}"
        f"{_folded('Uneven stages', '', UNEVEN)}"
        f"{_folded('Memory', 'Of one rank’s share of the model.', MEMORY)}"
        '<p><button type="reset">Reset</button></p>'
        '<p class="note">The address of this page holds the setting: copy it to share what you see.</p>'
        "</form>"
    )


def _folded(legend: str, note: str, controls: tuple[Control, ...]) -> str:
    above = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<details open><summary>{legend}</summary><fieldset><legend class="unseen">{legend}</legend>'
        f"{above}{_all(controls)}</fieldset></details>"
    )


def _all(controls: tuple[Control, ...]) -> str:
    return "".join(control.as_html() for control in controls)


def _described(name: str, hint: str) -> str:
    return f' aria-describedby="{name}-hint"' if hint else ""


def _hint(name: str, hint: str) -> str:
    return f'<small id="{name}-hint">{escape(hint)}</small>' if hint else ""
