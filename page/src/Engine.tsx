// The engine live: figures, KV cache, throughput, the batch step by step.
import { Chart } from "./Chart";
import { useShared } from "./context";
import type { Percentiles, Snapshot } from "./api";
import { Steps } from "./Steps";
import { Term } from "./Term";
import type { Live } from "./useLive";

export function Engine({ live }: { live: Live }) {
  const { t } = useShared();
  const { snapshot, problem } = live;
  const state = problem === null ? (snapshot ? t.live : t.connecting) : problem === 503 ? t.loading : t.offline;
  return (
    <section class="engine" aria-labelledby="engine-title" data-steps={snapshot?.steps_done}>
      <h2 id="engine-title">
        {t.engine} <small class={problem === null && snapshot ? "good" : "quiet"}>{state}</small>
      </h2>
      {snapshot && (
        <>
          <Figures snapshot={snapshot} />
          <KvCache blocks={snapshot.kv_blocks} />
          <Bandwidth found={snapshot.decode_bandwidth} />
          <h3>
            <Term slug="throughput">{t.throughput}</Term> <small class="quiet">{t.perSecond}</small>
          </h3>
          <Chart history={live.history} />
          <h3>
            <Term slug="continuous-batching">{t.steps}</Term>
          </h3>
          <Steps steps={live.steps} />
        </>
      )}
    </section>
  );
}

function Figures({ snapshot }: { snapshot: Snapshot }) {
  const { t, f } = useShared();
  const { requests, rates } = snapshot;
  const finished = Object.values(requests.finished).reduce((sum, n) => sum + n, 0);
  const hits = snapshot.prompt_tokens ? snapshot.cached_tokens / snapshot.prompt_tokens : 0;
  return (
    <dl class="figures">
      <Figure id="running" slug="batching" label={t.running} value={`${f.count(requests.running)} / ${f.count(requests.seats)}`} />
      <Figure id="waiting" slug="queue-time" label={t.waiting} value={f.count(requests.waiting)} />
      <Figure id="finished" slug="inference" label={t.finished} value={f.count(finished)} />
      <Figure id="decode" slug="decode" label={`${t.decode} ${t.perSecond}`} value={f.rate(rates.output_tok_s)} />
      <Figure id="prefill" slug="prefill" label={`${t.prefill} ${t.perSecond}`} value={f.rate(rates.prefill_tok_s)} />
      <Figure id="hits" slug="prefix-cache" label={t.hitRate} value={f.percent(hits)} />
      <Spread id="ttft" slug="ttft" label={t.ttft} of={snapshot.ttft_s} />
      <Spread id="itl" slug="itl" label={t.itl} of={snapshot.itl_s} />
      <Figure id="preemptions" slug="preemption" label={t.preemptions} value={f.count(snapshot.preemptions)} />
    </dl>
  );
}

function Figure({ id, slug, label, value }: { id: string; slug: string; label: string; value: string }) {
  return (
    <div class="figure">
      <dt>
        <Term slug={slug}>{label}</Term>
      </dt>
      <dd data-figure={id}>{value}</dd>
    </div>
  );
}

function Spread({ id, slug, label, of }: { id: string; slug: string; label: string; of: Percentiles }) {
  const { f } = useShared();
  return <Figure id={id} slug={slug} label={`${label} p50 · p95`} value={`${f.seconds(of.p50)} · ${f.seconds(of.p95)}`} />;
}

function KvCache({ blocks }: { blocks: Snapshot["kv_blocks"] }) {
  const { t, f } = useShared();
  const own = blocks.used - blocks.shared;
  const free = blocks.all - blocks.used - blocks.cached;
  const parts: [string, number, string][] = [
    [t.used, own, "own"],
    [t.shared, blocks.shared, "shared"],
    [t.cached, blocks.cached, "cached"],
    [t.free, free, "free"],
  ];
  return (
    <>
      <h3>
        <Term slug="kv-cache">{t.kvCache}</Term>{" "}
        <small class="quiet">
          {f.count(blocks.all)} {t.blocks}
        </small>
      </h3>
      <div class="bar" aria-hidden="true">
        {parts.map(([name, n, kind]) => n > 0 && <span key={name} class={kind} style={{ flexGrow: n }} />)}
      </div>
      <ul class="legend">
        {parts.map(([name, n, kind]) => (
          <li key={name}>
            <i class={kind} aria-hidden="true" /> {name} <b data-kv={kind}>{f.count(n)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

function Bandwidth({ found }: { found: Snapshot["decode_bandwidth"] }) {
  const { t, f } = useShared();
  let text = t.bandwidthNone;
  if (found) text = `${f.gigabytes(found.bytes_s)} ${found.limit_bytes_s ? `/ ${f.gigabytes(found.limit_bytes_s)}` : `(${t.bandwidthUnmeasured})`}`;
  return (
    <>
      <h3>
        <Term slug="memory-bound">{t.bandwidth}</Term>
      </h3>
      <p class="limit">
        <meter min={0} max={1} value={Math.min(1, found?.fraction ?? 0)} aria-label={t.bandwidth} />
        {found?.fraction != null && <b>{f.percent(found.fraction)}</b>} <span class="quiet">{text}</span>
      </p>
    </>
  );
}
