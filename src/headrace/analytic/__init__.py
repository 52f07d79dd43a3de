"""What a model costs on hardware that is not here, and published results from that."""

from headrace.analytic.estimate import estimate
from headrace.analytic.hardware import Hardware, hardware_names, load_hardware

__all__ = ["Hardware", "estimate", "hardware_names", "load_hardware"]
