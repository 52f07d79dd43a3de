"""One stage of a model: its piece of the autograd graph, its buffers, its random numbers."""
