"""Run a proven schedule on tensors: one interpreter for every schedule, over two transports."""
