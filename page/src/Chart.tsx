// Throughput over the last two minutes, drawn by uPlot.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useShared } from "./context";
import type { History } from "./useLive";

const HEIGHT = 140;

export function Chart({ history }: { history: History }) {
  const { t, dark } = useShared();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);

  useEffect(() => {
    const element = box.current!;
    const colour = (name: string) => () => getComputedStyle(element).getPropertyValue(name).trim();
    const axis = { stroke: colour("--ink-2"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const made = new uPlot(
      {
        width: element.clientWidth || 300,
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { y: { range: (_, __, most) => [0, Math.max(most * 1.1, 10)] } },
        axes: [
          { ...axis, space: 70, size: 28, values: (u, at) => at.map((x) => `${Math.round(x - u.scales.x!.max!)} s`) },
          { ...axis, size: 48 },
        ],
        series: [
          {},
          { stroke: colour("--decode"), width: 2, points: { show: false } },
          { stroke: colour("--prefill"), width: 2, points: { show: false } },
        ],
      },
      [[], [], []],
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);

  useEffect(() => plot.current?.redraw(), [dark]);

  useEffect(() => plot.current?.setData([history.at, history.output, history.prefill]), [history]);

  return (
    <>
      <div ref={box} class="chart" role="img" aria-label={t.throughput} />
      <ul class="legend">
        <li>
          <i class="decode" aria-hidden="true" /> {t.decode}
        </li>
        <li>
          <i class="prefill" aria-hidden="true" /> {t.prefill}
        </li>
      </ul>
    </>
  );
}
