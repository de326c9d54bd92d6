// The conversation: what was said, a box to write in, stop, and the timing of each answer.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Turn, useConversation } from "./conversation";
import { useShared } from "./context";
import { Explain } from "./Explain";
import { Markdown } from "./Markdown";
import { SettingsPanel } from "./SettingsPanel";
import type { Change, Settings } from "./settings";
import { Term } from "./Term";
import { Tokens } from "./Tokens";

interface Props {
  settings: Settings;
  change: Change;
  model: string | undefined;
}

export function Chat({ settings, change, model }: Props) {
  const { t } = useShared();
  const conversation = useConversation(settings, model);
  const { turns, busy } = conversation;
  const log = useRef<HTMLDivElement>(null);
  const stick = useRef(true);

  useEffect(() => {
    if (stick.current && log.current) log.current.scrollTop = log.current.scrollHeight;
  }, [turns]);

  const scrolled = () => {
    const box = log.current!;
    stick.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };

  return (
    <section class="chat" aria-labelledby="chat-title" onKeyDown={(e) => e.key === "Escape" && conversation.stop()}>
      <h2 id="chat-title">{t.chat}</h2>
      <div class="log" role="log" aria-label={t.conversation} aria-busy={busy} tabIndex={0} ref={log} onScroll={scrolled}>
        {turns.length === 0 && <p class="quiet">{t.empty}</p>}
        {turns.map((turn, i) => (
          <Message key={i} turn={turn} live={busy && i === turns.length - 1} probabilities={settings.probabilities} />
        ))}
      </div>
      <Composer
        busy={busy}
        onSend={conversation.send}
        onStop={conversation.stop}
        onAgain={!busy && turns.at(-1)?.role === "assistant" ? conversation.again : undefined}
        onClear={turns.length ? conversation.clear : undefined}
      />
      <SettingsPanel settings={settings} change={change} />
    </section>
  );
}

function Message({ turn, live, probabilities }: { turn: Turn; live: boolean; probabilities: boolean }) {
  const { t } = useShared();
  const mine = turn.role === "user";
  return (
    <article class={`turn ${turn.role}`}>
      <h3>{mine ? t.you : t.assistant}</h3>
      {turn.reasoning && (
        <details open={live && !turn.content}>
          <summary>{t.reasoning}</summary>
          <p class="plain">{turn.reasoning}</p>
        </details>
      )}
      {mine ? (
        <p class="plain">{turn.content}</p>
      ) : turn.explanation?.tokens.length && !live ? (
        <Explain explanation={turn.explanation} />
      ) : probabilities && turn.tokens.length && !live ? (
        <Tokens tokens={turn.tokens} />
      ) : (
        <Markdown text={turn.content} />
      )}
      {live && turn.explanation && (
        <p class="quiet" role="status">
          {t.explaining} {turn.explanation.tokens.length} / {turn.explanation.steps.reduce((sum, step) => sum + step.new_tokens.length, 0)}
        </p>
      )}
      {live && !turn.content && !turn.reasoning && <span class="pulse" aria-hidden="true" />}
      {turn.error && (
        <p class="error" role="alert">
          {t.failed}: {turn.error}
        </p>
      )}
      {!mine && !live && <Timing turn={turn} />}
    </article>
  );
}

function Timing({ turn }: { turn: Turn }) {
  const { t, f } = useShared();
  const { usage } = turn;
  const ended = turn.finish === "abort" ? t.stopped : turn.finish === "length" ? t.length : null;
  if (!usage && !ended) return null;
  const timing = usage?.timing;
  const ttft = timing ? timing.queue_s + timing.prefill_s : turn.ttft;
  const tpot = timing && usage.completion_tokens > 1 ? timing.decode_s / (usage.completion_tokens - 1) : null;
  const hits = usage?.prompt_tokens_details?.cached_tokens ?? 0;
  return (
    <p class="timing" aria-label={t.timing}>
      {ended && <span>{ended}</span>}
      {usage && (
        <>
          <span>
            {f.count(usage.prompt_tokens)} {t.promptTokens}
            {hits > 0 && `, ${f.count(hits)} ${t.cachedTokens}`}
          </span>
          <span>
            {f.count(usage.completion_tokens)} {t.outputTokens}
          </span>
        </>
      )}
      {timing && timing.queue_s > 0.001 && (
        <span>
          {t.queue} {f.seconds(timing.queue_s)}
        </span>
      )}
      {ttft != null && (
        <span>
          <Term slug="ttft">TTFT</Term> {f.seconds(ttft)}
        </span>
      )}
      {tpot != null && tpot > 0 && (
        <span>
          <Term slug="tpot">TPOT</Term> {f.seconds(tpot)} = {f.rate(1 / tpot)} {t.perSecond}
        </span>
      )}
      {timing && timing.drafted > 0 && (
        <span>
          <Term slug="acceptance-rate">{t.drafts}</Term> {f.count(timing.accepted)} / {f.count(timing.drafted)}
        </span>
      )}
    </p>
  );
}

interface ComposerProps {
  busy: boolean;
  onSend: (text: string) => void;
  onStop: () => void;
  onAgain?: (() => void) | undefined;
  onClear?: (() => void) | undefined;
}

function Composer({ busy, onSend, onStop, onAgain, onClear }: ComposerProps) {
  const { t } = useShared();
  const [text, setText] = useState("");
  const send = () => {
    if (busy || !text.trim()) return;
    onSend(text);
    setText("");
  };
  const key = (event: KeyboardEvent) => {
    // While an input method composes a character, Enter belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label for="message" class="hidden">
        {t.message}
      </label>
      <textarea
        id="message"
        rows={3}
        value={text}
        placeholder={t.messageHint}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={key}
      />
      <div class="buttons">
        {busy ? (
          <button type="button" class="primary" onClick={onStop}>
            {t.stop}
          </button>
        ) : (
          <button type="submit" class="primary" disabled={!text.trim()}>
            {t.send}
          </button>
        )}
        {onAgain && (
          <button type="button" onClick={onAgain}>
            {t.again}
          </button>
        )}
        {onClear && (
          <button type="button" onClick={onClear}>
            {t.clear}
          </button>
        )}
      </div>
    </form>
  );
}
