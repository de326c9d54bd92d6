// Numbers as people read them, in the page's language.
import type { Lang } from "./strings";

export type Format = ReturnType<typeof formats>;

export function formats(lang: Lang) {
  const number = (value: number, digits: number) =>
    value.toLocaleString(lang, { maximumFractionDigits: digits, minimumFractionDigits: digits });
  return {
    count: (value: number) => number(value, 0),
    rate: (value: number) => number(value, value < 10 ? 1 : 0),
    seconds: (value: number | null | undefined) =>
      value == null ? "–" : value < 1 ? `${number(value * 1000, value < 0.01 ? 1 : 0)} ms` : `${number(value, 2)} s`,
    percent: (value: number, digits = 0) => `${number(value * 100, digits)} %`,
    decimal: number,
    bytes: (value: number) => (value < 1e6 ? `${number(value / 1e3, 1)} kB` : value < 1e9 ? `${number(value / 1e6, 1)} MB` : `${number(value / 1e9, 2)} GB`),
    gigabytes: (value: number) => `${number(value / 1e9, 1)} GB/s`,
  };
}
