"""The backends: each a Runner that turns Steps into StepOutputs. They do not know each other."""
