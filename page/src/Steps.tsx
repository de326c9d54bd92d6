// The batch step by step: a column per step, a row per request, coloured by what was computed.
import { useEffect, useRef } from "preact/hooks";
import type { Step } from "./api";
import { useShared } from "./context";

const ROW = 16;
const LEAST_ROWS = 4;
const LABEL = 44; // pixels on the left for the requests' numbers

export function Steps({ steps }: { steps: Step[] }) {
  const { t, f } = useShared();
  const canvas = useRef<HTMLCanvasElement>(null);
  const requests = seen(steps);
  const last = steps.at(-1);

  useEffect(() => {
    if (canvas.current) draw(canvas.current, steps, requests);
  });

  if (!last) return <p class="quiet">{t.idle}</p>;
  return (
    <>
      <canvas ref={canvas} role="img" aria-label={t.stepsHelp} style={{ height: `${Math.max(requests.length, LEAST_ROWS) * ROW}px` }} />
      <ul class="legend">
        <li>
          <i class="prefill" aria-hidden="true" /> {t.prefill}
        </li>
        <li>
          <i class="decode" aria-hidden="true" /> {t.decode}
        </li>
        <li class="quiet">{t.stepsHelp}</li>
      </ul>
      <details>
        <summary>
          {t.lastStep} {f.count(last.number)}: {f.seconds(last.elapsed_s)}
        </summary>
        <table>
          <thead>
            <tr>
              <th scope="col">{t.request}</th>
              <th scope="col">{t.phase}</th>
              <th scope="col">{t.tokens}</th>
              <th scope="col">{t.position}</th>
            </tr>
          </thead>
          <tbody>
            {last.slices.map((slice) => (
              <tr key={slice.request}>
                <td>{slice.request}</td>
                <td>{slice.phase === "prefill" ? t.prefill : t.decode}</td>
                <td>
                  {f.count(slice.rows)}
                  {slice.drafts > 0 && ` + ${slice.drafts} ${t.draft}`}
                </td>
                <td>{f.count(slice.position)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </>
  );
}

/** Requests in the order in which they came. */
function seen(steps: Step[]): number[] {
  return [...new Set(steps.flatMap((step) => step.slices.map((slice) => slice.request)))].sort((a, b) => a - b);
}

function draw(canvas: HTMLCanvasElement, steps: Step[], requests: number[]): void {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d")!;
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const colours = { prefill: colour("--prefill"), decode: colour("--decode"), ink: colour("--ink-2") };
  const row = new Map(requests.map((id, i) => [id, i]));
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colours.ink;
  requests.forEach((id, i) => pen.fillText(String(id), 2, i * ROW + 12, LABEL - 6));
  // Widths by the square root of time: a long step is seen to be long, a short one is still seen.
  const weights = steps.map((step) => Math.sqrt(Math.max(step.elapsed_s, 1e-4)));
  const unit = (width - LABEL) / Math.max(sum(weights), 1e-9);
  let x = LABEL;
  steps.forEach((step, i) => {
    const wide = weights[i]! * unit;
    for (const slice of step.slices) {
      pen.fillStyle = colours[slice.phase];
      pen.fillRect(x, row.get(slice.request)! * ROW + 2, Math.max(wide - 1, 0.5), ROW - 4);
    }
    x += wide;
  });
}

const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);
