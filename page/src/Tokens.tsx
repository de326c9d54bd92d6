// An answer as its tokens, each shaded by its probability; the one in focus shows what else could have come.
import { useRef, useState } from "preact/hooks";
import type { TokenLogprob } from "./api";
import { useShared } from "./context";

interface StripProps {
  tokens: { text: string; logprob: number }[];
  at: number;
  choose: (place: number) => void;
}

/** The tokens as one line of text with a cursor; the arrow keys move it. */
export function Strip({ tokens, at, choose }: StripProps) {
  const { t, f } = useShared();
  const list = useRef<HTMLDivElement>(null);

  const move = (event: KeyboardEvent) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = Math.min(tokens.length - 1, Math.max(0, at + by));
    choose(next);
    list.current?.querySelectorAll("button")[next]?.focus();
  };

  return (
    <div role="group" aria-label={t.tokenHelp} ref={list} onKeyDown={move}>
      {tokens.map(({ text, logprob }, i) => (
        <button
          type="button"
          key={i}
          tabIndex={i === at ? 0 : -1}
          aria-pressed={i === at}
          class={`token p${shade(logprob)}`}
          title={f.percent(Math.exp(logprob), 1)}
          onClick={() => choose(i)}
          onFocus={() => choose(i)}
        >
          {visible(text)}
        </button>
      ))}
    </div>
  );
}

export function Tokens({ tokens }: { tokens: TokenLogprob[] }) {
  const { t, f } = useShared();
  const [at, setAt] = useState(0);
  const chosen = tokens[at];
  return (
    <div class="tokens">
      <Strip tokens={tokens.map(({ token, logprob }) => ({ text: token, logprob }))} at={at} choose={setAt} />
      {chosen && (
        <table>
          <caption>
            {t.alternatives}: {at + 1} / {tokens.length}
          </caption>
          <tbody>
            {alternatives(chosen).map((other) => (
              <tr key={other.token} class={other.token === chosen.token ? "drawn" : ""}>
                <th scope="row">
                  <code>{visible(other.token)}</code>
                  {other.token === chosen.token && <span class="mark">{t.drawn}</span>}
                </th>
                <td>
                  <meter min={0} max={1} value={Math.exp(other.logprob)} aria-label={t.probability} />
                </td>
                <td class="number">{f.percent(Math.exp(other.logprob), 2)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}

/** The likeliest tokens, and the drawn one also when it is not among them. */
function alternatives(token: TokenLogprob): { token: string; logprob: number }[] {
  const top = token.top_logprobs;
  return top.some((other) => other.token === token.token) ? top : [...top, token];
}

function shade(logprob: number): number {
  const p = Math.exp(logprob);
  return p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
}

export function visible(text: string): string {
  return text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥");
}
