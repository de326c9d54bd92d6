// The conversation and the request in flight. State only; Chat.tsx draws it.
import { useRef, useState } from "preact/hooks";
import { type ChatRequest, type Explanation, type TokenLogprob, type Usage, chat } from "./api";
import type { Settings } from "./settings";

const MOST_EXPLAINED = 128; // tokens of an answer that the server explains

export interface Turn {
  role: "user" | "assistant";
  content: string;
  reasoning: string;
  tokens: TokenLogprob[];
  explanation: Explanation | null;
  usage: Usage | null;
  finish: string | null;
  error: string | null;
  ttft: number | null; // seconds, as this browser saw it
}

const turn = (role: Turn["role"], content: string): Turn => ({
  role,
  content,
  reasoning: "",
  tokens: [],
  explanation: null,
  usage: null,
  finish: null,
  error: null,
  ttft: null,
});

export interface Conversation {
  turns: Turn[];
  busy: boolean;
  send: (text: string) => void;
  again: () => void;
  stop: () => void;
  clear: () => void;
}

export function useConversation(settings: Settings, model: string | undefined): Conversation {
  const [turns, setTurns] = useState<Turn[]>([]);
  const [busy, setBusy] = useState(false);
  const abort = useRef<AbortController | null>(null);

  const update = (change: (last: Turn) => Turn) =>
    setTurns((old) => (old.length ? [...old.slice(0, -1), change(old[old.length - 1]!)] : old));

  const answer = async (before: Turn[]) => {
    const controller = (abort.current = new AbortController());
    setTurns([...before, turn("assistant", "")]);
    setBusy(true);
    const started = performance.now();
    try {
      for await (const chunk of chat(request(before, settings, model), controller.signal)) {
        const choice = chunk.choices[0];
        update((last) => ({
          ...last,
          content: last.content + (choice?.delta.content ?? ""),
          reasoning: last.reasoning + (choice?.delta.reasoning ?? ""),
          tokens: choice?.logprobs?.content ? [...last.tokens, ...choice.logprobs.content] : last.tokens,
          explanation: joined(last.explanation, chunk.explain),
          finish: choice?.finish_reason ?? last.finish,
          usage: chunk.usage ?? last.usage,
          ttft: last.ttft ?? (choice?.delta.content ? (performance.now() - started) / 1000 : null),
        }));
      }
    } catch (error) {
      if (controller.signal.aborted) update((last) => ({ ...last, finish: "abort" }));
      else update((last) => ({ ...last, error: error instanceof Error ? error.message : String(error) }));
    } finally {
      if (abort.current === controller) setBusy(false);
    }
  };

  return {
    turns,
    busy,
    send: (text) => void answer([...turns, turn("user", text)]),
    again: () => void answer(turns.slice(0, -1)),
    stop: () => abort.current?.abort(),
    clear: () => {
      abort.current?.abort();
      setTurns([]);
    },
  };
}

/** The server tells an explanation in parts. */
function joined(old: Explanation | null, part: Explanation | undefined): Explanation | null {
  if (!old || !part) return part ?? old;
  return { steps: [...old.steps, ...part.steps], tokens: [...old.tokens, ...part.tokens] };
}

function request(turns: Turn[], settings: Settings, model: string | undefined): ChatRequest {
  const body: ChatRequest = {
    messages: turns.map(({ role, content }) => ({ role, content })),
    max_tokens: settings.maxTokens,
  };
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  if (model) body.model = model;
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.topP !== null) body.top_p = settings.topP;
  if (settings.seed !== null) body.seed = settings.seed;
  if (settings.explain) Object.assign(body, { explain: true, max_tokens: Math.min(settings.maxTokens, MOST_EXPLAINED) });
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 10 });
  return body;
}
