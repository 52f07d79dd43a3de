"""What a model costs on hardware that is not here, and published results from that.

Descriptions of hardware are to be had without torch; `headrace.analytic.estimate`, which runs models on the meta
device, needs it and is not imported here.
"""

from headrace.analytic.hardware import Hardware, hardware_names, load_hardware

__all__ = ["Hardware", "hardware_names", "load_hardware"]
