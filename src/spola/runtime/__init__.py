"""From options to a running engine: the machine, what fits, the composition root, the engine thread, LLM."""
