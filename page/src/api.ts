// Talking to the server: models, streamed chats, the live stream, the glossary. No drawing.

/** Seconds: in the queue, from there to the first token, from there to the last, in all. */
export interface Timing {
  queue_s: number;
  prefill_s: number;
  decode_s: number;
  total_s: number;
  drafted: number;
  accepted: number;
  preemptions: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
  timing?: Timing | null;
}

export interface TokenLogprob {
  token: string;
  logprob: number;
  bytes: number[] | null;
  top_logprobs: { token: string; logprob: number }[];
}

export interface Delta {
  content?: string | null;
  reasoning?: string | null;
}

/** One of the ten likeliest tokens at a place of an explained answer. */
export interface Candidate {
  id: number;
  text: string;
  logit: number;
  logprob: number | null;
  probability: number;
  after_temperature: number;
  after_filters: number;
  drawn: boolean;
}

export interface ExplainedToken {
  position: number;
  id: number;
  text: string;
  logprob: number;
  best: Candidate[];
}

/** A step that computed something of an explained answer; bytes read and seconds are of the whole step. */
export interface ExplainedStep {
  step: number;
  phase: "prefill" | "decode";
  rows: number;
  position: number;
  new_tokens: number[];
  kv_bytes: number;
  requests: number;
  bytes_read: number;
  seconds: number;
  bound_s?: number;
  bound?: "memory" | "compute";
}

export interface Explanation {
  steps: ExplainedStep[];
  tokens: ExplainedToken[];
}

export interface Chunk {
  choices: { delta: Delta; finish_reason: string | null; logprobs?: { content: TokenLogprob[] | null } | null }[];
  usage?: Usage | null;
  explain?: Explanation;
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface ChatRequest {
  model?: string;
  messages: Message[];
  max_tokens?: number;
  temperature?: number;
  top_p?: number;
  seed?: number;
  logprobs?: boolean;
  top_logprobs?: number;
  explain?: boolean;
}

export interface StepSlice {
  request: number;
  phase: "prefill" | "decode";
  rows: number;
  drafts: number;
  position: number;
}

export interface Step {
  number: number;
  start_s: number;
  elapsed_s: number;
  kv_used: number;
  tokens: number;
  slices: StepSlice[];
}

export interface Percentiles {
  mean: number | null;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  max: number | null;
}

export interface Snapshot {
  next: number;
  steps_done: number;
  steps: Step[];
  requests: { running: number; waiting: number; seats: number; finished: Record<string, number> };
  kv_blocks: { used: number; shared: number; cached: number; all: number };
  rates: { output_tok_s: number; prefill_tok_s: number; steps_s: number; busy: number };
  decode_bandwidth: { bytes_s: number; limit_bytes_s: number | null; fraction: number | null } | null;
  ttft_s: Percentiles;
  itl_s: Percentiles;
  preemptions: number;
  cached_tokens: number;
  prompt_tokens: number;
  output_tokens: number;
}

export interface Term {
  slug: string;
  en: string;
  it: string;
  def_en: string;
  def_it: string;
}

export class ApiFailure extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const KEY = "spola.key";

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key);
}

function headers(): Record<string, string> {
  const key = sessionStorage.getItem(KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function opened(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(path, { ...init, headers: { ...headers(), ...(init.headers ?? {}) } });
  if (response.ok) return response;
  let message = response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch {
    // No JSON: the status says what there is to say.
  }
  throw new ApiFailure(response.status, message);
}

export async function models(): Promise<string[]> {
  const body = await (await opened("v1/models")).json();
  return body.data.map((model: { id: string }) => model.id);
}

export async function glossary(): Promise<Term[]> {
  return (await (await opened("page/glossary.json")).json()).terms;
}

/** The JSON of each server-sent event, until the end, an error event or the abort. */
async function* events<T>(response: Response): AsyncGenerator<T> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const data = JSON.parse(line.slice(6));
      if (data.error) throw new ApiFailure(data.error.code ?? 500, data.error.message);
      yield data as T;
    }
  }
}

export async function* chat(request: ChatRequest, signal: AbortSignal): AsyncGenerator<Chunk> {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const init = { method: "POST", body, signal, headers: { "Content-Type": "application/json" } };
  yield* events<Chunk>(await opened("v1/chat/completions", init));
}

export async function* live(signal: AbortSignal): AsyncGenerator<Snapshot> {
  yield* events<Snapshot>(await opened("v1/engine/live?interval=0.25", { signal }));
}
