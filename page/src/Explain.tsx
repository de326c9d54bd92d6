// The loop that wrote an answer: each token with its candidates and the step that gave it, and all the steps.
import { useState } from "preact/hooks";
import type { Candidate, ExplainedStep, ExplainedToken, Explanation } from "./api";
import { useShared } from "./context";
import { Term } from "./Term";
import { Strip, visible } from "./Tokens";

export function Explain({ explanation }: { explanation: Explanation }) {
  const { t } = useShared();
  const { tokens, steps } = explanation;
  const [at, setAt] = useState(0);
  const chosen = tokens[at];
  const step = chosen && stepOf(steps, at);
  return (
    <div class="tokens">
      <Strip tokens={tokens.map(({ text, logprob }) => ({ text, logprob }))} at={at} choose={setAt} />
      {chosen && (
        <>
          {step && <StepFacts step={step} />}
          <Candidates token={chosen} caption={`${t.candidates}: ${at + 1} / ${tokens.length}`} />
        </>
      )}
      <details class="loop">
        <summary>
          {t.loop} ({steps.length})
        </summary>
        <Loop steps={steps} tokens={tokens} now={step} />
      </details>
    </div>
  );
}

/** The step that gave the token number ``place`` of the answer. */
function stepOf(steps: ExplainedStep[], place: number): ExplainedStep | undefined {
  let given = 0;
  return steps.find((step) => (given += step.new_tokens.length) > place);
}

/** A step as the parts of a sentence: term, its glossary entry, value. */
function useFacts(): (step: ExplainedStep) => [string, string, string][] {
  const { t, f } = useShared();
  return (step) => {
    const bound = step.bound === "memory" ? t.byMemory : t.byCompute;
    const shared = step.requests > 1 ? ` (${t.stepShared}: ${f.count(step.requests)})` : "";
    return [
      [t.phase, step.phase, step.phase === "prefill" ? t.prefill : t.decode],
      [t.tokensComputed, "step", `${f.count(step.rows)}, ${t.fromPosition} ${f.count(step.position)}`],
      [t.kvCache, "kv-cache", f.bytes(step.kv_bytes)],
      [t.bytesRead, "arithmetic-intensity", f.bytes(step.bytes_read) + shared],
      [t.time, "latency", f.seconds(step.seconds)],
      [t.atLeast, step.bound === "compute" ? "compute-bound" : "memory-bound", step.bound_s == null ? t.notMeasured : `${f.seconds(step.bound_s)}, ${bound}`],
    ];
  };
}

function StepFacts({ step }: { step: ExplainedStep }) {
  const facts = useFacts();
  return (
    <dl class="facts">
      {facts(step).map(([label, slug, value]) => (
        <div key={label}>
          <dt>
            <Term slug={slug}>{label}</Term>
          </dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Candidates({ token, caption }: { token: ExplainedToken; caption: string }) {
  const { t } = useShared();
  return (
    <div class="scroll" role="region" aria-label={t.candidates} tabIndex={0}>
      <table>
        <caption>{caption}</caption>
        <thead>
          <tr>
            <th scope="col">{t.candidate}</th>
            <th scope="col">
              <Term slug="logits">{t.logit}</Term>
            </th>
            <th scope="col">
              <Term slug="logprobs">{t.probability}</Term>
            </th>
            <th scope="col">
              <Term slug="temperature">{t.afterTemperature}</Term>
            </th>
            <th scope="col">
              <Term slug="sampling">{t.afterFilters}</Term>
            </th>
          </tr>
        </thead>
        <tbody>
          {token.best.map((candidate) => (
            <Row key={candidate.id} candidate={candidate} />
          ))}
        </tbody>
      </table>
      {!token.best.some((candidate) => candidate.drawn) && (
        <p class="quiet">
          <code>{visible(token.text)}</code> {t.drawnOutside}
        </p>
      )}
    </div>
  );
}

function Row({ candidate }: { candidate: Candidate }) {
  const { t, f } = useShared();
  const p = candidate.after_filters;
  return (
    <tr class={candidate.drawn ? "drawn" : p === 0 ? "out" : ""}>
      <th scope="row">
        <code>{visible(candidate.text)}</code>
        {candidate.drawn && <span class="mark">{t.drawn}</span>}
      </th>
      <td class="number">{f.decimal(candidate.logit, 3)}</td>
      <td class="number">{f.percent(candidate.probability, 2)}</td>
      <td class="number">{f.percent(candidate.after_temperature, 2)}</td>
      <td class="number">
        {f.percent(p, 2)} <meter min={0} max={1} value={p} aria-hidden="true" />
      </td>
    </tr>
  );
}

function Loop({ steps, tokens, now }: { steps: ExplainedStep[]; tokens: ExplainedToken[]; now: ExplainedStep | undefined }) {
  const { t } = useShared();
  const facts = useFacts();
  let given = 0;
  return (
    <div class="scroll" role="region" aria-label={t.loop} tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">{t.step}</th>
            {steps[0] &&
              facts(steps[0]).map(([label]) => (
                <th scope="col" key={label}>
                  {label}
                </th>
              ))}
            <th scope="col">{t.drawn}</th>
          </tr>
        </thead>
        <tbody>
          {steps.map((step, i) => {
            const drawn = tokens.slice(given, (given += step.new_tokens.length));
            return (
              <tr key={i} class={step === now ? "drawn" : ""} aria-current={step === now ? "step" : undefined}>
                <th scope="row" class="number">
                  {i + 1}
                </th>
                {facts(step).map(([label, , value]) => (
                  <td class="number" key={label}>
                    {value}
                  </td>
                ))}
                <td>
                  <code>{drawn.map(({ text }) => visible(text)).join("")}</code>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
