// A word with its definition from the glossary, on hover, focus or click.
import { useId, useState } from "preact/hooks";
import { useShared } from "./context";

export function Term({ slug, children }: { slug: string; children: string }) {
  const { lang, terms } = useShared();
  const [open, setOpen] = useState(false);
  const id = useId();
  const term = terms.get(slug);
  if (!term) return <span>{children}</span>;
  return (
    <span class="term" onMouseEnter={() => setOpen(true)} onMouseLeave={() => setOpen(false)}>
      <button
        type="button"
        aria-describedby={open ? id : undefined}
        aria-expanded={open}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={(event) => event.key === "Escape" && setOpen(false)}
      >
        {children}
      </button>
      {open && (
        <span role="tooltip" id={id} class="tip">
          <b>{lang === "it" ? `${term.it} (${term.en})` : term.en}</b> {lang === "it" ? term.def_it : term.def_en}
        </span>
      )}
    </span>
  );
}
