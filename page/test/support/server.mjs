// Starts `spola serve` on a free port and a browser beside it; ends both.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const SPOLA = process.env.SPOLA ?? "spola";
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** A running server: its address without a slash at the end, and `stop`. */
export async function serve(...options) {
  const [command, ...first] = SPOLA.split(" ");
  const child = spawn(command, [...first, "serve", "--port", "0", "--json", ...options], { stdio: ["ignore", "pipe", "pipe"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  let errors = "";
  child.stderr.on("data", (data) => (errors += data));
  const address = await new Promise((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (data) => {
      text += data;
      const found = /"(http:[^"]+)\/v1"/.exec(text);
      if (found) resolve(found[1]);
    });
    child.once("exit", (code) => reject(new Error(`spola serve ended with ${code}: ${errors}`)));
  });
  return {
    address,
    stop: async () => {
      child.kill("SIGTERM");
      await ended;
    },
  };
}

/** A headless browser with a profile of its own, which makes no connections but the tests'. */
export async function browse() {
  const profile = mkdtempSync(join(tmpdir(), "spola-page-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: CHROMIUM,
    headless: true,
    locale: "en-GB",
    viewport: { width: 1400, height: 900 },
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  return {
    context,
    stop: async () => {
      await context.close();
      rmSync(profile, { recursive: true, force: true });
    },
  };
}
