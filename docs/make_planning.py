"""Writes docs/planning.md: how a plan is made, with an example whose output is that of the command.

python docs/make_planning.py           write the page
python docs/make_planning.py --check   exit code 1 if the page is not what would be written
"""

import shlex
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from headrace.analytic import hardware_names
from headrace.cli.main import app

PAGE: Final = Path(__file__).parent / "planning.md"

EXAMPLE: Final = (
    "plan --hardware v100-16g --layers 24 --dim 1024 --heads 16 --seq 1024 --batch 32 --ranks 4 --memory 6GiB "
    "--schedules 1f1b,interleaved,zb-h1,zb-v"
)
TIGHT: Final = EXAMPLE.replace("6GiB", "1GiB").replace("1f1b,interleaved,zb-h1,zb-v", "1f1b,zb-h1")

TEXT: Final = """# Planning

<!-- Written by docs/make_planning.py. Do not edit: change the script and run it. -->

`headrace plan` chooses the cut, the schedule, the number of micro-batches and what recomputes, so that a step of
the whole batch takes the least time that fits into the memory of each rank. `hr.plan(model, (x, y), loss_fn,
ranks=p)` does the same for a model in your script; `headrace train --plan plan.json` runs what was planned.

## An example

A GPT of 24 blocks on four V100s that are not here, each with 6 GiB left for it:

    $ headrace {example}

```
{plan}
```

Read it from the bottom: of two alternatives, what costs more, and what it would have saved. Where nothing fits, the
exit code is 3, and the message names what is in the way and what would help:

    $ headrace {tight_command}

```
{tight}
```

## What a plan is made from

For each layer, `LayerCosts` has the seconds of F, I and W and the bytes of weights, of what learns, of activations, of
what W still needs after I, of the message to the next layer, and of what the layer needs only while it works.

* **Measured** (`headrace profile`, `hr.profile`): every layer on its true input, as one of p ranks will run it, with
  warm-up and medians, whose spread is kept; with a whole backward and with a split one in turn; bytes by watching every
  allocation. Costs are not proportional to rows, so up to three sizes of micro-batches are measured, and those between
  are interpolated. Links are measured by a ping-pong through the real transport. Under `torchrun` every device is
  measured, once for all ranks that share it: where they differ by more than a tenth, slower ones get less to do.
* **Described** (`--hardware`): the model on the meta device, its arithmetic counted operation by operation, its bytes
  by shape, and seconds by a roofline of the device's data sheet. Good for comparing; not good to the millisecond.
  Shipped are {hardware}; a TOML file like theirs
  describes another.

## How the best is found

1. **Candidates**: the catalogue's schedules that ask nothing of the model (the others by name, `--schedules`), with
   two and four stages a rank where they take several, and m = p, 2p, 4p and 8p micro-batches as far as the batch goes.
2. **First sight**: each is simulated with the cut that evens out compute; of many micro-batches only the first 2p, as
   a full pipeline goes on at the pace of its busiest rank.
3. **Closer look**, in that order: the exact best cuts for a model of the step (fill and drain, and m − 1 times the
   slowest rank, with messages, on the rank's own device), each simulated as it is. If the memory of a rank is
   exceeded, cuts are searched again under that limit, and each stage may [recompute](howto/recompute.md): nothing, all
   of it, or any of its layers one by one.
4. **What recomputes**, once more: the searches count what a rank's stages hold as if it came at one time, and a
   recompute as if it never ran while its rank waits. So from the best few cuts, and from those that would be best
   without a limit with everything recomputed, stages and layers are let off, or exchanged for each other, as long as
   the simulated step fits and gets shorter. On small models, where all choices can be tried, that mostly finds the
   best.
5. With `--search`, for the cuts of the fastest three an order of actions beyond the catalogue's is
   [searched](howto/choose-schedule.md) (not for those that recompute, and not for more than 20,000 actions).
6. The fastest of the simulated ones that fits is the plan, the others are its alternatives.

With one stage a rank the cuts of the model are proven to be the best. With several, they are where the search ends in
time, and otherwise come from a local search.

The **lower bound** is what no schedule can beat: all compute spread evenly over all ranks, or the dearest layer for
every micro-batch. So the gap holds both what a better schedule might save and what cannot be saved.

## What it does not know

* Two ranks on one machine slow each other down (caches, memory, the interpreter). So on CPUs a few real steps of 1F1B
  and of ZB-H1 are rehearsed, and the layers' seconds are scaled to what they took there. Other schedules are predicted
  from that; those that keep many more micro-batches alive take some per cent longer than predicted (GPipe with many).
  On accelerators layers are measured one at a time, and nothing is rehearsed.
* The bytes of a rank are those of its weights, of what learns, of what is saved for backwards, and of what the
  hungriest of its layers needs while it works. The batch comes on top, and so do messages: what came early and waits,
  and a gradient that has come, which stays until its stage is through.
* Between micro-batches of different sizes (a batch that m does not divide) the largest counts for all.
* Data-parallel replicas can be planned for (`--replicas`), but a `Pipeline` does not run them yet.

## The file

`plan.json` is versioned and read strictly: unknown keys are refused, a plan for another model, batch or version of
torch is refused by name, and its schedule is proven again. `cut` names the layers of each stage as the unsplit model's
parameter names begin, `recomputes` the stages that recompute as a whole, by number, and the layers that do one by
one, by name. `--export megatron` prints the cut as a pipeline layout string, `--export torchtitan` as lists of module
names, `--export torch` the schedule as rows that PyTorch's pipelining loads.
"""


def page() -> str:
    """The whole page."""
    return TEXT.format(
        example=EXAMPLE,
        plan=_output(EXAMPLE),
        tight_command=TIGHT,
        tight=_output(TIGHT),
        hardware=", ".join(f"`{name}`" for name in hardware_names()),
    )


def _output(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "120"})
    return "\n".join(line.rstrip() for line in (result.stdout + result.stderr).splitlines())


if __name__ == "__main__":
    from written import write

    write(page, PAGE, "docs/make_planning.py")
