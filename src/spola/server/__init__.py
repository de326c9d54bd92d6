"""The HTTP server: the APIs of OpenAI, Anthropic and others over Services; the page, keys, metrics, logs."""
