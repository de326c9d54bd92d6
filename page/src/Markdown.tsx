// The little of Markdown that answers use: code, bold, lists as lines. Makes nodes, never HTML from text.
import type { ComponentChildren } from "preact";

export function Markdown({ text }: { text: string }) {
  // Odd parts are the insides of fences; an answer that is still coming may end inside one.
  const parts = text.split(/^```[^\n]*\n?/m);
  return (
    <div class="prose">
      {parts.map((part, i) =>
        i % 2 ? (
          // Code that is too wide scrolls, which the keyboard must reach too.
          <pre key={i} tabIndex={0}>
            <code>{part}</code>
          </pre>
        ) : (
          part.split(/\n{2,}/).map((block, j) => block.trim() && <p key={`${i}.${j}`}>{inline(block)}</p>)
        ),
      )}
    </div>
  );
}

function inline(text: string): ComponentChildren[] {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((piece, i) => {
    if (i % 2 === 0) return piece;
    return piece.startsWith("`") ? <code key={i}>{piece.slice(1, -1)}</code> : <strong key={i}>{piece.slice(2, -2)}</strong>;
  });
}
