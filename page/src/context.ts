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
}

export function shared(lang: Lang, terms: Map<string, Term>): Shared {
  return { lang, t: STRINGS[lang], f: formats(lang), terms };
}

export const SharedContext = createContext<Shared>(shared("en", new Map()));

export const useShared = () => useContext(SharedContext);
