// Sampling and the system message. An empty field leaves the choice to the model's own settings.
import { useShared } from "./context";
import type { Change, Settings } from "./settings";
import { Term } from "./Term";

export function SettingsPanel({ settings, change }: { settings: Settings; change: Change }) {
  const { t } = useShared();
  return (
    <details class="settings">
      <summary>{t.settings}</summary>
      <div class="grid">
        <label class="wide">
          {t.system}
          <textarea rows={2} value={settings.system} onInput={(e) => change({ system: e.currentTarget.value })} />
        </label>
        <Field slug="temperature" label={t.temperature} min={0} max={2} step={0.05} value={settings.temperature} set={(temperature) => change({ temperature })} />
        <Field slug="top-p" label={t.topP} min={0.01} max={1} step={0.01} value={settings.topP} set={(topP) => change({ topP })} />
        <Field slug="token" label={t.maxTokens} min={1} max={1e6} step={1} value={settings.maxTokens} set={(n) => change({ maxTokens: n ?? 512 })} />
        <Field slug="sampling" label={t.seed} min={0} max={2 ** 53 - 1} step={1} value={settings.seed} set={(seed) => change({ seed })} />
        <label class="wide check">
          <input type="checkbox" checked={settings.probabilities} onChange={(e) => change({ probabilities: e.currentTarget.checked })} />
          {t.probabilities}
        </label>
        <label class="wide check">
          <input type="checkbox" checked={settings.explain} onChange={(e) => change({ explain: e.currentTarget.checked })} />
          {t.explain}
        </label>
      </div>
    </details>
  );
}

interface FieldProps {
  slug: string;
  label: string;
  min: number;
  max: number;
  step: number;
  value: number | null;
  set: (value: number | null) => void;
}

function Field({ slug, label, min, max, step, value, set }: FieldProps) {
  const { t } = useShared();
  const id = `field-${slug}`;
  const read = (text: string) => {
    const number = Number(text);
    if (text === "") set(null);
    else if (number >= min && number <= max) set(number);
  };
  return (
    <div class="field">
      <Term slug={slug}>{label}</Term>
      <input
        id={id}
        aria-label={label}
        type="number"
        min={min}
        max={max}
        step={step}
        value={value ?? ""}
        placeholder={t.byModel}
        onChange={(event) => read(event.currentTarget.value)}
      />
    </div>
  );
}
