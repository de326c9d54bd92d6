"""GET /openapi.json: the OpenAPI 3.1 document of the routes, made from the same tables that parse requests.

Fields that are not listed are taken and reported (``X-Spola-Unknown-Fields``), or refused with ``--strict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from spola import __version__
from spola.server.embeddings import EmbeddingsRequest
from spola.server.fields import ChatRequest, CompletionRequest
from spola.server.llama_cpp import LlamaRequest
from spola.server.messages import CountRequest, MessagesRequest
from spola.server.ollama import EmbedRequest, GenerateRequest, OllamaChatRequest
from spola.server.ollama_models import ShowRequest
from spola.server.responses import ResponsesRequest
from spola.server.tgi import TgiRequest
from spola.server.tokens import DetokenizeRequest, TokenizeRequest

__all__ = ["ROUTES", "About", "document"]


@dataclass(frozen=True, slots=True)
class About:
    """A route: one line, the struct of its body (None: GET), and what it answers with beside JSON."""

    line: str
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    media: str = "application/json"
    public: bool = False
    errors: str = "Error"  # the schema of its errors
    model_query: bool = False  # ?model=NAME


ROUTES: dict[str, About] = {
    "/v1/chat/completions": About("OpenAI's chat completions", ChatRequest, streams=True),
    "/v1/completions": About("OpenAI's completions: text or ids go on", CompletionRequest, streams=True),
    "/v1/responses": About("OpenAI's Responses API, stateless", ResponsesRequest, streams=True),
    "/v1/messages": About("Anthropic's Messages API", MessagesRequest, streams=True),
    "/v1/messages/count_tokens": About("Tokens that a message would have", CountRequest),
    "/v1/embeddings": About("Pooled hidden states of length 1", EmbeddingsRequest),
    "/tokenize": About("Ids of a text or of messages", TokenizeRequest),
    "/detokenize": About("The text of ids", DetokenizeRequest),
    "/": About("TGI: a text goes on; the page is at GET", TgiRequest, streams=True, errors="ErrorText"),
    "/generate": About("TGI: a text goes on", TgiRequest, streams=True, errors="ErrorText"),
    "/generate_stream": About(
        "TGI: an event for each token", TgiRequest, media="text/event-stream", errors="ErrorText"
    ),
    "/info": About("TGI: the model and its limits; ?model=NAME", errors="ErrorText", model_query=True),
    "/completion": About("llama-server: a text goes on", LlamaRequest, streams=True, errors="ErrorCode"),
    "/props": About(
        "llama-server: the model and its settings; ?model=NAME", errors="ErrorCode", model_query=True
    ),
    "/api/chat": About("Ollama: a chat", OllamaChatRequest, media="application/x-ndjson", errors="ErrorText"),
    "/api/generate": About(
        "Ollama: a prompt", GenerateRequest, media="application/x-ndjson", errors="ErrorText"
    ),
    "/api/embed": About("Ollama: pooled hidden states of length 1", EmbedRequest, errors="ErrorText"),
    "/api/show": About("Ollama: one model", ShowRequest, errors="ErrorText"),
    "/api/tags": About("Ollama: the models served", errors="ErrorText"),
    "/api/ps": About("Ollama: the models loaded", errors="ErrorText"),
    "/api/version": About("As /version", errors="ErrorText"),
    "/v1/models": About("The models served"),
    "/v1/models/{name}": About("One of them"),
    "/v1/engine/live": About("The engine as it runs", media="text/event-stream"),
    "/metrics": About("Counters and histograms for Prometheus", media="text/plain"),
    "/version": About("The version that runs"),
    "/health": About("200, or 503 while loading, leaving or stuck", public=True),
    "/ping": About("As /health", public=True),
}

_ERRORS = {
    "400": "A field is wrong: `param` names it",
    "401": "The API key is missing or wrong",
    "404": "No such model or route",
    "413": "The body is too large",
    "429": "A limit of the key, or the queue is full: see Retry-After",
    "503": "Loading, leaving, or a deadline has passed: see Retry-After",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

# Ollama's and TGI's (with its kind), and llama-server's.
_ERROR_TEXT = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
}
_ERROR_CODE = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "type"],
            "properties": {
                "code": {"type": "integer"},
                "message": {"type": "string"},
                "type": {"type": "string"},
            },
        }
    },
}


def document(served: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The document for the routes in ``served``: path -> methods. Raises KeyError for an unknown path."""
    bodies = [about.body for about in ROUTES.values() if about.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    schemas |= {"Error": _ERROR, "ErrorText": _ERROR_TEXT, "ErrorCode": _ERROR_CODE}
    return {
        "openapi": "3.1.0",
        "info": {"title": "spola", "version": __version__},
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "paths": {
            path: {method.lower(): _operation(path, ROUTES[path]) for method in methods}
            for path, methods in served.items()
        },
    }


def _operation(path: str, about: About) -> dict[str, Any]:
    content: dict[str, Any] = {about.media: {}}
    if about.streams:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{about.errors}"}}}
    out: dict[str, Any] = {
        "summary": about.line,
        "responses": {
            "200": {"description": "Done", "content": content},
            **{status: {"description": said, "content": error} for status, said in _ERRORS.items()},
        },
        "security": [] if about.public else [{"bearer": []}, {"header": []}, {}],
    }
    if about.body is not None:
        schema = {"$ref": f"#/components/schemas/{about.body.__name__}"}
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if about.model_query:
        said = {"description": "One of the served models; absent: the default one."}
        out["parameters"] = [{"name": "model", "in": "query", "schema": {"type": "string"}, **said}]
    if "{name}" in path:
        out["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return out
