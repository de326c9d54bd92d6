// What a person chose, kept in the browser: language, theme, sampling.
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
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
  }, [settings]);
  // Before the effects that draw with the colours of the theme.
  useLayoutEffect(() => {
    document.documentElement.dataset.theme = settings.theme;
  }, [settings.theme]);
  return [settings, (part) => set((old) => ({ ...old, ...part }))];
}

/** Whether the page is dark: as chosen, or as the system is now. */
export function useDark(theme: Theme): boolean {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [system, set] = useState(query.matches);
  useEffect(() => {
    const changed = () => set(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, [query]);
  return theme === "auto" ? system : theme === "dark";
}
