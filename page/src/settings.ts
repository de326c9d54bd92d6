// What a person chose, kept in the browser: language, theme, sampling.
import { useEffect, useState } from "preact/hooks";
import type { Lang } from "./strings";

export type Theme = "auto" | "light" | "dark";

export interface Settings {
  lang: Lang;
  theme: Theme;
  system: string;
  temperature: number | null;
  topP: number | null;
  maxTokens: number;
  seed: number | null;
  probabilities: boolean;
  explain: boolean;
}

const NAME = "spola.settings";

function defaults(): Settings {
  return {
    lang: navigator.language.toLowerCase().startsWith("it") ? "it" : "en",
    theme: "auto",
    system: "",
    temperature: null,
    topP: null,
    maxTokens: 512,
    seed: null,
    probabilities: false,
    explain: false,
  };
}

function stored(): Settings {
  try {
    return { ...defaults(), ...JSON.parse(localStorage.getItem(NAME) ?? "{}") };
  } catch {
    return defaults(); // what is kept there is not ours any more
  }
}

export type Change = (part: Partial<Settings>) => void;

export function useSettings(): [Settings, Change] {
  const [settings, set] = useState(stored);
  useEffect(() => {
    localStorage.setItem(NAME, JSON.stringify(settings));
    document.documentElement.lang = settings.lang;
    document.documentElement.dataset.theme = settings.theme;
  }, [settings]);
  return [settings, (part) => set((old) => ({ ...old, ...part }))];
}
