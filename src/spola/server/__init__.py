"""The OpenAI HTTP API over a Service: completions and chat, streamed or not. Minimal so far."""
