// The live stream: connects, reconnects, keeps the steps and the history that are drawn.
import { useEffect, useState } from "preact/hooks";
import { ApiFailure, type Snapshot, type Step, live } from "./api";

const KEPT_STEPS = 80;
const KEPT_POINTS = 480; // two minutes at four snapshots a second
const RETRY_MS = 2000;

export interface History {
  at: number[]; // seconds, the browser's clock
  output: number[];
  prefill: number[];
}

export interface Live {
  snapshot: Snapshot | null;
  steps: Step[];
  history: History;
  problem: number | null; // HTTP status, 0: no answer at all
}

const NOTHING: Live = { snapshot: null, steps: [], history: { at: [], output: [], prefill: [] }, problem: null };

export function useLive(generation: number): Live {
  const [state, setState] = useState<Live>(NOTHING);
  useEffect(() => {
    const controller = new AbortController();
    void follow(controller.signal, setState);
    return () => controller.abort();
  }, [generation]);
  return state;
}

async function follow(signal: AbortSignal, set: (change: (old: Live) => Live) => void): Promise<void> {
  while (!signal.aborted) {
    try {
      for await (const snapshot of live(signal)) set((old) => added(old, snapshot));
    } catch (error) {
      if (signal.aborted) return;
      const status = error instanceof ApiFailure ? error.status : 0;
      set((old) => ({ ...old, problem: status }));
      if (status === 401) return; // until there is a key
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function added(old: Live, snapshot: Snapshot): Live {
  // A number that went back is another server: its steps are not neighbours of the old ones.
  const restarted = old.snapshot !== null && snapshot.next < old.snapshot.next;
  const steps = restarted ? snapshot.steps : [...old.steps, ...snapshot.steps];
  const cut = <T>(values: T[], value: T) => [...values, value].slice(-KEPT_POINTS);
  return {
    snapshot,
    steps: steps.slice(-KEPT_STEPS),
    history: {
      at: cut(old.history.at, Date.now() / 1000),
      output: cut(old.history.output, snapshot.rates.output_tok_s),
      prefill: cut(old.history.prefill, snapshot.rates.prefill_tok_s),
    },
    problem: null,
  };
}
