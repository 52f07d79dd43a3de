"""Writes docs/schedules.md: every schedule of the catalogue with its picture, and when to use it.

python docs/make_schedules.py           write the page
python docs/make_schedules.py --check   exit code 1 if the page is not what would be written
"""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Final

from headrace.costs import Costs
from headrace.report.catalogue import Entry, entries
from headrace.report.gantt import gantt
from headrace.schedule.catalogue import build, describe
from headrace.simulate import simulate
from headrace.units import percent

PAGE: Final = Path(__file__).parent / "schedules.md"
TABLE_SIZE: Final = (4, 8)
PICTURE_SIZE: Final = (4, 6)

WHEN: Final = {
    "gpipe": "To learn with, and where all activations fit anyway or are recomputed: it has the fewest turns between "
    "forward and backward. Otherwise `1f1b` has the same bubble in less memory.",
    "1f1b": "The one to begin with: nothing to tune, memory that does not grow with m, no second copy of anything.",
    "eager-1f1b": "Where a hop between ranks takes long against a stage: the second warm-up hides it, for almost "
    "twice the memory of `1f1b`.",
    "interleaved": "Where the bubble of `1f1b` hurts, hops are cheap and the model has layers enough for several "
    "stages a rank. Each further stage a rank divides the bubble and multiplies the messages.",
    "looped-bfs": "With sharded parameters: a stage's weights are gathered once for all micro-batches, not once for "
    "each. It holds all activations.",
    "zb-h1": "Almost always better than `1f1b` on equal stages: the same memory on the first rank, a third of the "
    "bubble. It needs layers whose weight gradients can wait, which matrix products are.",
    "zb-h2": "Where memory for nearly twice the micro-batches is there and no barrier ends the step; with a barrier, "
    "an ordinary optimizer step, `zb-h1` is as fast in half of the memory.",
    "interleaved-zb": "`interleaved` with its bubble filled by weight gradients: the fewest idle seconds in a loop.",
    "zb-v": "Nearly no bubble in the memory of `1f1b`, equal on all ranks; the loss is computed on rank 0, where "
    "the input is as well. It wants I, W and F to take about as long.",
    "v-min": "Where memory is what is short: a third of `1f1b`'s activations, for some bubble.",
    "v-half": "Between `v-min` and `zb-v`: half of `1f1b`'s activations, little bubble.",
    "hanayo": "A V without split backwards: for layers whose backward cannot be split, with few micro-batches. "
    "More waves, less bubble, more messages.",
    "seq1f1b": "Few and long sequences: segments fill the pipeline when there are too few micro-batches, and hold "
    "less. Layers that look back must say so (`headrace.carry`).",
    "chimera": "Where parameters are small and may be held twice, and the backward cannot be split: half of the bubble "
    "of `1f1b` at m = p.",
    "dualpipe": "Where a forward and a backward can really overlap on a device, so that messages of one hide behind "
    "the other (expert parallelism). Parameters are held twice.",
    "dualpipe-v": "`dualpipe` without the second copy of the parameters: two stages a rank in a V.",
    "pipedream": "To reproduce asynchronous training: no flush between updates, but each stage learns with weights of "
    "its own age. Not the mathematics of one device.",
    "pipedream-2bw": "Asynchronous with two versions of the weights instead of p: all stages learn one update late.",
}


def page() -> str:
    """The whole page."""
    return "\n".join(_lines()).rstrip() + "\n"


INTRO: Final = """# Schedules

<!-- Written by docs/make_schedules.py. Do not edit: change the script and run it. -->

A schedule says which rank does what in which order: `F` forward, `B` backward, `I` and `W` the two halves of a
backward, for its input and for its weights, `R` recompute, `U` update. An action is written stage, kind, micro-batch,
as in `2F0`. `hr.schedule.build(name, ranks=p, micro_batches=m)` makes one, `hr.schedule.check` proves that it runs,
`hr.simulate(schedule, costs)` says how long it takes with the costs of your model, and `hr.Pipeline(schedule=…)` runs
it.

Which is best depends on costs: `headrace simulate --schedule NAME --forward … --backward-input … --backward-weight …
--transfer …` compares them for yours, `--search` looks for a better one, and `headrace plan` chooses.

## All of them, for p = {p} and m = {m}

A rank takes one second for each of F, I and W of a micro-batch, hops take no time. *Peak*: activations that the fullest
rank holds, in micro-batches of a p-th of the model. *Copies*: how often the parameters are held, as replicas or as
versions. (`headrace schedules`)

| schedule | stages a rank | bubble | peak | messages | copies | needs |
| --- | ---: | ---: | ---: | ---: | ---: | --- |"""


def _lines() -> Iterator[str]:
    p, m = TABLE_SIZE
    yield INTRO.format(p=p, m=m)
    found = [entry for entry in entries(p, m) if isinstance(entry, Entry)]
    for e in found:
        bubble = percent(e.timeline.bubble_fraction)
        cells = (
            f"[{e.name}](#{e.name})",
            e.stages_per_rank,
            bubble,
            f"{float(e.peak):g}",
            e.messages,
            e.copies,
            e.needs,
        )
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    p, m = PICTURE_SIZE
    yield f"The pictures below have p = {p} and m = {m}. Where a rank holds several stages, blocks name the stage too."
    for e in found:
        yield from _section(e.name, p, m)


def _section(name: str, p: int, m: int) -> Iterator[str]:
    schedule = build(name, ranks=p, micro_batches=m)
    share = Fraction(p, schedule.stages * schedule.segments)
    timeline = simulate(schedule, Costs(float(share), float(share), float(share)))
    columns = 3 if schedule.stages == p and len(schedule.placement.lanes) == 1 else 4
    width = 8 + round(columns * timeline.makespan / float(share))
    yield ""
    yield f"## {name}"
    yield ""
    yield describe(name)
    yield ""
    yield WHEN[name]
    yield ""
    yield "```"
    yield from (line.rstrip() for line in gantt(timeline, width).plain.splitlines())
    yield "```"


if __name__ == "__main__":
    from written import write

    write(page, PAGE, "docs/make_schedules.py")
