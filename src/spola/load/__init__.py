"""From what a person names to a model: path, spec, tokenizer and weights in manifest order."""
