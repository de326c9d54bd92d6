"""The fields of /v1/chat/completions and /v1/completions: the one table of what is taken, and what is not.

``schema`` parses by it, the generated page docs/reference/api.md and the OpenAPI document show it. A field
that could change the answer is obeyed or refused; those in ``NO_EFFECT`` are OpenAI's bookkeeping.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "CONSTRAINTS",
    "NO_EFFECT",
    "REFUSED",
    "ChatRequest",
    "CommonRequest",
    "CompletionRequest",
    "Message",
    "StreamOptions",
    "Structured",
    "Tool",
    "ToolFunction",
]


def _of(text: str) -> Meta:
    return Meta(description=text)


Int = int | None
Float = float | None
Bool = bool | None
Str = str | None


class StreamOptions(msgspec.Struct):
    include_usage: Bool = None
    continuous_usage_stats: Bool = None
    include_obfuscation: Bool = None


class Structured(msgspec.Struct):
    """``structured_outputs``: exactly one of the first five."""

    json: Any = None
    regex: Str = None
    choice: list[str] | None = None
    grammar: Str = None
    json_object: Bool = None
    disable_any_whitespace: Bool = None


class Message(msgspec.Struct):
    """One message. What it must hold is checked where it is used (``text.messages``)."""

    role: str
    content: Any = None
    name: Str = None
    tool_calls: Any = None
    tool_call_id: Str = None
    reasoning: Str = None
    reasoning_content: Str = None
    refusal: Str = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


class ToolFunction(msgspec.Struct):
    name: str
    description: Str = None
    parameters: Any = None
    strict: Bool = None


class Tool(msgspec.Struct):
    type: str
    function: ToolFunction


class CommonRequest(msgspec.Struct, kw_only=True):
    """What both routes take."""

    model: Annotated[Str, _of("One of the served models; absent: the default one.")] = None
    max_tokens: Annotated[Int, _of("Tokens to generate, at most. Absent: chat as many as fit, else 16.")] = (
        None
    )
    temperature: Annotated[
        Float, _of("0 is greedy. Absent: the model's own setting, else 0. No upper bound.")
    ] = None
    top_p: Annotated[Float, _of("Above 0, at most 1.")] = None
    top_k: Annotated[Int, _of("0 or -1 is off.")] = None
    min_p: Annotated[Float, _of("From 0 to 1.")] = None
    n: Annotated[Int, _of("Choices of each prompt, 1 to 128. Greedy ones are equal.")] = None
    seed: Annotated[Int, _of("Same seed and same system_fingerprint: same answer, at any load.")] = None
    stop: Annotated[
        str | list[str] | None, _of("Up to 16 non-empty strings. The answer ends before the first match.")
    ] = None
    stop_token_ids: Annotated[list[int] | None, _of("Ids that end the answer.")] = None
    presence_penalty: Annotated[Float, _of("-2 to 2; counts what was generated, not the prompt.")] = None
    frequency_penalty: Annotated[Float, _of("-2 to 2; counts what was generated, not the prompt.")] = None
    repetition_penalty: Annotated[Float, _of("0.001 to 1000; 1 is off. Counts prompt and answer.")] = None
    logit_bias: Annotated[dict[str, float] | None, _of("Token id to a number from -100 to 100.")] = None
    bad_words: Annotated[list[str] | None, _of("Texts that the answer does not contain.")] = None
    allowed_token_ids: Annotated[list[int] | None, _of("The only ids that may be drawn.")] = None
    min_tokens: Annotated[Int, _of("No end of text before so many tokens.")] = None
    ignore_eos: Annotated[Bool, _of("Go on after an end of text, up to max_tokens.")] = None
    include_stop_str_in_output: Annotated[Bool, _of("Keep the stop string that ended the answer.")] = None
    skip_special_tokens: Annotated[Bool, _of("False shows control tokens as text.")] = None
    prompt_logprobs: Annotated[
        Int, _of("Log-probabilities of the prompt's tokens, with so many alternatives. Not in streams.")
    ] = None
    logprobs_mode: Annotated[
        Literal["raw", "processed"] | None,
        _of("Of the model's own distribution (raw, the default) or of the one drawn from."),
    ] = None
    return_token_ids: Annotated[Bool, _of("Adds prompt_token_ids and token_ids.")] = None
    stream: Annotated[Bool, _of("Server-sent events.")] = None
    stream_options: Annotated[
        StreamOptions | None,
        _of("include_usage: one last chunk with the usage; continuous_usage_stats: in every chunk."),
    ] = None
    priority: Annotated[Int, _of("Lower goes first; 0 if absent.")] = None
    cache_salt: Annotated[
        Str, _of("Requests share nothing in the prefix cache with those of another salt.")
    ] = None
    timeout: Annotated[Float, _of("Seconds after which an unfinished request ends with an error.")] = None
    user: Annotated[Str, _of("Taken.")] = None
    explain: Annotated[
        Bool,
        _of(
            "After the answer, `explain`: each step's work, and the ten best candidates of each token. One "
            "choice of at most 128 tokens (also what an absent max_tokens means), nothing ruled out."
        ),
    ] = None
    structured_outputs: Annotated[
        Structured | None, _of("One of json, regex, choice, grammar, json_object: the answer has that form.")
    ] = None
    guided_json: Annotated[Any, _of("As structured_outputs.json.")] = None
    guided_regex: Annotated[Str, _of("As structured_outputs.regex.")] = None
    guided_choice: Annotated[list[str] | None, _of("As structured_outputs.choice.")] = None
    guided_grammar: Annotated[Str, _of("As structured_outputs.grammar.")] = None
    grammar: Annotated[Str, _of("As structured_outputs.grammar: Lark or GBNF.")] = None
    json_schema: Annotated[Any, _of("As structured_outputs.json.")] = None
    response_format: Annotated[
        Any, _of("text, json_object, or json_schema with its schema: the answer has that form.")
    ] = None


class CompletionRequest(CommonRequest, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[Any], _of("A text, a list of token ids, or a list of either; special tokens are read.")
    ]
    echo: Annotated[Bool, _of("The prompt before the answer; with max_tokens 0 nothing else.")] = None
    logprobs: Annotated[Int, _of("0 to 5: so many alternatives per token. Of the prompt too with echo.")] = (
        None
    )
    best_of: Annotated[
        Int, _of("Generate so many, give the n likeliest per token. Above n not in streams.")
    ] = None
    add_special_tokens: Annotated[Bool, _of("False: no BOS before the prompt.")] = None


class ChatRequest(CommonRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], _of("system, developer, user, assistant, tool; text, or text parts.")]
    max_completion_tokens: Annotated[Int, _of("As max_tokens; not both.")] = None
    logprobs: Annotated[Bool, _of("Log-probabilities of the answer's tokens.")] = None
    top_logprobs: Annotated[Int, _of("0 to 20 alternatives per token; needs logprobs.")] = None
    tools: Annotated[list[Any] | None, _of("Functions that the model may call.")] = None
    tool_choice: Annotated[
        Any, _of("none, auto, required, or a named function; the last two by constrained decoding.")
    ] = None
    parallel_tool_calls: Annotated[Bool, _of("False: one call at most.")] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        _of(
            "For the template; none also means enable_thinking false. Reported if the template knows neither."
        ),
    ] = None
    include_reasoning: Annotated[Bool, _of("False leaves the reasoning out of the answer.")] = None
    add_generation_prompt: Annotated[Bool, _of("False: the prompt does not open the assistant's turn.")] = (
        None
    )
    continue_final_message: Annotated[Bool, _of("The answer goes on with the last message.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, _of("Further names for the template, as enable_thinking.")
    ] = None


# Taken and without effect on any answer.
NO_EFFECT: dict[str, str] = {
    "metadata": "nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "prediction": "speculation is the server's own (--speculate)",
    "safety_identifier": "taken",
    "prompt_cache_key": "prompts are cached by their content",
    "prompt_cache_retention": "the cache keeps what it has room for",
}

# Known and not there: the reason, and the values that ask for nothing.
REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "suffix": ("there is no filling in of the middle", ("",)),
    "audio": ("answers are text", ()),
    "modalities": ("answers are text", (["text"],)),
    "functions": ("use tools", ([],)),
    "function_call": ("use tool_choice", ()),
    "web_search_options": ("there is no search", ()),
    "verbosity": ("the model has no such setting", ("medium",)),
    "chat_template": ("a request brings no template of its own; start with --chat-template", ()),
    "documents": ("put them into a message", ([],)),
    "truncate_prompt_tokens": ("a prompt is not cut; shorten it", ()),
    "use_beam_search": ("there is no beam search; use n or best_of", (False,)),
    "length_penalty": ("there is no beam search", (1, 1.0)),
    "spaces_between_special_tokens": ("text is exact", (True,)),
    "prompt_embeds": ("prompts are text or ids", ()),
    "typical_p": ("use top_p or min_p", (1, 1.0)),
    "mirostat": ("use temperature, top_p or min_p", (0,)),
    "guided_whitespace_pattern": ("the blanks in JSON are bounded anyway", ()),
    "structural_tag": ("use tools with strict", ()),
}

# Fields that say what form the answer has; at most one may be given.
CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
)
