"""The metrics of a job for TensorBoard, which is not installed with Headrace: metrics.jsonl has the same numbers."""

from pathlib import Path
from typing import Any, Final

from headrace.train.job import StepRecord

_TAGS: Final = {
    "loss/train": "loss",
    "loss/held_out": "held_out_loss",
    "optimizer/learning_rate": "learning_rate",
    "optimizer/gradient_norm": "gradient_norm",
    "time/step_seconds": "seconds",
    "time/tokens_per_second": "tokens_per_second",
    "time/bubble_fraction": "bubble_fraction",
}


class TensorBoard:
    """Writes an event file into `folder`, to be read by `tensorboard --logdir`.

    Raises:
        ValueError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("--tensorboard needs TensorBoard: pip install headrace[tensorboard]") from None
        self._writer: Any = SummaryWriter(str(folder))

    def add(self, record: StepRecord) -> None:
        """Append a step, at once, so that a job that fails has shown what it did."""
        for tag, name in _TAGS.items():
            value = getattr(record, name)
            if value is not None:
                self._writer.add_scalar(tag, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
