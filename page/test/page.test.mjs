// The page in headless Chromium against a real server with a real model: what a person does and sees.
// SCREENSHOTS=FOLDER also writes the pictures of the docs.
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { join } from "node:path";
import { AxeBuilder } from "@axe-core/playwright";
import { browse, serve } from "./support/server.mjs";

let server, browser, page, errors;

before(async () => {
  server = await serve("--max-seqs", "8");
  browser = await browse();
});

after(async () => {
  await browser?.stop();
  await server?.stop();
});

beforeEach(async () => {
  page = await browser.context.newPage();
  errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(server.address + "/");
  await page.evaluate(() => localStorage.clear());
  await page.reload();
  await page.getByText("live", { exact: true }).waitFor();
});

afterEach(async () => {
  await page.close();
  assert.deepEqual(errors, [], "console errors");
});

const picture = async (name) => {
  if (process.env.SCREENSHOTS) await page.screenshot({ path: join(process.env.SCREENSHOTS, `${name}.png`) });
};

const ask = async (text) => {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
};

const finished = () => page.locator(".turn.assistant .timing").last().waitFor({ timeout: 60000 });

const setting = async (label, value) => {
  if (!(await page.locator(".settings[open]").count())) await page.locator(".settings summary").click();
  await page.getByLabel(label, { exact: true }).fill(String(value));
  await page.keyboard.press("Tab");
};

const load = (n, tokens, prompt = "Count slowly.") =>
  Array.from({ length: n }, (_, i) =>
    fetch(server.address + "/v1/chat/completions", {
      method: "POST",
      body: JSON.stringify({ messages: [{ role: "user", content: `${i} ${prompt}` }], max_tokens: tokens, ignore_eos: true }),
    }).then((response) => response.json()),
  );

async function axe(name) {
  const found = await new AxeBuilder({ page }).analyze();
  const bad = found.violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const said = bad.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(" | ")}`);
  assert.deepEqual(said, [], `accessibility, ${name}`);
}

test("a chat streams, ends with its timing, and goes on", async () => {
  await setting("Max tokens", 40);
  await ask("What is gravity?");
  await finished();
  const first = await page.locator(".turn.assistant .prose").innerText();
  assert.match(first, /[Gg]ravity/);
  assert.match(await page.locator(".timing").innerText(), /prompt tokens[\s\S]*output tokens[\s\S]*TTFT/);
  await ask("And light?");
  await page.locator(".turn.assistant .timing").nth(1).waitFor({ timeout: 60000 });
  assert.equal(await page.locator(".turn").count(), 4);
  await picture("page-chat");
  await axe("a conversation, light");
  await page.getByLabel("Theme").selectOption("dark");
  await axe("a conversation, dark");
});

test("stop ends an answer and frees its seat", async () => {
  await setting("Max tokens", 4000);
  await ask("Write a very long story about a weaver.");
  await page.getByText(/\w+ \w+/).last().waitFor();
  await page.waitForFunction(() => document.querySelector(".turn.assistant .prose")?.textContent.length > 40);
  await page.keyboard.press("Escape");
  await page.locator(".timing", { hasText: "stopped" }).waitFor();
  await page.locator('[data-figure="running"]', { hasText: "0 / 8" }).waitFor();
});

test("tokens show what else could have come, by keyboard too", async () => {
  await setting("Max tokens", 24);
  await page.getByLabel("Show tokens and their probabilities").check();
  await ask("What is gravity?");
  await finished();
  const tokens = page.locator(".token");
  assert.equal(await tokens.count(), 24);
  const rows = page.locator(".tokens tbody tr");
  assert.equal(await rows.count(), 10);
  assert.equal(await page.locator(".tokens tr.drawn").count(), 1);
  await tokens.first().focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".tokens caption").innerText(), /2 \/ 24/);
  const drawn = await page.locator(".tokens tr.drawn code").textContent();
  assert.equal(drawn, await tokens.nth(1).textContent());
  await picture("page-tokens");
  await axe("tokens");
});

test("an explained answer shows its loop, by keyboard too", async () => {
  await setting("Max tokens", 24);
  await setting("Temperature", 0.7);
  await setting("Seed", 7);
  await page.getByLabel(/^Explain the loop/).check();
  await ask("What is gravity?");
  await finished();
  const tokens = page.locator(".token");
  assert.equal(await tokens.count(), 24);
  const candidates = page.getByRole("region", { name: "Candidates at this place" });
  assert.equal(await candidates.locator("tbody tr").count(), 10);
  await tokens.first().focus();
  assert.match(await page.locator(".facts").innerText(), /Prefill[\s\S]*Tokens computed[\s\S]*MB[\s\S]*ms/);
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator(".facts").innerText(), /Decode/);
  assert.match(await candidates.locator("caption").innerText(), /2 \/ 24/);
  assert.equal(await candidates.locator("tr.drawn code").textContent(), await tokens.nth(1).textContent());
  // The numbers are the API's: the same request, asked for its logprobs.
  const body = { messages: [{ role: "user", content: "What is gravity?" }], max_tokens: 24, temperature: 0.7, seed: 7, logprobs: true, top_logprobs: 10 };
  const asked = { method: "POST", body: JSON.stringify(body) };
  const answer = await (await fetch(server.address + "/v1/chat/completions", asked)).json();
  const second = answer.choices[0].logprobs.content[1];
  const shown = await candidates.locator("tbody tr td:nth-child(3)").allInnerTexts();
  assert.deepEqual(shown, second.top_logprobs.map(({ logprob }) => `${(Math.exp(logprob) * 100).toFixed(2)} %`));
  await page.locator(".settings summary").click();
  await tokens.nth(9).focus();
  await picture("page-explain");
  await axe("an explained answer, light");
  await page.getByText("The loop, step by step").click();
  const loop = page.getByRole("region", { name: "The loop, step by step" }).locator("tbody tr");
  assert.equal(await loop.count(), 24);
  assert.equal(await loop.nth(9).getAttribute("aria-current"), "step");
  await page.getByLabel("Theme").selectOption("dark");
  await picture("page-explain-dark");
  await axe("an explained answer, dark");
});

test("the live view moves and tells the same as the engine", async () => {
  const before = Number(await page.locator('[data-figure="finished"]').innerText());
  const answers = load(12, 150);
  await page.locator('[data-figure="running"]', { hasText: "8 / 8" }).waitFor();
  await page.locator('[data-figure="waiting"]', { hasText: "4" }).waitFor();
  await page.waitForFunction(() => Number(document.querySelector('[data-kv="own"]').textContent) > 8);
  await page.locator("canvas[role=img]").first().waitFor();
  await picture("page-engine");
  await axe("a busy engine");
  await page.locator("details", { hasText: "Last step" }).locator("summary").click();
  assert.ok((await page.locator(".engine tbody tr").count()) > 0);
  await Promise.all(answers);
  await page.locator('[data-figure="finished"]', { hasText: String(before + 12) }).waitFor();
  await page.locator('[data-figure="running"]', { hasText: "0 / 8" }).waitFor();
});

test("with eight streams the page's numbers are those of /metrics", async () => {
  const answers = load(10, 400);
  const metrics = new Map(); // steps done -> what /metrics said then
  let asking = true;
  const poll = (async () => {
    while (asking) {
      const text = await (await fetch(server.address + "/metrics")).text();
      const value = (name) => Number(new RegExp(`^spola:${name}[^ ]* (\\S+)$`, "m").exec(text)[1]);
      metrics.set(value("steps_total"), {
        running: value("num_requests_running"),
        waiting: value("num_requests_waiting"),
        blocks: Number(/^spola:kv_blocks\{[^}]*state="used"[^}]*\} (\S+)$/m.exec(text)[1]),
      });
    }
  })();
  const seen = new Map();
  for (let i = 0; i < 60; i++) {
    const shown = await page.evaluate(() => {
      const number = (selector) => Number(document.querySelector(selector).textContent.replace(/\D.*$/, "").trim());
      return {
        steps: Number(document.querySelector(".engine").dataset.steps),
        running: number('[data-figure="running"]'),
        waiting: number('[data-figure="waiting"]'),
        blocks: number('[data-kv="own"]') + number('[data-kv="shared"]'),
      };
    });
    seen.set(shown.steps, shown);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  asking = false;
  await poll;
  await Promise.all(answers);
  let compared = 0;
  for (const [steps, shown] of seen) {
    const near = [-2, -1, 0, 1, 2].map((by) => metrics.get(steps + by)).filter(Boolean);
    if (!near.length || shown.running !== 8) continue;
    compared++;
    // Two steps give each of the streams one block at most.
    const same = (told) =>
      told.running === shown.running && told.waiting === shown.waiting && Math.abs(told.blocks - shown.blocks) <= 8;
    assert.ok(near.some(same), `step ${steps}: ${JSON.stringify(shown)}, /metrics: ${JSON.stringify(near)}`);
  }
  assert.ok(compared >= 3, `${compared} snapshots could be compared`);
});

test("words are explained, in Italian too", async () => {
  await page.getByRole("button", { name: "KV cache" }).focus();
  assert.match(await page.getByRole("tooltip").innerText(), /stored keys and values/);
  await page.keyboard.press("Escape");
  await page.getByLabel("Language").focus();
  await page.getByLabel("Language").selectOption("it");
  await page.locator('html[lang="it"]').waitFor();
  await page.getByRole("button", { name: "Cache KV" }).focus();
  assert.match(await page.getByRole("tooltip").innerText(), /chiavi e i valori/);
  await page.getByRole("button", { name: "Invia" }).waitFor();
  await picture("page-italian");
  await axe("Italian");
});

test("what is drawn takes the colours of the theme", async () => {
  const [light, dark] = ["32,104,156", "109,179,232"]; // decode
  await setting("Max tokens", 24);
  await ask("What is gravity?");
  await finished();
  const drawn = () =>
    page.evaluate(() => {
      const canvas = document.querySelector(".engine canvas[role=img]");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let i = 0; i < data.length; i += 4) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
      return [...colours];
    });
  const becomes = async (there, gone) => {
    for (let i = 0; i < 100; i++) {
      const colours = await drawn();
      if (colours.includes(there) && !colours.includes(gone)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    assert.fail(`${there} is not drawn`);
  };
  await becomes(light, dark);
  await page.getByLabel("Theme").selectOption("dark");
  await becomes(dark, light);
  await page.getByLabel("Theme").selectOption("auto");
  await becomes(light, dark);
  await page.emulateMedia({ colorScheme: "dark" });
  await becomes(dark, light);
});

test("it fits a narrow screen", async () => {
  await page.setViewportSize({ width: 390, height: 844 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(wide <= 390, `the page is ${wide} pixels wide`);
  await picture("page-phone");
});

test("an error is shown, and the conversation lives on", async () => {
  await setting("Max tokens", 16);
  await ask("x ".repeat(20000));
  await page.getByRole("alert").waitFor();
  assert.match(await page.getByRole("alert").innerText(), /tokens/);
  errors = errors.filter((text) => !/400/.test(text)); // the browser logs every refused request
});
