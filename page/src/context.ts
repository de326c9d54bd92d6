// What every part of the page needs: texts, formats, the glossary.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Term } from "./api";
import { type Format, formats } from "./format";
import { type Lang, STRINGS, type Strings } from "./strings";

export interface Shared {
  lang: Lang;
  t: Strings;
  f: Format;
  terms: Map<string, Term>;
  dark: boolean; // what is drawn on a canvas is drawn anew when it changes
}

export function shared(lang: Lang, terms: Map<string, Term>, dark: boolean): Shared {
  return { lang, t: STRINGS[lang], f: formats(lang), terms, dark };
}

export const SharedContext = createContext<Shared>(shared("en", new Map(), false));

export const useShared = () => useContext(SharedContext);
