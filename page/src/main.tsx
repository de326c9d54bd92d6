// The page: a chat, and the engine beside it.
import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiFailure, type Term, glossary, models, setKey } from "./api";
import { Chat } from "./Chat";
import { SharedContext, shared, useShared } from "./context";
import { Engine } from "./Engine";
import { type Change, type Settings, type Theme, useDark, useSettings } from "./settings";
import type { Lang } from "./strings";
import { useLive } from "./useLive";

const RETRY_MS = 1500;

function App() {
  const [settings, change] = useSettings();
  const [terms, setTerms] = useState(new Map<string, Term>());
  const [names, setNames] = useState<string[]>([]);
  const [model, setModel] = useState<string>();
  const [locked, setLocked] = useState(false);
  const [generation, setGeneration] = useState(0); // grows with each key that is tried
  const live = useLive(generation);
  const dark = useDark(settings.theme);
  const value = useMemo(() => shared(settings.lang, terms, dark), [settings.lang, terms, dark]);

  useEffect(() => {
    glossary().then(
      (found) => setTerms(new Map(found.map((term) => [term.slug, term]))),
      () => undefined, // without it the page only lacks its tooltips
    );
  }, []);

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = () =>
      models().then(
        (found) => {
          setNames(found);
          setLocked(false);
        },
        (error) => {
          if (error instanceof ApiFailure && error.status === 401) setLocked(true);
          else timer = setTimeout(ask, RETRY_MS); // the model is loading, or the server is away
        },
      );
    void ask();
    return () => clearTimeout(timer);
  }, [generation]);

  const unlock = (key: string) => {
    setKey(key);
    setGeneration((n) => n + 1);
  };

  return (
    <SharedContext.Provider value={value}>
      <Header settings={settings} change={change} names={names} model={model} setModel={setModel} />
      {locked && <KeyForm onKey={unlock} />}
      <main>
        <Chat settings={settings} change={change} model={model} />
        <Engine live={live} />
      </main>
    </SharedContext.Provider>
  );
}

interface HeaderProps {
  settings: Settings;
  change: Change;
  names: string[];
  model: string | undefined;
  setModel: (name: string) => void;
}

function Header({ settings, change, names, model, setModel }: HeaderProps) {
  const { t } = useShared();
  return (
    <header>
      <h1>{t.title}</h1>
      {names.length > 0 && (
        <label>
          {t.model}
          <select value={model ?? names[0]} onChange={(event) => setModel(event.currentTarget.value)}>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <span class="space" />
      <label>
        {t.language}
        <select value={settings.lang} onChange={(event) => change({ lang: event.currentTarget.value as Lang })}>
          <option value="en">English</option>
          <option value="it">Italiano</option>
        </select>
      </label>
      <label>
        {t.theme}
        <select value={settings.theme} onChange={(event) => change({ theme: event.currentTarget.value as Theme })}>
          <option value="auto">{t.themeAuto}</option>
          <option value="light">{t.themeLight}</option>
          <option value="dark">{t.themeDark}</option>
        </select>
      </label>
    </header>
  );
}

function KeyForm({ onKey }: { onKey: (key: string) => void }) {
  const { t } = useShared();
  const [key, setText] = useState("");
  return (
    <form
      class="key"
      onSubmit={(event) => {
        event.preventDefault();
        onKey(key);
      }}
    >
      <p>{t.keyNeeded}</p>
      <label>
        {t.key} <input type="password" autocomplete="off" value={key} onInput={(e) => setText(e.currentTarget.value)} />
      </label>
      <button type="submit" class="primary" disabled={!key}>
        {t.keySave}
      </button>
    </form>
  );
}

render(<App />, document.getElementById("app")!);
