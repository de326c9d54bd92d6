"""How good a model is: perplexity, and agreement with another model. The only place that computes them."""
