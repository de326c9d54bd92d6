"""Plans: what a model will take and how fast it will be on a machine, by its header, before it is loaded."""
